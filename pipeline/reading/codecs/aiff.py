"""AIFF and AIFF-C, uncompressed or of the G.711 laws.

    "FORM" | size | "AIFF" or "AIFC" | chunk*      chunk: id (4 bytes) | size (u32) | body | a zero byte if size is odd
    "COMM"  channels i16 | frames u32 | bits i16 | rate (80-bit float) | AIFC: kind of compression (4 bytes), its name
    "SSND"  offset u32 | block size u32 | samples

All numbers are big-endian. Source: Apple, Audio Interchange File Format AIFF-C, 1991
"""

from __future__ import annotations

import math
import struct

from .base import AudioError
from .pcm_file import PcmLayout, ReadAt, pcm_codec

_COMM = struct.Struct(">hIhHQ")
_KINDS = {
    b"NONE": ("int", 0, True),
    b"twos": ("int", 0, True),
    b"in24": ("int", 3, True),
    b"in32": ("int", 4, True),
    b"sowt": ("int", 0, False),
    b"raw ": ("uint", 1, True),
    b"fl32": ("float", 4, True),
    b"FL32": ("float", 4, True),
    b"fl64": ("float", 8, True),
    b"FL64": ("float", 8, True),
    b"ulaw": ("mulaw", 1, True),
    b"ULAW": ("mulaw", 1, True),
    b"alaw": ("alaw", 1, True),
    b"ALAW": ("alaw", 1, True),
}
"""Compression -> kind, bytes (0: as many as the bits need), big-endian."""

# Writers that stream can't go back to fill these in.
_STREAMED = frozenset({0, 0x7FFFFFFF, 0xFFFFFFFF})


def _matches(head: memoryview) -> bool:
    return bytes(head[:4]) == b"FORM" and bytes(head[8:12]) in (b"AIFF", b"AIFC")


def _parse(read: ReadAt, size: int) -> PcmLayout:
    position, common, data_start, data_bytes = 12, b"", 0, 0
    while position + 8 <= size and not (common and data_start):
        head = read(position, 8)
        chunk_id, chunk_bytes = bytes(head[:4]), int.from_bytes(head[4:], "big")
        body = position + 8
        if chunk_id == b"COMM":
            common = bytes(read(body, min(chunk_bytes, 22)))
        elif chunk_id == b"SSND":
            data_start = body + 8 + int.from_bytes(read(body, 4), "big")
            data_bytes = chunk_bytes
        position = body + chunk_bytes + chunk_bytes % 2
    if not common or not data_start:
        raise AudioError("truncated: the AIFF ends before its format and its samples")
    return _layout(common, data_start, data_bytes)


def _layout(common: bytes, data_start: int, data_bytes: int) -> PcmLayout:
    if len(common) < _COMM.size:
        raise AudioError("not audio: the AIFF format chunk is cut short")
    channels, frames, bits, exponent, mantissa = _COMM.unpack_from(common)
    compression = common[18:22] if len(common) >= 22 else b"NONE"
    # The sign and 15 bits of exponent, then 64 of mantissa with its leading one.
    rate = math.ldexp(mantissa, (exponent & 0x7FFF) - 16383 - 63) if exponent & 0x7FFF < 16383 + 32 else 0
    if channels < 1 or not 1 <= rate < 1 << 31 or not 1 <= bits <= 64:
        raise AudioError(f"not audio: the AIFF header says {channels} channels of {bits} bits at {rate} Hz")
    if compression not in _KINDS:
        raise AudioError(f"AIFF compressed as {compression!r} is not supported")
    kind, width, big_endian = _KINDS[compression]
    width = width or (bits + 7) // 8
    if kind == "int" and width > 4:
        raise AudioError(f"AIFF of {bits}-bit integers is not supported")
    streamed = frames in _STREAMED and data_bytes in _STREAMED
    return PcmLayout(kind, width, big_endian, channels, round(rate), data_start, None if streamed else frames)


CODEC = pcm_codec("aiff", frozenset({".aif", ".aiff", ".aifc"}), _matches, _parse)
