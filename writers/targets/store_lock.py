"""The lock of a job in a store: an object with the host and pid of its holder; one process drives the job.

It is put only if there is none (a conditional put), and its holder puts it anew every few seconds. A second job finds:

    holder on this host, its process gone      taken over at once
    holder on this host, alive                 refused, naming it
    holder on another host                     watched: if the object stays as it is for DEAD_SECONDS, it is taken over

Taking over is a put under the condition that the object is still the one that was watched. A holder that was only
suspended finds that out at its next beat and stops before its next write of a record or the manifest. Nothing is
compared with a clock of another host. Stores without conditional puts get the same with a small gap between looking
and putting, which is said once.
"""

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Protocol

from uttershard.pipeline.errors import ConfigError, StorageError

from ..progress import Progress

BEAT_SECONDS = 10.0
DEAD_SECONDS = 60.0
"""Several beats, and more than a store's short trouble."""

_POLL_SECONDS = 1.0
_held: set[str] = set()
"""Tokens of the locks that this process holds: after a restart in a container another process may have had its pid."""


class LockPlace(Protocol):
    """The object."""

    def __str__(self) -> str:
        """Return the address of the dataset."""
        ...

    def read_lock(self) -> bytes | None:
        """Return what is there."""
        ...

    def swap_lock(self, data: bytes, before: bytes | None) -> bool:
        """Put it, if what is there is still `before` (None: nothing), and say whether that was so."""
        ...

    def delete_lock(self) -> None:
        """Remove it."""
        ...


class StoreLock:
    """A lock that is held."""

    def __init__(self, place: LockPlace, text: bytes) -> None:
        self._place = place
        self._text = text
        self._over = threading.Event()
        self._is_lost = False
        self._beats = threading.Thread(target=self._beat, daemon=True)

    def check(self) -> None:
        """Raise ConfigError if somebody has taken the lock over."""
        if self._is_lost:
            raise ConfigError(
                f"{self._place}: another process has taken this job over, since this one gave no sign of life for "
                f"{DEAD_SECONDS:.0f} s. It goes on there"
            )

    def start(self, beat_seconds: float) -> None:
        """Begin to show that the holder lives."""
        self._beat_seconds = beat_seconds
        self._beats.start()

    def release(self) -> None:
        """Remove the object, if it is still ours."""
        self._over.set()
        self._beats.join()
        if not self._is_lost and self._place.read_lock() == self._text:
            self._place.delete_lock()

    def _beat(self) -> None:
        count = 0
        while not self._over.wait(self._beat_seconds):
            count += 1
            body = {**json.loads(self._text), "beat": count}
            text = json.dumps(body).encode()
            # A store in trouble is the job's to report; without beats the job is at worst taken for dead.
            with contextlib.suppress(StorageError, ConfigError):
                if self._place.swap_lock(text, self._text):
                    self._text = text
                elif self._place.read_lock() == text:
                    self._text = text  # the answer to our own put was lost
                else:
                    self._is_lost = True
                    return


@contextlib.contextmanager
def hold_store_lock(
    place: LockPlace,
    progress: Progress,
    *,
    beat_seconds: float = BEAT_SECONDS,
    dead_seconds: float = DEAD_SECONDS,
) -> Iterator[StoreLock]:
    """Hold a job alone.

    Args:
        place: The lock object.
        progress: Told when another host's job is watched.
        beat_seconds: How often the holder shows that it lives.
        dead_seconds: How long another host's holder is watched.

    Raises:
        ConfigError: Another process drives the job; the message names its host and pid.
    """
    token = uuid.uuid4().hex
    body = {"host": socket.gethostname(), "pid": os.getpid(), "since": int(time.time()), "token": token}
    text = json.dumps(body).encode()
    _acquire(place, text, progress, dead_seconds)
    _held.add(token)
    lock = StoreLock(place, text)
    lock.start(beat_seconds)
    try:
        yield lock
    finally:
        _held.discard(token)
        lock.release()


def _acquire(place: LockPlace, text: bytes, progress: Progress, dead_seconds: float) -> None:
    while not place.swap_lock(text, None):
        found = place.read_lock()
        if found is None:
            continue  # its holder has just ended
        if found == text:
            return  # ours: the answer to an earlier attempt was lost
        if _is_alive(place, found, progress, dead_seconds):
            raise ConfigError(
                f"{place} is being written by {_name(found)}: wait for it, or stop it and run this command again"
            )
        if place.swap_lock(text, found):
            return


def _is_alive(place: LockPlace, found: bytes, progress: Progress, dead_seconds: float) -> bool:
    holder = _holder(found)
    if holder.get("host") == socket.gethostname():
        return _runs_here(holder)
    progress.note(f"{place}: watching for {dead_seconds:.0f} s whether {_name(found)} still writes to it")
    deadline = time.monotonic() + dead_seconds
    while time.monotonic() < deadline:
        time.sleep(min(_POLL_SECONDS, dead_seconds))
        now = place.read_lock()
        if now != found:
            return now is not None
    return False


def _runs_here(holder: dict[str, object]) -> bool:
    pid = holder.get("pid")
    if not isinstance(pid, int):
        return False
    if pid == os.getpid():
        return holder.get("token") in _held
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _holder(found: bytes) -> dict[str, object]:
    try:
        holder = json.loads(found)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _name(found: bytes) -> str:
    holder = _holder(found)
    return f"host {holder.get('host', 'unknown')} pid {holder.get('pid', 'unknown')}"
