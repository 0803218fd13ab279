"""WAV by our own walk over its chunks; 16-bit PCM comes back as a view of the bytes given, without a copy.

    "RIFF" | size | "WAVE" | chunk*            chunk: id (4 bytes) | size (u32) | body | a zero byte if size is odd
    "RF64" | -1   | "WAVE" | "ds64" | chunk*   sizes beyond 4 GiB are in "ds64": RIFF size, data size (u64 each), ...

All numbers are little-endian. The walk ends at the "data" chunk; what follows it is no audio. Writers that stream
cannot go back to fill in the size of "data", and leave one of `_STREAMED_SIZES`: then the rest of the file is audio.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .base import (
    AudioError,
    AudioInfo,
    Codec,
    Depth,
    DType,
    Exact,
    Samples,
    Scratch,
    file_size,
    read_at,
    read_frames,
    require_channels,
    require_count,
    require_samples,
    shaped,
    truncated,
)
from .pcm import (
    ALAW,
    LARGEST_ALAW,
    LARGEST_MULAW,
    MULAW,
    depth_of_floats,
    depth_of_integers,
    exact,
    from_floats,
    from_integers,
    full_scale_of_integers,
)
from .sniff import id3_end, id3_end_of_file

_PCM, _FLOAT, _ALAW, _MULAW, _EXTENSIBLE = 0x0001, 0x0003, 0x0006, 0x0007, 0xFFFE
_FORMAT_BYTES = 16
_OURS = frozenset({_PCM, _FLOAT, _ALAW, _MULAW, _EXTENSIBLE})

# The largest number of 32 or 31 bits (ffmpeg, SoX), that less a header or a block, or more by one: no file of speech.
_STREAMED_SIZES = (range(0x7FFF0000, 0x80010000), range(0xFFFF0000, 0x100000000))

# Nearly every 16-bit WAV has these 44 bytes; reading them in one step halves what decoding it costs.
_PLAIN_HEADER = struct.Struct("<4x I 12s 16s 4s I")

_ReadAt = Callable[[int, int], memoryview]


@dataclass(frozen=True, slots=True)
class _Format:
    encoding: tuple[int, int]  # format tag, bytes a sample
    channels: int
    sample_rate: int


class _Layout(NamedTuple):
    format: _Format
    data_start: int
    data_bytes: int
    finished: bool  # the writer came back to fill in the size of the file

    @property
    def dtype(self) -> DType:
        return "int16" if self.format.encoding == (_PCM, 2) else "float32"

    def samples_in(self, file_bytes: int) -> int:
        """Samples of each channel in a file of that many bytes.

        Raises:
            AudioError: The header promises more.
        """
        frame_bytes = self.format.encoding[1] * self.format.channels
        available = file_bytes - self.data_start
        found, promised = available // frame_bytes, self.data_bytes // frame_bytes
        streamed = any(self.data_bytes in sizes for sizes in _STREAMED_SIZES) or (
            self.data_bytes == 0 and not self.finished
        )
        if self.data_bytes <= available and not (streamed and self.data_bytes == 0):
            return promised
        # Some writers count the zero byte that pads odd data, and then leave it out.
        padding_counted = frame_bytes % 2 == 1 and self.data_bytes == available + 1
        if streamed or padding_counted or found == promised:
            return found
        raise truncated(promised, found)


def _matches(head: memoryview) -> bool:
    if bytes(head[:4]) not in (b"RIFF", b"RF64") or bytes(head[8:12]) != b"WAVE":
        return False
    # What is compressed (ADPCM, GSM, MP3) is left to FFmpeg.
    found = bytes(head).find(b"fmt ")
    chunk_bytes, tag = struct.unpack_from("<IH", head, found + 4) if 0 <= found < len(head) - 10 else (0, 0)
    return chunk_bytes < _FORMAT_BYTES or tag in _OURS


@lru_cache(maxsize=256)  # a corpus has one or two, and parsing is a third of what a WAV costs
def _parse_format(body: bytes) -> _Format:
    if len(body) < _FORMAT_BYTES:
        raise AudioError("not audio: the WAV format chunk is cut short")
    tag, channels, sample_rate, _, frame_bytes, bits = struct.unpack_from("<HHIIHH", body)
    if tag == _EXTENSIBLE and len(body) >= 26:
        # The subformat GUID opens with the plain format tag.
        (tag,) = struct.unpack_from("<H", body, 24)
    if channels < 1 or sample_rate < 1:
        raise AudioError(f"not audio: the WAV header says {channels} channels at {sample_rate} Hz")
    width = frame_bytes // channels
    if (tag, width) not in _CONVERTERS or width * channels != frame_bytes or (bits + 7) // 8 != width:
        raise AudioError(
            f"WAV of format 0x{tag:04x} with {bits} bits in frames of {frame_bytes} bytes is not supported"
        )
    return _Format((tag, width), channels, sample_rate)


def _walk(read: _ReadAt, size: int, begin: int = 0) -> _Layout:
    """Find format and data chunk of a WAV that begins behind a tag.

    Raises:
        AudioError: One is missing or of an unsupported kind.
    """
    riff_bytes = int.from_bytes(read(begin + 4, 4), "little")
    position, layout, wide_data_bytes = begin + 12, None, 0
    while position + 8 <= size:
        head = read(position, 8)
        chunk_id, chunk_bytes = bytes(head[:4]), int.from_bytes(head[4:], "little")
        body = position + 8
        if chunk_id == b"fmt ":
            layout = _parse_format(bytes(read(body, min(chunk_bytes, 40))))
        elif chunk_id == b"ds64" and body + 16 <= size:
            riff_bytes, wide_data_bytes = struct.unpack("<QQ", read(body, 16))
        elif chunk_id == b"data":
            if layout is None:
                raise AudioError("not audio: the WAV has no format chunk before its data")
            if chunk_bytes == 0xFFFFFFFF and wide_data_bytes:
                chunk_bytes = wide_data_bytes
            return _Layout(layout, body, chunk_bytes, finished=riff_bytes == size - begin - 8)
        position = body + chunk_bytes
        # Some writers forget the byte that pads an odd chunk; it is zero, or no letter of an id anyway.
        if chunk_bytes % 2 and position < size and not bytes(read(position, 1)).isalnum():
            position += 1
    raise AudioError("truncated: the WAV ends before its data chunk")


def _walk_memory(data: memoryview) -> _Layout:
    if len(data) >= _PLAIN_HEADER.size:
        riff_bytes, chunk, body, following, data_bytes = _PLAIN_HEADER.unpack_from(data)
        if chunk == b"WAVEfmt \x10\0\0\0" and following == b"data":
            return _Layout(_parse_format(body), _PLAIN_HEADER.size, data_bytes, riff_bytes == len(data) - 8)
    return _walk(lambda start, count: data[start : start + count], len(data), id3_end(data))


def _info(layout: _Layout, file_bytes: int) -> AudioInfo:
    form = layout.format
    info = AudioInfo("wav", layout.samples_in(file_bytes), form.sample_rate, form.channels, layout.dtype)
    return require_samples(info)


def _measure(data: memoryview) -> AudioInfo:
    return _info(_walk_memory(data), len(data))


def _probe(file: BinaryIO) -> AudioInfo:
    # One small read serves nearly every file; only a header with long comments needs more.
    size, head = file_size(file), read_at(file, 0, 4096)

    def read(start: int, count: int) -> memoryview:
        if start + count <= len(head):
            return head[start : start + count]
        return read_at(file, start, count)

    return _info(_walk(read, size, id3_end_of_file(file)), size)


def _decode(data: memoryview, num_samples: int, channels: int, scratch: Scratch) -> Samples:
    layout = _walk_memory(data)
    encoding = layout.format.encoding
    require_channels(layout.format.channels, channels)
    require_count(layout.samples_in(len(data)), num_samples)
    raw = np.frombuffer(data, np.uint8, num_samples * channels * encoding[1], layout.data_start)
    return shaped(_CONVERTERS[encoding](raw), channels)


def _peek_dtype(data: memoryview) -> DType:
    return _walk_memory(data).dtype


def _layout_of(file: BinaryIO) -> _Layout:
    return _walk(lambda start, count: read_at(file, start, count), file_size(file), id3_end_of_file(file))


def _cut(file: BinaryIO, first: int, last: int) -> Exact:
    layout, depth = _layout_of(file), _depth(file)
    encoding, channels = layout.format.encoding, layout.format.channels
    raw = np.frombuffer(read_frames(file, layout.data_start, encoding[1] * channels, first, last), np.uint8)
    if depth in ("PCM_32", "DOUBLE"):
        return shaped(exact(raw, depth, big_endian=False), channels)
    return shaped(_CONVERTERS[encoding](raw), channels)


def _depth(file: BinaryIO) -> Depth:
    tag, width = _layout_of(file).format.encoding
    return depth_of_floats(width) if tag == _FLOAT else depth_of_integers(width)


def _full_scale(data: memoryview) -> float:
    tag, width = _walk_memory(data).format.encoding
    codes = {_MULAW: LARGEST_MULAW, _ALAW: LARGEST_ALAW}
    return codes[tag] if tag in codes else full_scale_of_integers(8 * width)


_CONVERTERS: dict[tuple[int, int], Callable[[NDArray[np.uint8]], NDArray[Any]]] = {
    # Bytes are unsigned, wider integers signed.
    (_PCM, 1): lambda raw: from_integers(raw ^ np.uint8(0x80), 1, big_endian=False),
    (_PCM, 2): lambda raw: raw.view("<i2"),
    (_PCM, 3): lambda raw: from_integers(raw, 3, big_endian=False),
    (_PCM, 4): lambda raw: from_integers(raw, 4, big_endian=False),
    (_FLOAT, 4): lambda raw: raw.view("<f4"),
    (_FLOAT, 8): lambda raw: from_floats(raw, 8, big_endian=False),
    (_ALAW, 1): lambda raw: ALAW[raw],
    (_MULAW, 1): lambda raw: MULAW[raw],
}

CODEC = Codec(
    name="wav",
    extension="wav",
    endings=frozenset({".wav", ".wave"}),
    matches=_matches,
    measure=_measure,
    probe=_probe,
    decode=_decode,
    peek_dtype=_peek_dtype,
    cut=_cut,
    depth=_depth,
    full_scale=_full_scale,
)
