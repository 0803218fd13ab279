"""Ask again until it works or the time is up; then say what was asked, how often, how long, and what to do."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ..errors import AccessError, ConfigError, DataError, StorageError, UttershardError
from .faults import (
    AttemptError,
    DeniedError,
    MissingError,
    OutOfTimeError,
    ReplacedError,
    TransientError,
    UnreachableError,
)

Result = TypeVar("Result")

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 10.0
FIRST_CONTACT_ATTEMPTS = 5
"""A store that never answered is most often a wrong address: say so within seconds, not at the deadline."""


@dataclass(frozen=True)
class Limits:
    """How long reads may take.

    Attributes:
        read_timeout: Seconds without a single byte after which an attempt is given up.
        read_deadline: Seconds for one read with all its attempts.
    """

    read_timeout: float = 30.0
    read_deadline: float = 120.0

    def __post_init__(self) -> None:
        for name, value in (("read_timeout", self.read_timeout), ("read_deadline", self.read_deadline)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise ConfigError(f"{name}={value!r}: give seconds above 0, since every wait has a limit")


def pause_before(attempt: int, retry_after: float | None = None) -> float:
    """Return how long to wait before an attempt (the second is 1): doubling, capped, jittered.

    Jitter keeps ranks that failed together from coming back together.
    """
    pause: float = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(attempt - 1, 10)) * random.uniform(0.5, 1.0)
    return pause if retry_after is None else max(pause, min(retry_after, LONGEST_PAUSE))


def with_retries(
    attempt: Callable[[float], Result],
    *,
    what: str,
    hint: str,
    limits: Limits,
    contacted: Callable[[], bool],
    on_retry: Callable[[], None],
) -> Result:
    """Call `attempt` until it returns.

    Args:
        attempt: Does it once, within so many seconds, or raises a AttemptError.
        what: Address and range, for messages.
        hint: How credentials are found for this store, for messages.
        limits: How long it may take.
        contacted: Whether the store has ever answered.
        on_retry: Called before each further attempt.

    Raises:
        DataError: The object is missing, or not the one expected.
        AccessError: It is denied.
        StorageError: There was no answer in time.
    """
    began = time.monotonic()
    attempts = 0
    told: TransientError | None = None
    while True:
        attempts += 1
        try:
            return attempt(limits.read_deadline - (time.monotonic() - began))
        except TransientError as fault:
            told = told if told is not None and isinstance(fault, OutOfTimeError) else fault
            pause = pause_before(attempts, fault.retry_after)
            elapsed = time.monotonic() - began
            unknown = isinstance(fault, UnreachableError) and not contacted() and attempts >= FIRST_CONTACT_ATTEMPTS
            if unknown or elapsed + pause >= limits.read_deadline:
                raise _given_up(what, told, attempts, elapsed, limits) from told
        except AttemptError as fault:
            raise explain(what, fault, hint) from fault
        on_retry()
        time.sleep(pause)


def _given_up(what: str, fault: TransientError, attempts: int, elapsed: float, limits: Limits) -> StorageError:
    advice = f"If the store only needs longer, raise read_deadline (now {limits.read_deadline:g} s)"
    if isinstance(fault, UnreachableError):
        advice = f"Is the address (endpoint_url) right, and is the store up? {advice}"
    return StorageError(f"{what}: gave up after {attempts} attempts in {elapsed:.1f} s: {fault}. {advice}")


def explain(what: str, fault: AttemptError, hint: str) -> UttershardError:
    """Return the error for what asking again does not change; arguments as for `with_retries`."""
    if isinstance(fault, MissingError):
        return DataError(f"{what}: does not exist ({fault})")
    if isinstance(fault, ReplacedError):
        return DataError(f"{what}: {fault}. Start again with the dataset as it is now, or copy or pack it again")
    if isinstance(fault, DeniedError):
        return AccessError(f"{what}: access denied ({fault}). {hint}")
    return StorageError(f"{what}: could not be read ({fault})")
