"""The pages of an Ogg file (RFC 3533): walking them, checking them, and giving the stream a number of our own.

"OggS" | version (1) | flags (1) | granule position (8) | serial (4) | page number (4) | CRC-32 (4) | segments (1)
| size of each segment (1) | body
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from .base import AudioError

HEADER_BYTES = 27
LARGEST_PAGE_BYTES = HEADER_BYTES + 255 + 255 * 255

_SERIAL, _CRC = slice(14, 18), slice(22, 26)
_FIRST_PAGE_FLAG, _LAST_PAGE_FLAG = 0x02, 0x04
_REVERSED_BITS = bytes(int(f"{value:08b}"[::-1], 2) for value in range(256))


@dataclass(frozen=True, slots=True)
class Page:
    """Where a page lies in the file, and what its flags say."""

    start: int
    end: int
    flags: int

    @property
    def opens_stream(self) -> bool:
        """Whether it is the first page of its logical stream."""
        return bool(self.flags & _FIRST_PAGE_FLAG)

    @property
    def closes_stream(self) -> bool:
        """Whether it is the last page of its logical stream."""
        return bool(self.flags & _LAST_PAGE_FLAG)


def page_at(data: memoryview, start: int) -> Page:
    """The page that starts at `start`.

    Raises:
        AudioError: None does, or it is cut.
    """
    header = data[start : start + HEADER_BYTES]
    if len(header) < HEADER_BYTES:
        raise AudioError("truncated: the file ends within an Ogg page")
    if bytes(header[:4]) != b"OggS":
        raise AudioError(f"damaged: no Ogg page at byte {start}, where the one before ends")
    body = start + HEADER_BYTES + header[26]
    end = body + sum(data[start + HEADER_BYTES : body])
    if end > len(data):
        raise AudioError("truncated: the file ends within an Ogg page")
    return Page(start, end, header[5])


def closing_serial(tail: memoryview) -> bytes | None:
    """The number of the stream that the end of a file, `LARGEST_PAGE_BYTES` of it, closes with a whole page."""
    raw, start = bytes(tail), len(tail)
    # "OggS" may also come up by chance within a packet, but hardly where a page of just that length would start.
    while (start := raw.rfind(b"OggS", 0, start)) >= 0:
        body = start + HEADER_BYTES + (raw[start + 26] if start + 26 < len(raw) else 0)
        if body + sum(raw[start + HEADER_BYTES : body]) == len(raw):
            return serial_at(tail, start) if raw[start + 5] & _LAST_PAGE_FLAG else None
    return None


def pages(data: memoryview) -> Iterator[Page]:
    """All pages of a file, which has to consist of nothing else.

    Raises:
        AudioError: The file is cut, or something else lies between two pages.
    """
    start = 0
    while start < len(data):
        page = page_at(data, start)
        yield page
        start = page.end


def checked_links(data: memoryview) -> list[memoryview]:
    """The links of a whole Ogg file, each page checked against its CRC: one, or several if it is chained.

    A link is a stream of its own; recorders and `cat` put them one after the other. The end of a stream need not be
    marked, for a recorder that was stopped marks none: but a packet must end there.

    Raises:
        AudioError: The file is cut or damaged, or its streams run side by side.
    """
    starts: list[int] = []
    last: Page | None = None
    for page in pages(data):
        raw = bytes(data[page.start : page.end])
        if _crc(raw) != raw[_CRC]:
            raise AudioError(f"damaged: the Ogg page at byte {page.start} does not fit its checksum")
        if page.opens_stream:
            if last is not None and last.opens_stream:
                raise AudioError("an Ogg file of several streams side by side (a video?) is not supported")
            starts.append(page.start)
        elif not starts:
            raise AudioError("truncated: the first Ogg page does not open a stream")
        last = page
    if last is None or not (last.closes_stream or _ends_packet(data, last)):
        raise AudioError("truncated: the last Ogg page ends within a packet")
    return [with_end_mark(data[start:end]) for start, end in zip(starts, [*starts[1:], len(data)], strict=True)]


def with_end_mark(link: memoryview) -> memoryview:
    """The same link with its last page marked as the last; libsndfile takes no Opus without."""
    last = 0
    for page in pages(link):
        last = page.start
    if link[last + 5] & _LAST_PAGE_FLAG:
        return link
    raw = bytearray(link[last:])
    raw[5] |= _LAST_PAGE_FLAG
    raw[_CRC] = _crc(bytes(raw))
    return memoryview(bytes(link[:last]) + bytes(raw))


def serial_at(data: memoryview, start: int) -> bytes:
    """The number of the stream that a page belongs to."""
    return bytes(data[start:][_SERIAL])


def _ends_packet(data: memoryview, page: Page) -> bool:
    segments = data[page.start + 26]
    # A packet goes on behind a segment of 255 bytes.
    return bool(segments) and data[page.start + HEADER_BYTES + segments - 1] < 255


def with_serial(data: bytes, serial: int) -> bytes:
    """The same Ogg file with another number for its stream, so that equal audio can give equal bytes.

    Encoders draw the number at random, to keep streams apart that are joined into one file.
    """
    renumbered = []
    for page in pages(memoryview(data)):
        raw = bytearray(data[page.start : page.end])
        raw[_SERIAL] = serial.to_bytes(4, "little")
        raw[_CRC] = _crc(bytes(raw))
        renumbered.append(bytes(raw))
    return b"".join(renumbered)


def _crc(page: bytes) -> bytes:
    """CRC-32 of a page, its own field taken as zero.

    Ogg's CRC has zlib's polynomial, but takes the highest bit first, starts at zero and is not inverted: so it is
    zlib's on bytes with their bits reversed, with the inversions undone.
    """
    blank = page[: _CRC.start] + bytes(4) + page[_CRC.stop :]
    reversed_crc = zlib.crc32(blank.translate(_REVERSED_BITS), 0xFFFFFFFF) ^ 0xFFFFFFFF
    # As a little-endian number with all bits reversed: reverse the order of the bytes, and the bits of each.
    return reversed_crc.to_bytes(4, "big").translate(_REVERSED_BITS)
