"""Store: read objects of a place, whole or by range; every read has a deadline, every failure is explained."""

import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .client import Client
from .clients import open_client
from .faults import ReplacedError, redact
from .retry import Limits, explain, with_retries
from .transfer import OTHER_ETAG, Chunks, ObjectInfo, Transfer

Result = TypeVar("Result")


@dataclass
class _Session:
    """What belongs to one process: connections do not survive a fork."""

    pid: int
    pinned: dict[str, str] = field(default_factory=dict)
    bulk: dict[str, tuple[Client, str]] = field(default_factory=dict)
    """By address: looking a client up takes as long as a tenth of a small request."""
    counts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Store:
    """Reads objects by address. Used from many threads at once; picklable, each process has its own connections.

    Args:
        options: Keyword arguments of the fsspec file system (credentials, endpoint); never shown.
        limits: How long a read may take.
    """

    def __init__(self, options: Mapping[str, Any] | None = None, limits: Limits | None = None) -> None:
        self._options = dict(options or {})
        self._limits = limits or Limits()
        self._opened = _Session(os.getpid())

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options, "limits": self._limits}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def read(self, address: str) -> bytes:
        """Return a whole object.

        Raises:
            DataError: It does not exist.
            StorageError: It could not be read within the limits, or not at all.
        """
        client, path = open_client(address, self._options)
        return b"".join(self._fetch(client, Transfer(path), redact(address)))

    def read_range(self, address: str, start: int, stop: int, size: int) -> bytes:
        """Return bytes [start, stop) of an object that has `size` bytes; errors as for `read_chunks`."""
        return b"".join(self.read_chunks(address, start, stop, size))

    def read_chunks(self, address: str, start: int, stop: int, size: int) -> Chunks:
        """Return bytes [start, stop) of an object that has `size` bytes, in the pieces in which they came.

        Raises:
            DataError: It does not exist, has another size, or was replaced since it was first read.
            StorageError: It could not be read within the limits, or not at all.
        """
        session = self._session()
        found = session.bulk.get(address)
        if found is None:
            found = session.bulk[address] = open_client(address, self._options, bulk=True)
        (client, path), pinned = found, session.pinned
        transfer = Transfer(path, start, stop, pinned.get(address), size)
        what = f"{redact(address)} bytes {start}-{stop - 1}"
        chunks = self._fetch(client, transfer, what)
        # Compared here too: several first reads may be under way at once.
        if transfer.etag is not None and pinned.setdefault(address, transfer.etag) != transfer.etag:
            raise explain(what, ReplacedError(OTHER_ETAG), client.credentials_hint)
        return chunks

    def head(self, address: str) -> ObjectInfo:
        """Return the size and ETag of an object; errors as for `read`."""
        client, path = open_client(address, self._options)
        return self._ask(client, lambda seconds: client.look_up(path, self._limits, max(0.0, seconds)), redact(address))

    def take_counts(self) -> Counter[str]:
        """Return requests, retries and fetched_bytes of this process since this was called last."""
        session = self._session()
        with session.lock:
            counts, session.counts = session.counts, Counter()
        return counts

    def _fetch(self, client: Client, transfer: Transfer, what: str) -> Chunks:
        def attempt(seconds: float) -> Chunks:
            before = transfer.received
            try:
                client.fetch(transfer, self._limits, max(0.0, seconds))
            finally:
                self._count(fetched_bytes=transfer.received - before)
            return transfer.chunks

        return self._ask(client, attempt, what)

    def _ask(self, client: Client, attempt: Callable[[float], Result], what: str) -> Result:
        def counted(seconds: float) -> Result:
            self._count(requests=1)
            return attempt(seconds)

        return with_retries(
            counted,
            what=what,
            hint=client.credentials_hint,
            limits=self._limits,
            contacted=lambda: client.contacted,
            on_retry=lambda: self._count(retries=1),
        )

    def _count(self, **counts: int) -> None:
        session = self._session()
        with session.lock:
            for name, count in counts.items():
                session.counts[name] += count

    def _session(self) -> _Session:
        if self._opened.pid != os.getpid():
            self._opened = _Session(os.getpid())
        return self._opened
