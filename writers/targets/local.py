"""A local folder (implements Target)."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from uttershard.pipeline.dataset.digest import FileDigest
from uttershard.pipeline.errors import ConfigError

from ..commit import atomic_write, storage_errors, write_atomically
from ..job import JobFolder, lock
from ..progress import Progress
from .base import JOB_FOLDER, Stored, Traffic

_READ_BYTES = 1 << 22


@dataclass(frozen=True)
class LocalTarget:
    """The files of a dataset in a folder."""

    path: Path
    traffic: Traffic = field(default_factory=Traffic, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"{self.path}: a file; the target must be a folder, or not there yet")

    def __str__(self) -> str:
        return str(self.path)

    @property
    def address(self) -> str:
        """The path."""
        return str(self.path)

    @property
    def _job(self) -> JobFolder:
        return JobFolder(self.path)

    def where(self, name: str) -> str:
        """Return the path of a file."""
        return str(self.path / name)

    @contextlib.contextmanager
    def hold(self, has_plan: Callable[[], bool], progress: Progress) -> Iterator[None]:
        """Hold the lock file; a new folder goes again if the job gets nowhere."""
        job, is_new = self._job, not self.path.exists()
        with lock(job):
            job.create()
            job.clear_scratch()
            try:
                yield
            finally:
                job.clear_scratch()
                if not has_plan():
                    job.remove()
                    if is_new and not any(self.path.iterdir()):
                        self.path.rmdir()

    def check_held(self) -> None:
        """Do nothing: nobody takes a lock file's lock over while its holder lives."""

    def listing(self) -> None:
        """Leave it to the workers: reading and digesting files is theirs."""

    def create(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Open a file under another name, which is renamed at the end."""
        return atomic_write(self.path / name, self._job.scratch)

    def put(self, name: str, data: bytes, *, only_new: bool = False) -> None:
        """Write a small file; the lock has seen to it that nobody else does."""
        path = self.path / name
        with storage_errors(path):
            path.parent.mkdir(exist_ok=True)
        write_atomically(path, self._job.scratch, data)

    def read(self, name: str) -> bytes | None:
        """Read a small file."""
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def open(self, name: str, stored: Stored | None) -> BinaryIO:
        """Open a file."""
        return (self.path / name).open("rb")

    def names(self) -> list[str]:
        """List the folder, and the records of a job."""
        if not self.path.exists():
            return []
        with storage_errors(self.path):
            names = [path.name for path in self.path.iterdir() if path.name != JOB_FOLDER]
            records = [*self._job.path.rglob("*.json"), *self._job.path.glob("*/*.parquet")]
            return names + [str(record.relative_to(self.path)) for record in records]

    def size(self, name: str) -> int | None:
        """Look up the size of a file."""
        path = self.path / name
        return path.stat().st_size if path.exists() else None

    def delete(self, name: str) -> None:
        """Unlink a file."""
        with storage_errors(self.path):
            (self.path / name).unlink(missing_ok=True)

    def tag(self, name: str) -> None:
        """Return None: here a digest is read, not remembered."""

    def is_intact(self, name: str, nbytes: int, digest: str, tag: str | None, stored: Stored | None) -> bool:
        """Read and digest a file."""
        path = self.path / name
        if not path.is_file() or path.stat().st_size != nbytes:
            return False
        found = FileDigest()
        with path.open("rb") as file:
            while piece := file.read(_READ_BYTES):
                found.update(piece)
        return found.text() == digest

    def forget_job(self) -> None:
        """Remove `job.json` and the records of finished shards."""
        with storage_errors(self.path):
            self._job.forget()

    def remove_job(self) -> None:
        """Remove the job folder."""
        self._job.remove()
