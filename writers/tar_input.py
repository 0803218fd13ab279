"""A tar that is being indexed: a seekable file on a disk or in a store, read by ranges, and what was read of it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, cast

from uttershard.pipeline.dataset.digest import FileDigest
from uttershard.pipeline.dataset.files import StorageOptions, local_path
from uttershard.pipeline.dataset.tar import TarError
from uttershard.pipeline.remote.store import Store

from .archives import open_file
from .store_file import StoreFile

_AHEAD_BYTES = 20 << 10
"""Fetched from a header on: small members, the next header and the 16 KB that tell a length are one request."""
_PIECE = 8 << 20


@dataclass(frozen=True)
class TarInput:
    """An open tar."""

    address: str
    file: BinaryIO
    size: int
    version: str | int | None
    """What changes when the tar does: the time of its last change, or its ETag."""
    store: Store | None = None

    def fetched_bytes(self) -> int:
        """Return how much was read from a store; 0 for a local file."""
        return 0 if self.store is None else self.store.take_counts()["fetched_bytes"]


@contextmanager
def open_tar(address: str, options: StorageOptions | None, *, whole: bool) -> Iterator[TarInput]:
    """Open a tar.

    Args:
        address: Its path or address.
        options: Keyword arguments of the fsspec file system.
        whole: Whether all of it will be read, so that a store is asked for large pieces.

    Raises:
        DataError: It does not exist.
        StorageError: It can't be read.
    """
    if local_path(address) is None:
        store = Store(options)
        found = store.head(address)
        file = StoreFile(store, address, found.size, _PIECE if whole else _AHEAD_BYTES)
        yield TarInput(address, cast(BinaryIO, file), found.size, found.etag, store)
        return
    with open_file(address) as local:
        about = os.fstat(local.fileno())
        yield TarInput(address, local, about.st_size, about.st_mtime_ns)


class ReadOnce:
    """Reads a file from its beginning to its end and digests it; some of its bytes are looked at on the way."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = FileDigest()

    def read_span(self, begin: int, end: int) -> bytes:
        """Read on to `begin`, and return what is from there to `end`."""
        self.read_to(begin)
        return self._read(end - begin)

    def read_to(self, end: int) -> None:
        """Read on, and forget."""
        while self.digest.nbytes < end:
            self._read(min(_PIECE, end - self.digest.nbytes))

    def _read(self, count: int) -> bytes:
        self._file.seek(self.digest.nbytes)
        data = self._file.read(count)
        if len(data) != count:
            raise TarError(f"the tar ends before byte {self.digest.nbytes + count}: it has been cut")
        self.digest.update(data)
        return data
