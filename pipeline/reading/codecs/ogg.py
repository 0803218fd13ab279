"""Opus and Vorbis in Ogg, by soundfile.

libsndfile takes its sample count from the last page that it finds, and skips damaged pages without a word: so a file
is held against its own page structure first, and the decoded count against the promised one.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import BinaryIO

import numpy as np
import soundfile

from .base import (
    AudioError,
    AudioInfo,
    Codec,
    DType,
    Samples,
    Scratch,
    file_size,
    read_at,
    require_channels,
    require_count,
    require_samples,
)
from .ogg_pages import HEADER_BYTES, LARGEST_PAGE_BYTES, checked_pages, ends_in_last_page


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


def _codec(name: str, magic: bytes, extension: str, endings: frozenset[str]) -> Codec:
    def measure(data: memoryview) -> AudioInfo:
        checked_pages(data)
        return _read_info(name, io.BytesIO(data))

    def probe(file: BinaryIO) -> AudioInfo:
        tail = read_at(file, max(0, file_size(file) - LARGEST_PAGE_BYTES), LARGEST_PAGE_BYTES)
        file.seek(0)
        return _read_info(name, file) if ends_in_last_page(tail) else measure(memoryview(file.read()))

    def decode(data: memoryview, num_samples: int, channels: int, scratch: Scratch) -> Samples:
        samples = np.empty(num_samples if channels == 1 else (num_samples, channels), np.float32)
        try:
            with soundfile.SoundFile(io.BytesIO(data)) as stream:
                require_channels(stream.channels, channels)
                found = len(stream.read(num_samples, out=samples))
                more = found == num_samples and len(stream.read(1, dtype="float32")) > 0
        except soundfile.LibsndfileError as error:
            raise AudioError(f"damaged {name} stream: {error.error_string}") from error
        require_count(found, num_samples, more=more)
        return samples

    def peek_dtype(data: memoryview) -> DType:
        return "float32"

    return Codec(name, extension, endings, _first_packet_is(magic), measure, probe, decode, peek_dtype)


OPUS = _codec("opus", b"OpusHead", "opus", frozenset({".opus", ".oga", ".ogg"}))
VORBIS = _codec("vorbis", b"\x01vorbis", "ogg", frozenset({".ogg", ".oga"}))
