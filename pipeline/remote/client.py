"""How a store is talked to: what all clients do, and the choice by address."""

import asyncio
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from concurrent.futures import CancelledError
from typing import Any, TypeVar

import fsspec
import fsspec.asyn
from fsspec.utils import tokenize

from ..errors import ConfigError
from .faults import OutOfTimeError, redact
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


_clients: dict[tuple[str, str, str, bool], Client] = {}
"""Of this process, by kind of store, its name in the address, and options. fsspec keeps one for each thread instead."""
_opening = threading.Lock()


_inherited: list[Client] = []
"""Of the parent process. Kept, because letting go of them would close connections that are the parent's."""


def _start_anew() -> None:
    global _opening
    _inherited.extend(_clients.values())
    _clients.clear()
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_start_anew)


def open_client(address: str, options: Mapping[str, Any], *, bulk: bool = False) -> tuple[Client, str]:
    """Return the client for an address, and the path of the address in it.

    Args:
        address: Any object.
        options: Keyword arguments of the fsspec file system.
        bulk: Whether much will be read: then the fastest client there is, which may not survive a fork.

    Raises:
        ConfigError: fsspec does not know the kind of address, or its package is not installed.
    """
    protocol, _, rest = address.partition("://")
    key = (protocol, rest.partition("/")[0], tokenize(options), bulk)
    with _opening:
        client = _clients.get(key)
        if client is None:
            try:
                client = _clients[key] = _new_client(protocol, address, options, bulk=bulk)
            except (ValueError, ImportError, TypeError) as error:
                why = redact(str(error), options)
                raise ConfigError(f"{redact(address)}: {why} (look at the address and storage_options)") from None
    if "::" in address:
        return client, fsspec.core.url_to_fs(address, **options)[1]
    return client, client.filesystem._strip_protocol(address)


def _new_client(protocol: str, address: str, options: Mapping[str, Any], *, bulk: bool) -> Client:
    # Imported when needed: they bring aiohttp and botocore along, and most datasets are local.
    if protocol in ("s3", "s3a"):
        from . import obstore_s3
        from .s3 import S3Client, s3_options

        kind = obstore_s3.ObstoreClient if bulk and obstore_s3.is_usable(options) else S3Client
        options = s3_options(options, CONNECTIONS)
        return kind(fsspec.core.url_to_fs(address, **options)[0], options)
    filesystem, _ = fsspec.core.url_to_fs(address, **options)
    if protocol in ("http", "https"):
        from .http import HttpClient

        return HttpClient(filesystem, options)
    from .generic import GenericClient

    return GenericClient(filesystem, options, protocol)


def run(coroutine: Coroutine[Any, Any, Result], seconds: float) -> Result:
    """Run a coroutine of a client on fsspec's event loop, where its connections live, within so many seconds."""
    future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(coroutine, max(0.0, seconds)), fsspec.asyn.get_loop())
    try:
        return future.result(max(0.0, seconds) + 5.0)
    except (TimeoutError, CancelledError):
        future.cancel()
        raise OutOfTimeError("no complete answer in time") from None
