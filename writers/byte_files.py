"""Files within files: a range of bytes, a gzip stream that can seek, a member of a zip; each read-only and seekable."""

import io
import zlib
from typing import BinaryIO

from uttershard.pipeline.reading.codecs import AudioError
from uttershard.pipeline.reading.codecs.read_only import ReadOnlyFile

_IN = 1 << 16
_OUT = 1 << 20
_SPACING = 1 << 22
_MOST_SNAPSHOTS = 512
"""A snapshot takes about 50 KB (zlib's window and tables): 25 MB for the largest archive."""

_BOMB_FROM_BYTES = 64 << 20
_BOMB_RATIO = 200
"""Audio packs 2-fold, text 5-fold; deflate's limit, which only repetition reaches, is 1,032."""

_MOST_UNPACKED_BYTES = 4 << 30
"""A packed member is unpacked in memory; three hours of 48 kHz stereo in 32 bits are 4 GiB."""

_STORED, _DEFLATED = 0, 8
_LOCAL_HEADER_BYTES = 30


class ArchiveError(AudioError):
    """An archive is damaged, is not what it says, or is made to do harm; a verdict on what is read from it."""


class ReusedBuffer:
    """Memory that one file after the other is read into.

    Dask has its workers give freed memory back at once, so fresh memory for each file costs a page fault for every
    4 KB of it: half as much again as copying the file.
    """

    def __init__(self) -> None:
        self._memory = bytearray()

    def read(self, file: io.RawIOBase, nbytes: int) -> memoryview:
        """Read a file to its end; what is returned holds until the next read.

        Args:
            file: Unbuffered, at its beginning.
            nbytes: How large it is said to be.
        """
        if len(self._memory) <= nbytes:  # one byte more than the file, to see its end
            self._memory = bytearray(nbytes + nbytes // 4 + 1)
        view, end = memoryview(self._memory), 0
        while count := file.readinto(view[end:]):
            end += count
            if end == len(view):  # it has grown since
                self._memory = self._memory + bytearray(end)
                view = memoryview(self._memory)
        return view[:end]


class RangeFile(ReadOnlyFile):
    """Some bytes of a seekable file as a file of their own."""

    def __init__(self, file: BinaryIO, offset: int, nbytes: int) -> None:
        super().__init__(nbytes)
        self._file, self._offset, self._stop = file, offset, offset + nbytes

    def _piece(self, position: int, count: int) -> bytes:
        begin = self._offset + position
        self._file.seek(begin)
        return self._file.read(max(0, min(count, self._stop - begin)))


class SeekableGzip(ReadOnlyFile):
    """What a gzip file unpacks to, with seeking: a snapshot of the inflater is kept every few megabytes.

    The first visit of a place inflates all before it; later ones no more than lies between two snapshots.
    """

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(None)
        self._file = file
        self._spacing = _SPACING
        self._start, self._read, self._tail, self._block = 0, 0, b"", b""
        # (place in the output, place in the input, input read but not consumed, inflater)
        self._snapshots = [(0, 0, b"", zlib.decompressobj(31))]
        self._inflater = self._snapshots[0][3].copy()

    def _piece(self, position: int, count: int) -> bytes:
        if not self._start <= position < self._start + len(self._block):
            self._go_to(position)
        at = position - self._start
        return self._block[at : at + count]

    def _go_to(self, position: int) -> None:
        """Make `_block` the one that holds a place; an empty one at the end of the stream."""
        nearest = max(number for number, entry in enumerate(self._snapshots) if entry[0] <= position)
        if not self._start + len(self._block) <= position or self._snapshots[nearest][0] > self._start:
            self._restore(nearest)
        while self._start + len(self._block) <= position:
            self._start += len(self._block)
            self._block = self._inflate()
            if not self._block:
                return

    def _restore(self, number: int) -> None:
        self._start, self._read, self._tail, inflater = self._snapshots[number]
        self._inflater = inflater.copy()
        self._block = b""

    def _inflate(self) -> bytes:
        """Return the next piece of output, empty at the end."""
        self._snapshot()
        while True:
            data = self._tail or self._next_input()
            if not data:
                if not self._inflater.eof and self._start:
                    raise ArchiveError("the gzip stream ends in the middle: the file has been cut")
                return b""
            if self._inflater.eof:  # a gzip file may be several, one after the other; tape blocks end in zeros
                if not data.strip(b"\0"):
                    self._tail = b""
                    continue
                self._inflater = zlib.decompressobj(31)
            try:
                piece = self._inflater.decompress(data, _OUT)
            except zlib.error as error:
                raise ArchiveError(f"damaged gzip stream ({error})") from error
            self._tail = self._inflater.unused_data if self._inflater.eof else self._inflater.unconsumed_tail
            if piece:
                self._refuse_bomb(self._start + len(piece))
                return piece

    def _next_input(self) -> bytes:
        self._file.seek(self._read)
        data = self._file.read(_IN)
        self._read += len(data)
        return data

    def _snapshot(self) -> None:
        if self._start - self._snapshots[-1][0] < self._spacing or self._inflater.eof:
            return
        self._snapshots.append((self._start, self._read, self._tail, self._inflater.copy()))
        if len(self._snapshots) > _MOST_SNAPSHOTS:
            self._snapshots = self._snapshots[::2]
            self._spacing *= 2

    def _refuse_bomb(self, unpacked: int) -> None:
        if unpacked > _BOMB_FROM_BYTES and unpacked > _BOMB_RATIO * self._read:
            raise ArchiveError(f"unpacks to more than {_BOMB_RATIO} times its size: taken for a bomb")


def zip_problem(packed: int, nbytes: int, method: int) -> str | None:
    """Say why a member of a zip is not read, or return None if it is."""
    if method not in (_STORED, _DEFLATED):
        return f"packed by method {method}; only stored and deflated members are read"
    if method == _DEFLATED and nbytes > _MOST_UNPACKED_BYTES:
        return f"claims to unpack to {nbytes} bytes; the limit is {_MOST_UNPACKED_BYTES}"
    if nbytes > _BOMB_FROM_BYTES and nbytes > _BOMB_RATIO * packed:
        return f"claims to unpack {packed} bytes to {nbytes}, more than {_BOMB_RATIO} times its size: taken for a bomb"
    return None


def open_zip_member(file: BinaryIO, header: int, packed: int, nbytes: int, method: int, crc: int) -> BinaryIO:
    """Open a member by its local header.

    Raises:
        ArchiveError: It is damaged or is not what the directory of the zip promised.
    """
    file.seek(header)
    local = file.read(_LOCAL_HEADER_BYTES)
    if len(local) < _LOCAL_HEADER_BYTES or local[:4] != b"PK\x03\x04":
        raise ArchiveError(f"no member of the zip starts at byte {header}: it is damaged or was replaced")
    name_bytes, extra_bytes = int.from_bytes(local[26:28], "little"), int.from_bytes(local[28:30], "little")
    start = header + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes
    if method == _STORED:
        return buffered(RangeFile(file, start, nbytes))
    file.seek(start)
    inflater = zlib.decompressobj(-15)
    try:
        # Never more than promised, whatever the stream holds.
        data = inflater.decompress(file.read(packed), nbytes + 1)
    except zlib.error as error:
        raise ArchiveError(f"damaged zip member ({error})") from error
    if len(data) != nbytes or zlib.crc32(data) != crc:
        raise ArchiveError(f"damaged zip member: unpacks to {len(data)} bytes, or others, where {nbytes} were promised")
    return io.BytesIO(data)


def buffered(file: io.RawIOBase) -> BinaryIO:
    """Return the file with a buffer, for the many small reads of header parsers."""
    return io.BufferedReader(file)
