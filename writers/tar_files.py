"""Walking tars that are not in memory: on a disk, in a store, or inside a gzip stream; headers are read and no data."""

import sys
from collections.abc import Callable, Iterator
from typing import BinaryIO, cast

from uttershard.pipeline.dataset.tar import BLOCK, RECORD, Member, TarEndError, TarError, walk_tar

_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
"""The first bytes of what tars are packed with."""
_PIECE = 8 << 20


def walk_tar_file(file: BinaryIO, size: int | None, *, note: Callable[[str], None] | None = None) -> Iterator[Member]:
    """Yield all members of a tar, testing each header.

    Args:
        file: The tar, seekable.
        size: Its bytes; None if that is not known before its end (a gzip stream).
        note: Told, instead of an error, of a tar whose end mark is missing or has something behind it: other tools
            take such a tar as it is.

    Raises:
        TarError: It is damaged, cut or packed.
    """
    if size is not None:
        _refuse_packed(file)
    end = 0
    try:
        # walk_tar asks for slices and for the length, which is all that is here of a memoryview.
        for member in walk_tar(cast(memoryview, _FileView(file, sys.maxsize if size is None else size))):
            yield member
            end = member.end
    except TarEndError:
        if note is None or size is None:
            raise
        note(_describe_end(file, end, size))
    else:
        # Zeros up to a whole record are what tar writes, and have been looked at.
        if size is not None and size > end + RECORD and _next_data(file, end, size) is not None:
            problem = _describe_end(file, end, size)
            if note is None:
                raise TarError(problem)
            note(problem)


class _FileView:
    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, key: slice) -> bytes:
        self._file.seek(key.start)
        return self._file.read(RECORD if key.stop is None else key.stop - key.start)


def _refuse_packed(file: BinaryIO) -> None:
    file.seek(0)
    head = file.read(6)
    for magic, name in _PACKED.items():
        if head.startswith(magic):
            raise TarError(f"it is packed with {name}: a packed tar can't be read by ranges, so unpack it first")


def _describe_end(file: BinaryIO, offset: int, size: int) -> str:
    """Say what is wrong with the end of a tar whose members end at `offset`.

    Raises:
        TarError: Another tar follows, whose members nobody would see.
    """
    after = _next_data(file, offset, size)
    if after is None:
        return f"its members end at byte {offset} without a whole end mark: if it was cut there, members are missing"
    file.seek(after)
    if file.read(BLOCK)[257:262] == b"ustar":
        raise TarError(
            f"another tar follows at byte {after}, which no tool reads (two were joined by `cat`?): join tars with "
            "`tar --concatenate`, or give them one by one"
        )
    return f"{size - after} bytes behind its end mark are not read"


def _next_data(file: BinaryIO, offset: int, size: int) -> int | None:
    """Return where the first block that is not all zeros begins, at or after an offset."""
    for start in range(offset, size, _PIECE):
        file.seek(start)
        piece = file.read(min(_PIECE, size - start))
        zeros = len(piece) - len(piece.lstrip(b"\0"))
        if zeros < len(piece):
            return start + zeros - zeros % BLOCK
    return None
