"""How a store is talked to: what all clients do."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

import fsspec.asyn

from .faults import OutOfTimeError
from .retry import Limits
from .transfer import ObjectInfo, Transfer

Result = TypeVar("Result")

CONNECTIONS = 64
"""Connections that a process may have to one store; readers limit themselves to fewer requests at a time."""


class Client(ABC):
    """Makes one attempt at a time, from any thread; raises nothing but AttemptErrors.

    `stall` is the longest wait for a single byte.
    """

    filesystem: Any
    """The file system of fsspec that it uses."""
    contacted: bool
    """Whether the store has ever answered."""
    credentials_hint: str
    """Where credentials are looked for, for the message of a refused request."""

    def fetch(self, transfer: Transfer, limits: Limits, seconds: float) -> None:
        """Append to the transfer what it still misses; what has arrived before an AttemptError stays in it.

        Args:
            transfer: What is wanted.
            limits: Of the whole read, of which this is one attempt.
            seconds: What is left of its time.
        """
        run(self.get(transfer, min(limits.read_timeout, seconds)), seconds)

    def look_up(self, path: str, limits: Limits, seconds: float) -> ObjectInfo:
        """Ask for size and ETag of an object."""
        return run(self.head(path, min(limits.read_timeout, seconds)), seconds)

    @abstractmethod
    async def get(self, transfer: Transfer, stall: float) -> None:
        """Do `fetch` on fsspec's event loop."""

    @abstractmethod
    async def head(self, path: str, stall: float) -> ObjectInfo:
        """Do `look_up` on fsspec's event loop."""


def run(coroutine: Coroutine[Any, Any, Result], seconds: float) -> Result:
    """Run a coroutine of a client on fsspec's event loop, where its connections live, within so many seconds."""
    future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(coroutine, max(0.0, seconds)), fsspec.asyn.get_loop())
    try:
        return future.result(max(0.0, seconds) + 5.0)
    except (TimeoutError, CancelledError):
        future.cancel()
        raise OutOfTimeError("no complete answer in time") from None
