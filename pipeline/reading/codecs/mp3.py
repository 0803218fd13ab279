"""MP3 by miniaudio's dr_mp3, by soundfile where there is no miniaudio; the samples agree within two 16-bit steps.

A count from the header is believed only when the frames bear it out: both libraries take it on trust. Without such a
header libsndfile goes by an estimate, and leaves out what is beyond it, so that only dr_mp3 can decode such files.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
import soundfile
from numpy.typing import NDArray

from . import native
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
    shaped,
    whole,
)
from .mp3_frames import Stream, find_stream, starts_within, walk
from .sniff import HEAD_BYTES, id3_end, id3_end_of_file

_COUNTING_BLOCK = 65_536
_ID3V1_BYTES = 128
_APE_BYTES = 32
_APE_HAS_HEADER = 0x80000000


def _matches(head: memoryview) -> bool:
    return find_stream(head) is not None


def _without_tags(data: memoryview) -> memoryview:
    """What lies between the tags: of those behind the audio, dr_mp3 takes some for audio, and some audio for them.

    audio | APEv2: a header (maybe), items, "APETAGEX" version size items flags … (32 bytes) | "TAG" … (ID3v1)
    """
    end = id3_end(data)
    head = data[end : end + HEAD_BYTES]
    stream = find_stream(head) if end else None
    if stream is not None and any(head[: stream.start]):
        # The tag says that it ends amid the frames: it is shorter than that.
        end = starts_within(data, end) or end
    data = data[end:]
    if bytes(data[-_ID3V1_BYTES:][:3]) == b"TAG":
        data = data[:-_ID3V1_BYTES]
    footer = bytes(data[-_APE_BYTES:])
    if footer[:8] == b"APETAGEX":
        size, _, flags = struct.unpack_from("<III", footer, 12)
        size += _APE_BYTES if flags & _APE_HAS_HEADER else 0
        data = data[: max(0, len(data) - size)]
    return data


def _measure(data: memoryview) -> AudioInfo:
    return _only_frames(data)[1]


def _only_frames(data: memoryview) -> tuple[memoryview, AudioInfo]:
    """The frames of a whole file without what lies before, between and behind them, and what they decode to.

    Decoders lose sound at such places, and take an info frame that does not come first for sound.
    """
    data = _without_tags(data)
    stream = find_stream(data[:HEAD_BYTES])
    if stream is None:
        raise AudioError("not audio: no MP3 frame found")
    found = walk(data, stream)
    promised = stream.promised_frames
    if promised is not None and found.frames < promised:
        raise AudioError(f"truncated: the header promises {promised} MP3 frames, the file holds {found.frames}")
    if found.cut:
        raise AudioError(f"truncated: the file ends within an MP3 frame, behind {found.frames} whole ones")
    if found.runs != [(0, len(data))]:
        data = memoryview(b"".join(data[start:end] for start, end in found.runs))
    if promised and found.frames <= promised + 1:  # some encoders leave one frame out of their count
        return data, _info(stream, _promised_samples(data))
    if stream.has_info:  # more are another file, joined to the first
        data = data[stream.first.num_bytes :]
    return data, _info(stream, _count(data, stream.first.channels))


def _probe(file: BinaryIO) -> AudioInfo:
    start = id3_end_of_file(file)
    head = read_at(file, start, HEAD_BYTES)
    stream = find_stream(head)
    if stream is not None and not stream.start and stream.promised_frames and stream.promised_bytes:
        rest = file_size(file) - start
        if rest - stream.promised_bytes in (0, _ID3V1_BYTES):
            return _info(stream, _promised_samples(head))
    return _measure(whole(file))


def _info(stream: Stream, num_samples: int) -> AudioInfo:
    first = stream.first
    return require_samples(AudioInfo("mp3", num_samples, first.sample_rate, first.channels, "float32"))


def _peek_dtype(data: memoryview) -> DType:
    return "float32"


def _decode(data: memoryview, num_samples: int, channels: int, scratch: Scratch) -> Samples:
    data = _without_tags(data)
    samples = np.empty(num_samples * channels, np.float32)
    fill = _fill_by_soundfile if native.lib is None else _fill_by_miniaudio
    found, more = fill(data, num_samples, channels, samples)
    if found < num_samples or more:
        found, more = fill(_only_frames(data)[0], num_samples, channels, samples)
    require_count(found, num_samples, more=more)
    return shaped(samples, channels)


def _cut(file: BinaryIO, first: int, last: int) -> Samples:
    """Decoded from the start, since a frame needs bits of those before it; only the part is kept."""
    data, info = _only_frames(whole(file))
    samples = np.empty((last - first) * info.channels, np.float32)
    skip = _skip_by_soundfile if native.lib is None else _skip_by_miniaudio
    require_count(skip(data, first, last - first, info.channels, samples), last - first)
    return shaped(samples, info.channels)


def _blocks(file: BinaryIO) -> Iterator[Samples]:
    data, info = _only_frames(whole(file))
    if native.lib is None:
        try:
            with soundfile.SoundFile(io.BytesIO(data)) as source:
                for block in source.blocks(_COUNTING_BLOCK, dtype="float32"):
                    yield block.copy()
        except soundfile.LibsndfileError as error:
            raise AudioError(f"damaged MP3: {error.error_string}") from error
        return
    with _miniaudio_stream(data) as stream:
        while True:
            samples = np.empty(_COUNTING_BLOCK * info.channels, np.float32)
            target = native.pointer("float[]", samples)
            found = native.lib.ma_dr_mp3_read_pcm_frames_f32(stream, _COUNTING_BLOCK, target)
            if not found:
                return
            yield shaped(samples[: found * info.channels], info.channels)


def _skip_by_miniaudio(
    data: memoryview, skipped: int, num_samples: int, channels: int, samples: NDArray[np.float32]
) -> int:
    """Decode and forget `skipped` samples, then decode into `samples`; how many came."""
    read = native.lib.ma_dr_mp3_read_pcm_frames_f32
    spare = native.pointer("float[]", np.empty(_COUNTING_BLOCK * channels, np.float32))
    with _miniaudio_stream(data) as stream:
        while skipped and (found := read(stream, min(skipped, _COUNTING_BLOCK), spare)):
            skipped -= found
        return int(read(stream, num_samples, native.pointer("float[]", samples)))


def _skip_by_soundfile(
    data: memoryview, skipped: int, num_samples: int, channels: int, samples: NDArray[np.float32]
) -> int:
    """As `_skip_by_miniaudio`."""
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as stream:
            while skipped and (found := len(stream.read(min(skipped, _COUNTING_BLOCK), dtype="float32"))):
                skipped -= found
            return len(stream.read(num_samples, out=shaped(samples, channels)))
    except soundfile.LibsndfileError as error:
        raise AudioError(f"damaged MP3: {error.error_string}") from error


@contextmanager
def _miniaudio_stream(data: memoryview) -> Iterator[Any]:
    stream, source = native.ffi.new("ma_dr_mp3 *"), native.ffi.from_buffer(data)
    if not native.lib.ma_dr_mp3_init_memory(stream, source, len(data), native.ffi.NULL):
        raise AudioError("damaged: no MP3 frame can be decoded")
    try:
        yield stream
    finally:
        native.lib.ma_dr_mp3_uninit(stream)


def _fill_by_miniaudio(
    data: memoryview, num_samples: int, channels: int, samples: NDArray[np.float32]
) -> tuple[int, bool]:
    """Decode into `samples`; how many came, and whether more follow."""
    read = native.lib.ma_dr_mp3_read_pcm_frames_f32
    with _miniaudio_stream(data) as stream:
        require_channels(stream.channels, channels)
        found = read(stream, num_samples, native.pointer("float[]", samples))
        spare = np.empty(channels, np.float32)
        more = found == num_samples and read(stream, 1, native.pointer("float[]", spare)) > 0
    return found, more


def _fill_by_soundfile(
    data: memoryview, num_samples: int, channels: int, samples: NDArray[np.float32]
) -> tuple[int, bool]:
    """As `_fill_by_miniaudio`."""
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as stream:
            require_channels(stream.channels, channels)
            found = len(stream.read(num_samples, out=shaped(samples, channels)))
            more = found == num_samples and len(stream.read(1, dtype="float32")) > 0
    except soundfile.LibsndfileError as error:
        raise AudioError(f"damaged MP3: {error.error_string}") from error
    return found, more


def _promised_samples(head: memoryview) -> int:
    """Samples that the info frame promises, less those that the encoder added, as the decoder will deliver them."""
    if native.lib is not None:
        with _miniaudio_stream(head) as stream:
            return int(native.lib.ma_dr_mp3_get_pcm_frame_count(stream))
    try:
        return int(soundfile.info(io.BytesIO(head)).frames)
    except soundfile.LibsndfileError as error:
        raise AudioError(f"damaged MP3: {error.error_string}") from error


def _count(data: memoryview, channels: int) -> int:
    """Samples of each channel, by decoding them: a damaged frame gives none, though its header counts."""
    if native.lib is None:
        raise AudioError("an MP3 whose header does not say its length needs the package miniaudio")
    target = native.pointer("float[]", np.empty(_COUNTING_BLOCK * channels, np.float32))
    total = 0
    with _miniaudio_stream(data) as stream:
        require_channels(stream.channels, channels)
        while found := native.lib.ma_dr_mp3_read_pcm_frames_f32(stream, _COUNTING_BLOCK, target):
            total += found
    return total


CODEC = Codec(
    name="mp3",
    extension="mp3",
    endings=frozenset({".mp3"}),
    matches=_matches,
    measure=_measure,
    probe=_probe,
    decode=_decode,
    peek_dtype=_peek_dtype,
    cut=_cut,
    blocks=_blocks,
)
