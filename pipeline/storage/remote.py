"""Tars in a remote store, read span by span: without a cache, and where a cache has not got them."""

import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..dataset.shardset import ShardSet
from ..remote.store import Store
from ..remote.transfer import Chunks, cut
from .base import Counts, Spans, Storage
from .coalesce import Key
from .prefetch import Prefetcher
from .settings import StorageSettings

_CONNECT_SECONDS = 10.0
"""What a new process may need to find its libraries and credentials, on a busy machine."""


class RemoteTars(Storage):
    """Reads spans out of the remote tars of a dataset; those of the coming batches while these decode.

    Args:
        shards: The dataset.
        settings: How much to fetch ahead, and how long a read may take.
    """

    def __init__(self, shards: ShardSet, settings: StorageSettings) -> None:
        self.addresses = [shards.tar_address(index) for index in range(len(shards.manifest.shards))]
        self.sizes = [shard.tar_bytes for shard in shards.manifest.shards]
        self.store = Store(shards.storage_options, settings.limits)
        self.lookahead_bytes = settings.prefetch_bytes
        self._settings = settings
        self._opened: tuple[int, Prefetcher] | None = None
        self._lock = threading.Lock()
        self._counts: Counts = Counter()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_lock": None, "_counts": Counter()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def check_sizes(self) -> None:
        """Nothing shows without asking: sizes are checked with the first answer about each tar."""

    def forget(self) -> None:
        """Forget what was announced and not read."""
        self._prefetcher().forget()

    def begin(self, shards: Sequence[int]) -> None:
        """Nothing is kept for a whole window."""

    def will_need(self, spans: Spans) -> None:
        """Fetch these spans when there is room for them."""
        self.announce(spans.triples())

    def read(self, spans: Spans) -> Sequence[memoryview]:
        """Return the bytes of each span, most of them fetched already."""
        return self.read_keys(spans.triples())

    def read_keys(self, keys: Sequence[Key]) -> list[memoryview]:
        """Return the bytes of each span."""
        began = time.perf_counter()
        try:
            return self._prefetcher().take(keys)
        finally:
            self._count(wait_seconds=time.perf_counter() - began)

    def announce(self, keys: Sequence[Key]) -> None:
        """Fetch these spans when there is room for them."""
        self._prefetcher().announce(keys)

    def drop(self, keys: Sequence[Key]) -> None:
        """Forget announced spans that were read from elsewhere."""
        self._prefetcher().drop(keys)

    def read_again(self, spans: Spans, row: int) -> memoryview | None:
        """Fetch one span anew: its bytes may have been damaged on the way."""
        self._count(refetched=1)
        shard, offset, nbytes = spans.triples()[row]
        return cut(self.fetch(shard, offset, offset + nbytes), 0, nbytes)

    def fetch(self, shard: int, start: int, stop: int) -> Chunks:
        """Return bytes [start, stop) of a tar, now."""
        return self.store.read_chunks(self.addresses[shard], start, stop, self.sizes[shard])

    def take_counts(self) -> Counts:
        """Return what was done in this process since this was called last."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return counts + self.store.take_counts()

    def _prefetcher(self) -> Prefetcher:
        with self._lock:
            # Threads do not survive a fork: each process has its own.
            if self._opened is None or self._opened[0] != os.getpid():
                patience = 2 * self._settings.limits.read_deadline + _CONNECT_SECONDS
                self._opened = os.getpid(), Prefetcher(self.fetch, self._settings.prefetch_bytes, patience)
            return self._opened[1]

    def _count(self, **counts: float) -> None:
        with self._lock:
            self._counts.update(counts)
