"""MPEG audio frames, and the Xing header in which encoders say how many there are.

    [ID3v2] | [info frame: a silent frame with "Xing" or "Info" in it] | frame* | [ID3v1, APEv2]

A frame's length follows from its four header bytes. The info frame counts the others and may say, in its LAME part,
how many samples the encoder added before and behind, which decoders then leave out.
"""

from __future__ import annotations

from dataclasses import dataclass

FRAME_HEADER_BYTES = 4
_SEARCHED_BYTES = 65_536
_MPEG1, _MPEG2, _MPEG25 = 3, 2, 0
_LAYER3 = 1

# kbit/s, layer III; index 0 is "free format", which has no length, and 15 is forbidden.
_KBITS = {
    _MPEG1: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0),
    _MPEG2: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0),
    _MPEG25: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0),
}
_RATES = {_MPEG1: (44_100, 48_000, 32_000), _MPEG2: (22_050, 24_000, 16_000), _MPEG25: (11_025, 12_000, 8_000)}


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame's header."""

    mpeg1: bool
    sample_rate: int
    channels: int
    num_bytes: int
    has_crc: bool

    @property
    def info_offset(self) -> int:
        """Where "Xing" stands in an info frame: behind header and side information."""
        side_bytes = (17 if self.channels == 1 else 32) if self.mpeg1 else (9 if self.channels == 1 else 17)
        return FRAME_HEADER_BYTES + side_bytes + (2 if self.has_crc else 0)

    def continues(self, other: Frame) -> bool:
        """Whether both can be of one stream."""
        return (self.mpeg1, self.sample_rate, self.channels) == (other.mpeg1, other.sample_rate, other.channels)


@dataclass(frozen=True, slots=True)
class Stream:
    """How a stream starts.

    Attributes:
        start: Offset of its first frame.
        first: That frame.
        has_info: Whether that frame is an info frame, and no audio.
        promised_frames: How many follow it; None where nothing says so.
        promised_bytes: How many there are from `start` on; None where nothing says so.
    """

    start: int
    first: Frame
    has_info: bool
    promised_frames: int | None
    promised_bytes: int | None


@dataclass(frozen=True, slots=True)
class Walk:
    """What comes of going from frame to frame.

    Attributes:
        frames: Whole frames, the info frame left out.
        runs: Where frames follow each other without anything between them: start and end of each such run.
        cut: Whether the file ends within a frame.
    """

    frames: int
    runs: list[tuple[int, int]]
    cut: bool


def frame_at(data: memoryview | bytes, start: int) -> Frame | None:
    """The layer III frame whose header is at `start`, or None if that is no header."""
    if start + FRAME_HEADER_BYTES > len(data) or data[start] != 0xFF or data[start + 1] & 0xE0 != 0xE0:
        return None
    version, layer = data[start + 1] >> 3 & 3, data[start + 1] >> 1 & 3
    rate_index = data[start + 2] >> 2 & 3
    if version not in _RATES or layer != _LAYER3 or rate_index == 3:
        return None
    kbits, sample_rate = _KBITS[version][data[start + 2] >> 4], _RATES[version][rate_index]
    if not kbits:
        return None
    mpeg1 = version == _MPEG1
    num_bytes = (144_000 if mpeg1 else 72_000) * kbits // sample_rate + (data[start + 2] >> 1 & 1)
    channels = 1 if data[start + 3] >> 6 == 3 else 2
    return Frame(mpeg1, sample_rate, channels, num_bytes, has_crc=not data[start + 1] & 1)


def find_stream(head: memoryview) -> Stream | None:
    """The start of a stream within the first kilobytes of a file, or None."""
    raw = bytes(head)
    start = _next_frame(raw, 0)
    first = None if start is None else frame_at(raw, start)
    if start is None or first is None:
        return None
    info = start + first.info_offset
    if raw[info : info + 4] not in (b"Xing", b"Info"):
        return Stream(start, first, has_info=False, promised_frames=None, promised_bytes=None)
    flags = int.from_bytes(raw[info + 4 : info + 8], "big")
    numbers = [int.from_bytes(raw[info + at : info + at + 4], "big") for at in (8, 12)]
    frames = numbers.pop(0) if flags & 1 else None
    return Stream(start, first, True, frames, numbers[0] if flags & 2 else None)


def walk(data: memoryview, stream: Stream) -> Walk:
    """Go through all frames of a whole file, over gaps too."""
    frames, runs, begin, position = -stream.has_info, list[tuple[int, int]](), stream.start, stream.start
    while position < len(data):
        frame = frame_at(data, position)
        if frame is not None and frame.continues(stream.first):
            position += frame.num_bytes
            frames += position <= len(data)
            continue
        runs.append((begin, position))
        is_tag = bytes(data[position : position + 8]).startswith((b"TAG", b"APETAGEX"))
        following = None if is_tag else _next_frame(data, position + 1)
        if following is None:
            return Walk(frames, runs, cut=False)
        begin = position = following
    return Walk(frames, [*runs, (begin, position)], cut=position > len(data))


def starts_within(data: memoryview, end: int) -> int | None:
    """Where frames start that go on up to `end`, a place that should have been the start of the first."""
    start = 0
    while (found := _next_frame(data, start)) is not None and found < end:
        position = found
        while position < end and (frame := frame_at(data, position)) is not None:
            position += frame.num_bytes
        if position > end:
            return found
        start = found + 1
    return None


def _next_frame(data: memoryview | bytes, start: int) -> int | None:
    """Where the next frame starts whose successor is where it should be (or the end is)."""
    while start < len(data):
        block = bytes(data[start : start + _SEARCHED_BYTES])
        at = -1
        while (at := block.find(b"\xff", at + 1)) >= 0:
            frame = frame_at(data, start + at)
            if frame is not None:
                end = start + at + frame.num_bytes
                after = frame_at(data, end)
                if end == len(data) or (after is not None and after.continues(frame)):
                    return start + at
        start += len(block)
    return None
