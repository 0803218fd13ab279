"""Asking a store to write: again while that may help, then an error that says what was asked and how often."""

import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from uttershard.pipeline.errors import AccessError, ConfigError, StorageError, UttershardError
from uttershard.pipeline.remote.client import run
from uttershard.pipeline.remote.faults import (
    AttemptError,
    DeniedError,
    MissingError,
    OutOfTimeError,
    TransientError,
    UnreachableError,
)
from uttershard.pipeline.remote.retry import FIRST_CONTACT_ATTEMPTS, pause_before

from ..commit import NoSpaceError
from .base import Traffic
from .limits import WriteLimits
from .objects import ConditionError, FullError, GoneUploadError, Objects, UnsupportedError

Result = TypeVar("Result")


class Asking:
    """Makes requests of one target; used from several threads.

    Args:
        objects: What is asked.
        limits: How long it may take.
    """

    def __init__(self, objects: Objects, limits: WriteLimits) -> None:
        self._objects = objects
        self.traffic = Traffic()
        self._limits = limits
        self._counting = threading.Lock()

    def ask(
        self,
        what: str,
        attempt: Callable[[float], Coroutine[Any, Any, Result]],
        *,
        nbytes: int = 0,
        is_over: Callable[[], bool] = lambda: False,
    ) -> Result:
        """Make a request until it is answered.

        Args:
            what: Address and operation, for messages.
            attempt: Makes it once, within so many seconds.
            nbytes: Of its body, to be counted.
            is_over: Whether nobody waits for the answer any more.

        Raises:
            ConditionError, GoneUploadError, UnsupportedError: Answers, for the caller to deal with.
            ConfigError: There is no such bucket.
            AccessError: It is denied.
            NoSpaceError: The store is full.
            StorageError: It is refused, or there was no answer in time.
        """
        began, attempts = time.monotonic(), 0
        told: TransientError | None = None
        while True:
            attempts += 1
            left = self._limits.write_deadline - (time.monotonic() - began)
            seconds = max(0.0, min(self._limits.write_timeout, left))
            try:
                self._count(requests=1)
                result = run(attempt(seconds), seconds)
            except (ConditionError, GoneUploadError, UnsupportedError):
                raise
            except TransientError as fault:
                told = told if told is not None and isinstance(fault, OutOfTimeError) else fault
                pause, elapsed = pause_before(attempts, fault.retry_after), time.monotonic() - began
                unknown = isinstance(fault, UnreachableError) and not self._objects.contacted
                hopeless = unknown and attempts >= FIRST_CONTACT_ATTEMPTS
                if hopeless or is_over() or elapsed + pause >= self._limits.write_deadline:
                    raise self._given_up(what, told, attempts, elapsed) from told
            except AttemptError as fault:
                raise _explain(what, fault, self._objects.credentials_hint) from fault
            else:
                self._count(sent_bytes=nbytes)
                return result
            self._count(retries=1)
            time.sleep(pause)

    def _given_up(self, what: str, fault: TransientError, attempts: int, elapsed: float) -> StorageError:
        advice = f"If the store only needs longer, raise write_deadline (now {self._limits.write_deadline:g} s)"
        if isinstance(fault, UnreachableError):
            advice = f"Is the address (endpoint_url) right, and is the store up? {advice}"
        return StorageError(f"{what}: gave up after {attempts} attempts in {elapsed:.1f} s: {fault}. {advice}")

    def _count(self, **counts: int) -> None:
        with self._counting:
            self.traffic.add(Traffic(**counts))


def _explain(what: str, fault: AttemptError, hint: str) -> UttershardError:
    if isinstance(fault, MissingError):
        return ConfigError(f"{what}: there is no such bucket ({fault}); make it first, or look at the address")
    if isinstance(fault, DeniedError):
        return AccessError(f"{what}: access denied ({fault}). {hint}")
    if isinstance(fault, FullError):
        return NoSpaceError(f"{what}: the store is full ({fault})")
    return StorageError(f"{what}: refused ({fault})")
