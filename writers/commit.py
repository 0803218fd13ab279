"""Committing files: a file appears whole or not at all, and a full disk says so.

A file is written under a name of its own in the job's `tmp/` folder (same file system), forced to disk, then renamed.
"""

import contextlib
import errno
import io
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from uttershard.pipeline.dataset.files import local_path
from uttershard.pipeline.errors import ConfigError, StorageError
from uttershard.pipeline.remote.faults import redact

from .synced_file import SyncedFile

_FULL = {
    errno.ENOSPC: "no space left",
    errno.EDQUOT: "disk quota used up",
    errno.EFBIG: "no file may get that large (see `ulimit -f`)",
}


class NoSpaceError(StorageError):
    """The target's file system is full: what is done is kept, and the same command goes on once there is room."""


@contextlib.contextmanager
def atomic_write(path: Path, scratch: Path) -> Iterator[BinaryIO]:
    """Open a file that becomes `path` when the block ends, and vanishes if it fails.

    Args:
        path: Where it goes; what is there is replaced.
        scratch: Folder for the unfinished file, on the same file system.

    Raises:
        NoSpaceError: The file system is full.
        StorageError: It could not be written for another reason.
    """
    unfinished = scratch / f"{path.name}.{uuid.uuid4().hex}"
    with storage_errors(path):
        try:
            with SyncedFile(unfinished) as raw, io.BufferedWriter(raw, os.fstat(raw.fileno()).st_blksize) as file:
                yield file
                file.flush()
                raw.sync()
            unfinished.replace(path)
            sync_folder(path.parent)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


def write_atomically(path: Path, scratch: Path, data: bytes) -> None:
    """Write a whole small file (see `atomic_write`)."""
    with atomic_write(path, scratch) as file:
        file.write(data)


def local_folder(address: str, what: str) -> Path:
    """Return the folder at an address.

    Raises:
        ConfigError: It is in a store.
    """
    path = local_path(address)
    if path is None:
        raise ConfigError(f"{redact(address)}: {what} written to a local folder; copy it into the store from there")
    return Path(path)


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system says about writing `path` into a StorageError."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        if error.errno in _FULL:
            raise NoSpaceError(f"{_FULL[error.errno]} on {path.parent} (while writing {path.name})") from error
        raise StorageError(f"{path}: could not be written ({error.strerror or error})") from error


def sync_folder(folder: Path) -> None:
    """Force a folder's entries to disk: a rename is only safe from a power cut after this."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
