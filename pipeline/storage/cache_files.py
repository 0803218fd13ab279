"""The files of a cache and their locks.

    <cache>/xxh3_128-<hex>.tar     a whole tar, read-only; it got this name when its digest was found right
    <cache>/xxh3_128-<hex>.part    a tar being fetched, locked by whoever fetches it; not locked: left by a killed job
    <cache>/lock                   locked while room is made

There is no index that could be out of step: names are digests, the time of last use is the file's atime (set by us, so
that it counts on every mount), sizes are sizes. Locks are the kernel's (flock): a process that dies lets go of them.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..dataset.digest import FileDigest, is_of_bytes

TAR_ENDING = ".tar"
PART_ENDING = ".part"
_ALGORITHM_MARK = ":"
_LOCK_NAME = "lock"
_LOCK_SECONDS = 10.0
_LOCK_POLL_SECONDS = 0.01
_DIGEST_STEP = 512 << 10
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error numbers of a disk that has no room."""


@dataclass(frozen=True)
class Entry:
    """One file of a cache."""

    path: Path
    digest: str
    nbytes: int
    last_used: float
    admitted: float
    is_part: bool


class CacheFolder:
    """A cache folder shared by the processes and jobs of a node."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def tar(self, digest: str) -> Path:
        """Where a whole tar is, if it is."""
        return self.path / f"{_as_name(digest)}{TAR_ENDING}"

    def part(self, digest: str) -> Path:
        """Where a tar is while it is fetched."""
        return self.path / f"{_as_name(digest)}{PART_ENDING}"

    def has(self, digest: str, nbytes: int) -> bool:
        """Whether a tar is here, whole. One of another size was cut by somebody: it is removed."""
        path = self.tar(digest)
        try:
            found = path.stat().st_size
        except OSError:  # not there, or no folder to be there
            return False
        if found != nbytes:
            self.remove(digest)
        return found == nbytes

    def remove(self, digest: str) -> None:
        """Remove a tar that is damaged."""
        with suppress(PermissionError):  # another user's, in a folder where only owners may remove
            self.tar(digest).unlink(missing_ok=True)

    def touch(self, digest: str) -> None:
        """Note that a tar is being used."""
        path = self.tar(digest)
        # Evicted this moment, or another user's file: then the order of eviction is a little worse, no more.
        with suppress(OSError):
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))

    def entries(self) -> list[Entry]:
        """Return all tars and parts, in no order."""
        entries = {}
        for item in os.scandir(self.path):
            path = Path(item.path)
            if path.suffix not in (TAR_ENDING, PART_ENDING):
                continue
            with suppress(FileNotFoundError):  # evicted or renamed this moment
                stat = item.stat()
                digest = path.stem.replace("-", _ALGORITHM_MARK, 1)
                part = path.suffix == PART_ENDING
                # By inode: a part that becomes a tar this moment may be seen as both.
                entries[stat.st_ino] = Entry(path, digest, stat.st_size, stat.st_atime, stat.st_mtime, part)
        return list(entries.values())

    def is_right(self, entry: Entry) -> bool:
        """Whether a tar still has its digest, or has one that says nothing of its bytes."""
        running = FileDigest()
        with entry.path.open("rb", buffering=0) as file:
            step = memoryview(bytearray(_DIGEST_STEP))
            while count := file.readinto(step):
                running.update(step[:count])
        return not is_of_bytes(entry.digest) or running.text() == entry.digest

    def nbytes(self) -> int:
        """Return the bytes of all tars and parts."""
        return sum(entry.nbytes for entry in self.entries())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the folder.

        Raises:
            TimeoutError: Somebody held it for long: stopped, or on a file system where locks do not work.
        """
        handle = _open_lock(self.path / _LOCK_NAME)
        try:
            deadline = time.monotonic() + _LOCK_SECONDS
            while not _try_lock(handle):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{self.path / _LOCK_NAME} was locked for {_LOCK_SECONDS:g} s")
                time.sleep(_LOCK_POLL_SECONDS)
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)  # also for a child that was forked meanwhile
            os.close(handle)


class Part:
    """A tar being fetched into a cache, and the lock on it."""

    def __init__(self, folder: CacheFolder, digest: str, handle: int) -> None:
        self._folder = folder
        self._digest = digest
        self._handle = handle

    def reserve(self, nbytes: int) -> None:
        """Take the room on the disk now, so that a full disk shows before anything is fetched."""
        os.ftruncate(self._handle, 0)
        os.posix_fallocate(self._handle, 0, nbytes)

    def write(self, start: int, chunks: Sequence[memoryview]) -> None:
        """Write consecutive bytes."""
        for view in chunks:
            while view:
                written = os.pwrite(self._handle, view, start)
                view, start = view[written:], start + written

    def digest(self) -> str:
        """Return the digest of what is on the disk."""
        running, position = FileDigest(), 0
        # Into the same bytes again and again: they stay in the processor's cache, fresh ones cost twice as much.
        step = memoryview(bytearray(_DIGEST_STEP))
        while count := os.preadv(self._handle, [step], position):
            running.update(step[:count])
            position += count
        return running.text()

    def admit(self) -> None:
        """Give it its final name; from then on others read it."""
        os.fchmod(self._handle, 0o444)
        os.utime(self._handle)
        self._folder.part(self._digest).rename(self._folder.tar(self._digest))

    def discard(self) -> None:
        """Remove it."""
        self._folder.part(self._digest).unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the lock, also for a child process that has inherited it."""
        fcntl.flock(self._handle, fcntl.LOCK_UN)
        os.close(self._handle)


def lock_part(folder: CacheFolder, digest: str) -> Part | None:
    """Return the part file of a tar, locked and empty, or None if somebody is fetching that tar or has just done so.

    Raises:
        OSError: The folder or the file can't be written.
    """
    path = folder.part(digest)
    try:
        handle = _open_part(path)
    except PermissionError:
        # Another user's: it is let be while that one fetches, else ours takes its place.
        if not path.exists():
            raise
        if not remove_stale_part(path):
            return None
        handle = _open_part(path)
    try:
        # A file that was renamed or removed since it was opened is no part any more, and must not be touched.
        if _try_lock(handle) and _is_at(handle, path):
            os.ftruncate(handle, 0)  # what a killed job had reserved is no longer counted as taken
            return Part(folder, digest, handle)
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def remove_stale_part(path: Path) -> bool:
    """Remove a part file if nobody holds it; return whether it is gone."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        stale = _try_lock(handle) and _is_at(handle, path)
        if stale:
            path.unlink(missing_ok=True)
        return stale
    finally:
        os.close(handle)


def _open_part(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _open_lock(path: Path) -> int:
    """Open the lock of a folder so that other users can, too: whoever can read it can lock it."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        # Not with one that another user has made meanwhile: in a folder like /tmp the kernel forbids O_CREAT then.
        with suppress(FileExistsError):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
            os.fchmod(handle, 0o644)  # whatever the umask
            return handle
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _as_name(digest: str) -> str:
    return digest.replace(_ALGORITHM_MARK, "-", 1)
