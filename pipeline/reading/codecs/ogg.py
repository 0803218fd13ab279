"""Opus and Vorbis in Ogg, by soundfile.

libsndfile takes its sample count from the last page that it finds, and skips damaged pages without a word: so a file
is held against its own page structure first, and the decoded count against the promised one. Of a chained file it
decodes the first stream alone; here its links are decoded one by one.

A part is cut out of Opus by seeking to a second before it. Of Vorbis, in which libsndfile's seeking is off by some
samples near the end, all before the part is decoded and forgotten.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np
import soundfile
from numpy.typing import NDArray

from .base import (
    AudioError,
    AudioInfo,
    Codec,
    DType,
    Samples,
    Scratch,
    ViewFile,
    file_size,
    read_at,
    require_channels,
    require_count,
    require_samples,
    whole,
)
from .ogg_pages import HEADER_BYTES, LARGEST_PAGE_BYTES, checked_links, closing_serial, serial_at

_BLOCK = 65_536
_SEEKABLE = frozenset({"opus"})


class DamagedError(AudioError):
    """libsndfile does not take the stream."""


def _first_packet_is(magic: bytes) -> Callable[[memoryview], bool]:
    def matches(head: memoryview) -> bool:
        if bytes(head[:4]) != b"OggS" or len(head) < HEADER_BYTES:
            return False
        packet = HEADER_BYTES + head[26]
        return bytes(head[packet : packet + len(magic)]) == magic

    return matches


def _read_info(codec: str, file: BinaryIO) -> AudioInfo:
    try:
        with soundfile.SoundFile(file) as stream:
            return require_samples(AudioInfo(codec, stream.frames, stream.samplerate, stream.channels, "float32"))
    except soundfile.LibsndfileError as error:
        raise AudioError(f"damaged {codec} stream: {error.error_string}") from error


def _count(codec: str, link: memoryview) -> AudioInfo:
    """Facts of one link, its samples counted by decoding them."""
    try:
        with soundfile.SoundFile(io.BytesIO(link)) as stream:
            count = sum(len(block) for block in stream.blocks(_BLOCK, dtype="float32"))
            return require_samples(AudioInfo(codec, count, stream.samplerate, stream.channels, "float32"))
    except soundfile.LibsndfileError as error:
        raise AudioError(f"damaged {codec} stream: {error.error_string}") from error


def _joined(links: list[AudioInfo]) -> AudioInfo:
    first = links[0]
    for link in links:
        if (link.sample_rate, link.channels) != (first.sample_rate, first.channels):
            raise AudioError(
                f"chained Ogg that changes from {first.channels} channels at {first.sample_rate} Hz "
                f"to {link.channels} at {link.sample_rate}"
            )
    count = sum(link.num_samples for link in links)
    return AudioInfo(first.codec, count, first.sample_rate, first.channels, "float32")


def _decode_link(codec: str, data: memoryview, num_samples: int, channels: int) -> tuple[Samples, int, bool]:
    """Samples, how many came, and whether more follow."""
    samples = np.empty(num_samples if channels == 1 else (num_samples, channels), np.float32)
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as stream:
            require_channels(stream.channels, channels)
            found = len(stream.read(num_samples, out=samples))
            more = found == num_samples and len(stream.read(1, dtype="float32")) > 0
    except soundfile.LibsndfileError as error:
        raise DamagedError(f"damaged {codec} stream: {error.error_string}") from error
    return samples, found, more


def _codec(name: str, magic: bytes, extension: str, endings: frozenset[str]) -> Codec:
    def measure(data: memoryview) -> AudioInfo:
        links = checked_links(data)
        if len(links) == 1 and closing_serial(data[-LARGEST_PAGE_BYTES:]) is not None:
            return _read_info(name, io.BytesIO(data))
        # libsndfile's count goes by the last page, which is another stream's, or not there.
        return _joined([_count(name, link) for link in links])

    def probe(file: BinaryIO) -> AudioInfo:
        head = read_at(file, 0, HEADER_BYTES)
        tail = read_at(file, max(0, file_size(file) - LARGEST_PAGE_BYTES), LARGEST_PAGE_BYTES)
        file.seek(0)
        is_one = closing_serial(tail) == serial_at(head, 0)
        return _read_info(name, file) if is_one else measure(whole(file))

    def decode(data: memoryview, num_samples: int, channels: int, scratch: Scratch) -> Samples:
        try:
            samples, found, more = _decode_link(name, data, num_samples, channels)
        except DamagedError:
            samples, found, more = None, 0, False
        if samples is not None and found == num_samples and not more:
            return samples
        links = checked_links(data)
        counts = [_count(name, link) for link in links]
        require_count(_joined(counts).num_samples, num_samples)
        parts = [
            _decode_link(name, link, info.num_samples, channels)[0] for link, info in zip(links, counts, strict=True)
        ]
        joined: NDArray[Any] = np.concatenate(parts)
        return joined

    def cut(file: BinaryIO, first: int, last: int) -> Samples:
        links = checked_links(whole(file))
        kept, position = [], 0
        for link in links:
            try:
                with soundfile.SoundFile(ViewFile(link)) as stream:
                    if name in _SEEKABLE and len(links) == 1:
                        # The decoder has forgotten what came before after the second that is thrown away.
                        position = stream.seek(max(0, first - stream.samplerate))
                    for block in stream.blocks(_BLOCK, dtype="float32"):
                        if position < last and position + len(block) > first:
                            kept.append(block[max(0, first - position) : last - position].copy())
                        position += len(block)
                        if position >= last:
                            break
            except soundfile.LibsndfileError as error:
                raise AudioError(f"damaged {name} stream: {error.error_string}") from error
            if position >= last:
                break
        require_count(sum(map(len, kept)), last - first)
        return np.concatenate(kept)

    def blocks(file: BinaryIO) -> Iterator[Samples]:
        for link in checked_links(whole(file)):
            try:
                with soundfile.SoundFile(ViewFile(link)) as stream:
                    for block in stream.blocks(_BLOCK, dtype="float32"):
                        yield block.copy()
            except soundfile.LibsndfileError as error:
                raise AudioError(f"damaged {name} stream: {error.error_string}") from error

    def peek_dtype(data: memoryview) -> DType:
        return "float32"

    return Codec(
        name,
        extension,
        endings,
        _first_packet_is(magic),
        measure,
        probe,
        decode,
        peek_dtype,
        cut=cut,
        blocks=None if name in _SEEKABLE else blocks,
    )


OPUS = _codec("opus", b"OpusHead", "opus", frozenset({".opus", ".oga", ".ogg"}))
VORBIS = _codec("vorbis", b"\x01vorbis", "ogg", frozenset({".ogg", ".oga"}))
