"""Which utterance a worker is at, kept where its death leaves it behind: one that ends worker after worker is found.

A function of the user's that calls os._exit, or a crash in native code, says nothing: Dask sees a worker that is gone,
and gives the task to the next one. So there is a file for each attempt in the job's scratch folder, which holds the
number of the utterance while it is measured, and nothing between two. Only a process that dies leaves it there, and the
kernel writes out what a dead process has written.
"""

import contextlib
import os
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ..commit import storage_errors

DEADLY = 3
"""So many workers that died at one utterance died of it; one that dies of something else does so anywhere."""

_NUMBER_BYTES = 8


class Attempts:
    """The attempts at a shard, in this run of the job.

    Args:
        scratch: The job's scratch folder.
        shard: Its number.
    """

    def __init__(self, scratch: Path, shard: int) -> None:
        self._scratch = scratch
        self._shard = shard

    def deadly(self) -> int | None:
        """Return the utterance (its number in the shard) that has ended `DEADLY` workers, or None."""
        deaths: Counter[int] = Counter()
        for path in self._scratch.glob(self._name("*")):
            with contextlib.suppress(FileNotFoundError):  # of a process that lives, and has ended its attempt now
                if data := path.read_bytes():
                    deaths[int.from_bytes(data)] += 1
        return next((number for number, count in deaths.items() if count >= DEADLY), None)

    @contextlib.contextmanager
    def attempt(self) -> Iterator["Attempt"]:
        """Begin one."""
        path = self._scratch / self._name(uuid.uuid4().hex)
        with storage_errors(path):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            yield Attempt(path, descriptor)
        finally:
            os.close(descriptor)
            path.unlink(missing_ok=True)

    def _name(self, middle: str) -> str:
        return f"{self._shard:06d}.{middle}.at"


class Attempt:
    """An attempt that goes on."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @contextlib.contextmanager
    def at(self, number: int) -> Iterator[None]:
        """Note that an utterance is measured in the block."""
        with storage_errors(self._path):
            os.pwrite(self._descriptor, number.to_bytes(_NUMBER_BYTES), 0)
        yield
        os.ftruncate(self._descriptor, 0)
