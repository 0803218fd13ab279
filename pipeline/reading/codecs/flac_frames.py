"""As much of the FLAC format (RFC 9639) as it takes to see, without decoding, that a file's last frame is there.

"fLaC" | metadata block+ | frame+
block:  last flag (1 bit), type (7), length (24) | body; the first is STREAMINFO (type 0, 34 bytes)
frame:  header, with its position in the stream and a CRC-8 | subframes | CRC-16
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .base import AudioError

STREAMINFO_END = 42
_SYNCS = (b"\xff\xf8", b"\xff\xf9")  # fixed and variable block size

# Tags that taggers leave behind the audio (ID3v1: 128 bytes, APEv2: some hundred).
_TRAILER_BYTES = 4096
_FRAME_OVERHEAD_BYTES = 64


def _crc8_table() -> bytes:
    """CRC-8 of each byte, polynomial x^8 + x^2 + x + 1."""
    table = bytearray(256)
    for value in range(256):
        crc = value
        for _ in range(8):
            crc = (crc << 1 ^ 0x07) & 0xFF if crc & 0x80 else crc << 1
        table[value] = crc
    return bytes(table)


_CRC8 = _crc8_table()


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """The STREAMINFO block; `num_samples` and `largest_frame_bytes` are 0 where the encoder did not know."""

    largest_block: int
    largest_frame_bytes: int
    sample_rate: int
    channels: int
    bits: int
    num_samples: int

    @property
    def tail_bytes(self) -> int:
        """Bytes from the end of a file within which its last frame starts, unless there is a lot behind it."""
        # A frame that does not compress is stored verbatim; a side channel takes one bit more a sample.
        verbatim = self.largest_block * self.channels * (self.bits + 1) // 8 + _FRAME_OVERHEAD_BYTES
        return (self.largest_frame_bytes or verbatim) + _TRAILER_BYTES


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """Where a frame lies in the file's bytes and in the stream."""

    offset: int
    first_sample: int
    block_size: int

    @property
    def end_sample(self) -> int:
        """The sample behind its last one."""
        return self.first_sample + self.block_size


def parse_stream_info(head: memoryview) -> StreamInfo:
    """STREAMINFO of the bytes of a FLAC file, of which the first 42 are enough.

    Raises:
        AudioError: They are fewer, or no FLAC.
    """
    if len(head) < STREAMINFO_END:
        raise AudioError("truncated: the file ends within its FLAC header")
    if bytes(head[:4]) != b"fLaC" or head[4] & 0x7F or bytes(head[5:8]) != b"\x00\x00\x22":
        raise AudioError("not audio: the FLAC header has no STREAMINFO block")
    packed = int.from_bytes(head[18:26], "big")  # rate 20 bits, channels - 1: 3, bits - 1: 5, samples: 36
    info = StreamInfo(
        largest_block=int.from_bytes(head[10:12], "big"),
        largest_frame_bytes=int.from_bytes(head[15:18], "big"),
        sample_rate=packed >> 44,
        channels=(packed >> 41 & 0x7) + 1,
        bits=(packed >> 36 & 0x1F) + 1,
        num_samples=packed & 0xFFFFFFFFF,
    )
    if not info.sample_rate:
        raise AudioError("not audio: the FLAC header says 0 Hz")
    return info


def frame_headers_backwards(data: memoryview, info: StreamInfo) -> Iterator[FrameHeader]:
    """All valid frame headers in `data`, from the end; with CRC-8 right by chance, once in some 10^7 bytes."""
    raw = bytes(data)
    end = len(raw)
    while (offset := max(raw.rfind(sync, 0, end) for sync in _SYNCS)) >= 0:
        if header := _parse_frame_header(raw, offset, info):
            yield header
        end = offset + 1


def single_frame_file(stream_header: memoryview, block_size: int, frame: memoryview) -> bytes:
    """A FLAC file of one frame of another file, so that a decoder can check that frame alone.

    Args:
        stream_header: The first 42 bytes of the other file.
        block_size: Samples of the frame.
        frame: Its bytes; what follows them does no harm.
    """
    last_block_flag = b"\x80"
    header = with_total(stream_header, block_size)
    return b"".join((header[:4], last_block_flag, header[5:], frame))


def with_total(data: memoryview, num_samples: int) -> bytes:
    """The same FLAC file, or as much as is given of it, with another number of samples in its header."""
    packed = int.from_bytes(data[18:26], "big") >> 36 << 36 | num_samples
    return b"".join((data[:18], packed.to_bytes(8, "big"), data[26:]))


def _parse_frame_header(raw: bytes, offset: int, info: StreamInfo) -> FrameHeader | None:
    header = raw[offset : offset + 16]
    if len(header) < 6:
        return None
    block_code, rate_code = header[2] >> 4, header[2] & 0xF
    coded_number = _utf8_number(header)
    if not block_code or rate_code == 15 or header[3] & 1 or coded_number is None:
        return None
    number, position = coded_number
    extra_bytes = {6: 1, 7: 2}.get(block_code, 0)
    block_extra = int.from_bytes(header[position : position + extra_bytes], "big")
    position += extra_bytes + {12: 1, 13: 2, 14: 2}.get(rate_code, 0)
    if position >= len(header) or _crc8(header[:position]) != header[position]:
        return None
    variable_block_size = header[1] & 1
    first_sample = number if variable_block_size else number * info.largest_block
    return FrameHeader(offset, first_sample, _block_size(block_code, block_extra))


def _utf8_number(header: bytes) -> tuple[int, int] | None:
    """The frame or sample number, coded as in UTF-8 but up to 36 bits, and the offset behind it."""
    first = header[4]
    if first < 0x80:
        return first, 5
    followers = 7 - (first ^ 0xFF).bit_length()
    if not 1 <= followers <= 6 or len(header) < 5 + followers:
        return None
    number = first & (0x3F >> followers)
    for byte in header[5 : 5 + followers]:
        if byte >> 6 != 0b10:
            return None
        number = number << 6 | byte & 0x3F
    return number, 5 + followers


def _block_size(code: int, extra: int) -> int:
    if code == 1:
        return 192
    if code in (6, 7):
        return extra + 1
    return 576 << code - 2 if code < 6 else 256 << code - 8


def _crc8(data: bytes) -> int:
    crc = 0
    for byte in data:
        crc = _CRC8[crc ^ byte]
    return crc
