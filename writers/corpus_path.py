"""Paths of a corpus: in a local folder (pathlib's own), within an archive, or in a store; one set of verbs for all.

/data/train/wav.scp                local
/data/train.tar.gz                 an archive; its one top folder, if it has just one, is taken for the corpus
/data/train.zip/lists/train.jsonl  a file within an archive
s3://bucket/train/wav.scp          anything fsspec knows
"""

import os
import posixpath
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeAlias

from uttershard.pipeline.dataset.files import local_path
from uttershard.pipeline.errors import DataError, StorageError

from .archives import Archive, is_archive, open_file, read_archive
from .audio_files import file_stamp, open_audio
from .listing import Refusal
from .source_store import open_filesystem


class _Files(Protocol):
    """Where the files of virtual paths are."""

    @property
    def root(self) -> str:
        """The folder that relative addresses of a fingerprint count from."""
        ...

    def uri(self, name: str) -> str | None:
        """Return the address of a file, or None if it is not there."""

    def is_file(self, name: str) -> bool:
        """Say whether a file is there."""

    def names(self, folder: str) -> Iterator[str]:
        """Yield the files below a folder, sorted."""


@dataclass(frozen=True)
class VirtualPath:
    """A path that is not on a local disk; as much of pathlib's interface as readers of corpora need."""

    files: _Files = field(repr=False)
    address: str
    """Of what holds the files."""
    inner: str = ""
    """Path within it, without a slash at either end."""

    def __str__(self) -> str:
        return f"{self.address}/{self.inner}" if self.inner else self.address

    def __truediv__(self, name: str) -> "VirtualPath":
        return VirtualPath(self.files, self.address, posixpath.normpath(f"{self.inner}/{name}").strip("/"))

    @property
    def name(self) -> str:
        """The last part."""
        return posixpath.basename(self.inner) or posixpath.basename(self.address)

    @property
    def suffix(self) -> str:
        """The ending of the name, with its dot."""
        return posixpath.splitext(self.name)[1]

    @property
    def parent(self) -> "VirtualPath":
        """The folder that holds it."""
        return VirtualPath(self.files, self.address, posixpath.dirname(self.inner))

    def is_file(self) -> bool:
        """Say whether it is a file."""
        return self.files.is_file(self.inner)

    def is_dir(self) -> bool:
        """Say whether it is a folder with a file somewhere below it."""
        return not self.is_file() and next(self.files.names(self.inner), None) is not None


CorpusPath: TypeAlias = Path | VirtualPath


def corpus_path(address: str) -> CorpusPath:
    """Return the path of a corpus.

    Raises:
        DataError: It is in an archive that is damaged, or made to do harm.
    """
    archive, inner = _split_archive(address)
    if archive is not None:
        files = _ArchiveFiles(_archive(archive, file_stamp(archive)))
        return VirtualPath(files, archive, inner or files.only_folder())
    path = local_path(address)
    if path is not None:
        return Path(path).absolute()
    base, _, name = address.rstrip("/").rpartition("/")
    return VirtualPath(_RemoteFiles(base), base, name)


@lru_cache(maxsize=2)
def _archive(address: str, stamp: tuple[int, int]) -> Archive:
    """List an archive once, though it is looked at to guess what it is, then read."""
    return read_archive(address)


def is_within_archive(address: str) -> bool:
    """Say whether an address leads into an archive, judged without opening it."""
    archive, inner = _split_archive(address)
    return archive is not None and bool(inner)


def open_path(path: CorpusPath) -> AbstractContextManager[BinaryIO]:
    """Open a file of a corpus for reading bytes.

    Raises:
        DataError: It does not exist.
        StorageError: It can't be read.
    """
    return _open_virtual(path) if isinstance(path, VirtualPath) else open_file(str(path))


def read_path(path: CorpusPath) -> bytes:
    """Read a small file of a corpus (see `open_path`)."""
    with open_path(path) as file:
        return file.read()


