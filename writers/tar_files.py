"""Walking tars that are not in memory: on a disk, in a store, or inside a gzip stream; headers are read and no data."""

import sys
from collections.abc import Iterator
from typing import BinaryIO, cast

from uttershard.pipeline.dataset.tar import BLOCK, Member, walk_tar

_END_BYTES = 20 * BLOCK
"""How much behind the end mark is looked at; a record of zeros is what tar writes."""


def walk_tar_file(file: BinaryIO, size: int | None) -> Iterator[Member]:
    """Yield all members of a tar, testing each header.

    Args:
        file: The tar, seekable.
        size: Its bytes; None if that is not known before its end (a gzip stream).

    Raises:
        TarError: It is damaged or cut.
    """
    # walk_tar asks for slices and for the length, which is all that is here of a memoryview.
    return walk_tar(cast(memoryview, _FileView(file, sys.maxsize if size is None else size)))


class _FileView:
    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, key: slice) -> bytes:
        self._file.seek(key.start)
        return self._file.read(_END_BYTES if key.stop is None else key.stop - key.start)
