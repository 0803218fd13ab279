"""The lock of a job: one process drives it, on whatever host; the lock of a dead one is taken over.

flock first: the kernel releases it when the process ends, however it ends, and NFS carries it between hosts. Some
mounts keep locks to each host (Lustre's `localflock`, NFS with `local_lock`) or have none. So the holder also counts
up in the file, and whoever finds the name of another host there watches whether it still does. Nothing is compared
with a clock of another host.
"""

import contextlib
import errno
import fcntl
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from uttershard.pipeline.errors import ConfigError

from .commit import storage_errors

BEAT_SECONDS = 5.0
DEAD_SECONDS = 30.0
"""A holder that has not counted for so long is dead: several beats, and more than a file server's short pause."""

_POLL_SECONDS = 0.5
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_LINE_BYTES = 300


@contextlib.contextmanager
def hold_lock(path: Path, *, beat_seconds: float = BEAT_SECONDS, dead_seconds: float = DEAD_SECONDS) -> Iterator[None]:
    """Hold a job alone.

    Args:
        path: The lock file; its folder is made. The file may be removed while it is held: the job is over then.
        beat_seconds: How often the holder counts up.
        dead_seconds: How long another host's holder is watched.

    Raises:
        ConfigError: Another process drives the job; the message names its host and pid.
    """
    descriptor = _acquire(path, dead_seconds)
    over = threading.Event()
    beats = threading.Thread(target=_beat, args=(descriptor, over, beat_seconds), daemon=True)
    beats.start()
    try:
        yield
    finally:
        over.set()
        beats.join()
        # An empty file tells the next one, wherever it runs, that nobody has to be watched.
        os.ftruncate(descriptor, 0)
        os.close(descriptor)


def _beat(descriptor: int, over: threading.Event, beat_seconds: float) -> None:
    count = 0
    while not over.wait(beat_seconds):
        count += 1
        # A failing disk is the job's to report; without beats the job is at worst taken for dead.
        with contextlib.suppress(OSError):
            _sign(descriptor, count)


def _sign(descriptor: int, count: int) -> None:
    line = f"host {socket.gethostname()} pid {os.getpid()} beat {count:012d}\n".encode()
    os.pwrite(descriptor, line, 0)
    os.ftruncate(descriptor, len(line))
    os.fsync(descriptor)


def _acquire(path: Path, dead_seconds: float) -> int:
    while True:
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(descriptor, path)
            if _is_current(descriptor, path):
                if _lives_elsewhere(path, dead_seconds):
                    raise _refusal(path)
                if _is_current(descriptor, path):
                    with storage_errors(path):
                        _sign(descriptor, 0)
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        # The job that held it has just finished and removed its folder: this is a lock on a file without a name.
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _refusal(path) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            with storage_errors(path):
                raise


def _lives_elsewhere(path: Path, dead_seconds: float) -> bool:
    """Watch a holder on another host; on this one the kernel has told already that it is dead."""
    first = _read(path)
    if not first or first.split()[1:2] == [socket.gethostname()]:
        return False
    deadline = time.monotonic() + dead_seconds
    while time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        line = _read(path)
        if not line:
            return False  # it has just ended well
        if line != first:
            return True
    return False


def _read(path: Path) -> str:
    """Return what the file says; opened anew, since that is when NFS asks the server again."""
    try:
        with path.open("rb") as file:
            return file.read(_LINE_BYTES).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return ""


def _refusal(path: Path) -> ConfigError:
    holder = _read(path).partition(" beat")[0] or "another process"
    target = path.parent.parent
    return ConfigError(f"{target} is being written by {holder}: wait for it, or stop it and run this command again")


def _is_current(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