def files_below(folder: CorpusPath) -> Iterator[str]:
    """Yield the files below a folder, by their path from there, in sorted folders.

    Hidden ones are not looked at (macOS leaves `._name.wav` about); links to folders are followed, into a loop once.
    """
    if isinstance(folder, VirtualPath):
        skip = len(folder.inner) + 1 if folder.inner else 0
        for name in folder.files.names(folder.inner):
            relative = name[skip:]
            if not any(part.startswith(".") for part in relative.split("/")):
                yield relative
        return
    visited: set[str] = set()
    for place, folders, files in os.walk(folder, followlinks=True, onerror=_raise):
        real = os.path.realpath(place)
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        inner = os.path.relpath(place, folder)
        for name in sorted(files):
            if not name.startswith("."):
                yield name if inner == "." else f"{inner}/{name}"


def uri_of(path: CorpusPath) -> str:
    """Return the address of a file, as a listing holds it."""
    if isinstance(path, VirtualPath):
        uri = path.files.uri(path.inner)
        if uri is None:
            raise DataError(f"{path}: does not exist")
        return uri
    return str(path)


def root_of(folder: CorpusPath) -> str:
    """Return the folder that addresses count from in a fingerprint: an archive may be moved, as a folder may."""
    return folder.files.root if isinstance(folder, VirtualPath) else str(folder)


def refused_members(path: CorpusPath) -> list[Refusal]:
    """Return what the archive holds that is not read: links, names that leave its folder, bombs."""
    files = path.files if isinstance(path, VirtualPath) else None
    return list(files.archive.refused) if isinstance(files, _ArchiveFiles) else []


@contextmanager
def _open_virtual(path: VirtualPath) -> Iterator[BinaryIO]:
    with open_audio(uri_of(path)) if isinstance(path.files, _ArchiveFiles) else open_file(uri_of(path)) as file:
        yield file


@dataclass(frozen=True)
class _ArchiveFiles:
    archive: Archive

    @cached_property
    def _sorted(self) -> list[str]:
        return sorted(self.archive.uris, key=lambda name: name.split("/"))

    @property
    def root(self) -> str:
        return posixpath.dirname(self.archive.address)

    def uri(self, name: str) -> str | None:
        return self.archive.uris.get(name)

    def is_file(self, name: str) -> bool:
        return name in self.archive.uris

    def names(self, folder: str) -> Iterator[str]:
        prefix = f"{folder}/" if folder else ""
        return (name for name in self._sorted if name.startswith(prefix))

    def only_folder(self) -> str:
        """Return the folder that holds all files, the deepest such one; empty if there is none."""
        if not self.archive.uris:
            return ""
        folders = {posixpath.dirname(name) for name in self.archive.uris}
        return posixpath.commonpath(folders) if "" not in folders else ""


@dataclass(frozen=True)
class _RemoteFiles:
    base: str

    @property
    def root(self) -> str:
        return self.base

    @cached_property
    def _filesystem(self) -> tuple[Any, str]:
        return open_filesystem(self.base)

    def uri(self, name: str) -> str | None:
        # Not looked up: a corpus of a million files would be a million requests. Who opens it will see.
        return f"{self.root}/{name}"

    def is_file(self, name: str) -> bool:
        filesystem, path = self._filesystem
        try:
            return bool(filesystem.isfile(f"{path}/{name}"))
        except OSError as error:
            raise StorageError(f"{self.root}/{name}: can't be looked up ({type(error).__name__}: {error})") from error

    def names(self, folder: str) -> Iterator[str]:
        filesystem, path = self._filesystem
        try:
            found = filesystem.find(f"{path}/{folder}".rstrip("/"))
        except OSError as error:
            raise StorageError(f"{self.root}/{folder}: can't be listed ({type(error).__name__}: {error})") from error
        yield from sorted(str(name)[len(path) + 1 :] for name in found)


def _split_archive(address: str) -> tuple[str | None, str]:
    """Split an address behind the first part that is an archive."""
    parts = address.rstrip("/").split("/")
    for count, part in enumerate(parts, 1):
        head = "/".join(parts[:count])
        if is_archive(part) and _may_be_file(head):
            path = local_path(head)
            return head if path is None else str(Path(path).absolute()), "/".join(parts[count:])
    return None, ""


def _may_be_file(address: str) -> bool:
    path = local_path(address)
    return path is None or Path(path).is_file()


def _raise(error: OSError) -> None:
    raise StorageError(f"{error.filename}: can't be read ({error.strerror or error})") from error
