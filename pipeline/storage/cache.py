"""Tars of a remote store through a cache on a local disk.

A tar that is in the cache is memory-mapped, as a local one is. One that is not is fetched whole, in the background; a
batch waits for the tars it misses if these are no more than `prefetch_bytes`, and else reads its spans from the store:
so the first batch of a large cold dataset does not wait for the dataset.
"""

import mmap
import os
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from ..dataset.shardset import ShardSet
from .base import Counts, Spans, Storage
from .cache_files import CacheFolder
from .remote import RemoteTars
from .settings import StorageSettings
from .tar_fetcher import TarFetcher

_TOUCH_SECONDS = 5.0
"""How exactly the cache knows when a tar was used last."""


class _Maps:
    """Maps of cached tars, in one process; a file that is gone is let go of, so that the disk gets its room back."""

    def __init__(self, folder: CacheFolder, digests: Sequence[str], sizes: Sequence[int]) -> None:
        self._folder = folder
        self._digests = digests
        self._sizes = sizes
        self._open: dict[int, tuple[int, mmap.mmap, float]] = {}

    def get(self, shard: int) -> mmap.mmap | None:
        """Return the map of a tar, or None if the cache has not got it."""
        digest = self._digests[shard]
        path = self._folder.tar(digest)
        try:
            stat = path.stat()
            inode, mapped, touched = self._open.get(shard, (0, None, 0.0))
            if mapped is None or inode != stat.st_ino:
                with path.open("rb") as file:
                    # A map of a file that somebody cut would end the process when touched.
                    if not self._folder.has(digest, self._sizes[shard]):
                        return None
                    inode, mapped = os.fstat(file.fileno()).st_ino, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            elif stat.st_size != self._sizes[shard]:
                self.drop(shard)
                return None
        except OSError:
            # Not there, evicted, or another user's: whatever a cache has not got, the store has.
            self._open.pop(shard, None)
            return None
        now = time.monotonic()
        if now - touched > _TOUCH_SECONDS or not touched:
            self._folder.touch(digest)
            touched = now
        self._open[shard] = inode, mapped, touched
        return mapped

    def drop(self, shard: int) -> None:
        """Remove a tar that is damaged from the cache."""
        self._open.pop(shard, None)
        self._folder.remove(self._digests[shard])

    def keep_only(self, shards: Collection[int]) -> None:
        """Let go of the maps of all other tars; batches that still use one keep it alive."""
        for shard in [shard for shard in self._open if shard not in shards]:
            del self._open[shard]


class CachedTars(Storage):
    """Reads spans out of the remote tars of a dataset by way of a cache.

    Args:
        shards: The dataset.
        settings: Where the cache is, how large it may grow, how long reads may take.
    """

    def __init__(self, shards: ShardSet, settings: StorageSettings) -> None:
        if settings.cache is None:
            raise ValueError("settings.cache is None")
        self._remote = RemoteTars(shards, settings)
        self._folder = CacheFolder(settings.cache)
        self._digests = [shard.tar_digest for shard in shards.manifest.shards]
        self._settings = settings
        self.lookahead_bytes = settings.prefetch_bytes
        self._opened: tuple[int, TarFetcher, _Maps] | None = None
        self._lock = threading.Lock()
        self._counts: Counts = Counter()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_lock": None, "_counts": Counter()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def check_sizes(self) -> None:
        """Nothing shows without asking: what is in the cache was found right when it came."""

    def forget(self) -> None:
        """Forget what was announced and not read."""
        self._remote.forget()

    def begin(self, shards: Sequence[int]) -> None:
        """Fetch these tars in the background, in this order."""
        _, fetcher, maps = self._open()
        for shard in shards:
            self._folder.touch(self._digests[shard])
        with self._lock:
            maps.keep_only(set(shards))
        fetcher.schedule(shards)

    def will_need(self, spans: Spans) -> None:
        """Ask the kernel to read ahead what is in the cache, and the store for what can't come there.

        Not for what is missing so far: whole tars are on their way, and few batches are faster.
        """
        keys = spans.triples()
        maps = self._maps_of({key[0] for key in keys})
        fetcher = self._open()[1]
        announced = []
        for key in keys:
            shard, offset, nbytes = key
            if (mapped := maps[shard]) is not None:
                begin = offset // mmap.PAGESIZE * mmap.PAGESIZE
                mapped.madvise(mmap.MADV_WILLNEED, begin, offset + nbytes - begin)
            elif fetcher.is_unavailable(shard):
                announced.append(key)
        self._remote.announce(announced)

    def read(self, spans: Spans) -> Sequence[memoryview]:
        """Return slices of the cached tars, and what the store has of those that are not in the cache."""
        keys = spans.triples()
        maps = self._maps_of({key[0] for key in keys})
        missing = {shard for shard, mapped in maps.items() if mapped is None}
        waiting = missing - self._reads_through(maps)
        self._count(cache_hits=sum(key[0] not in missing for key in keys))
        self._count(cache_misses=sum(key[0] in missing for key in keys))
        if waiting:
            began = time.perf_counter()
            try:
                self._open()[1].wait_for(sorted(waiting), self._settings.limits.read_deadline)
            finally:
                self._count(wait_seconds=time.perf_counter() - began)
            maps |= self._maps_of(waiting)
        views = {shard: memoryview(mapped) for shard, mapped in maps.items() if mapped is not None}
        found = {key: views[key[0]][key[1] : key[1] + key[2]] for key in keys if key[0] in views}
        self._remote.drop(list(found))
        rest = [key for key in keys if key not in found]
        if rest:
            found.update(zip(rest, self._remote.read_keys(rest), strict=True))
        return [found[key] for key in keys]

    def read_again(self, spans: Spans, row: int) -> memoryview | None:
        """Fetch one span anew, and throw the tar out of the cache: its bytes have changed since it came."""
        maps = self._open()[2]
        with self._lock:
            maps.drop(int(spans.shard[row]))
        return self._remote.read_again(spans, row)

    def take_counts(self) -> Counts:
        """Return what was done in this process since this was called last."""
        fetched = self._open()[1].take_counts()
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return counts + fetched + self._remote.take_counts()

    def _reads_through(self, maps: dict[int, mmap.mmap | None]) -> set[int]:
        """Return which of these shards are read from the store rather than waited for."""
        fetcher = self._open()[1]
        missing = [shard for shard, mapped in maps.items() if mapped is None]
        if sum(self._remote.sizes[shard] for shard in missing) > self._settings.prefetch_bytes:
            return set(missing)
        return {shard for shard in missing if fetcher.is_unavailable(shard)}

    def _maps_of(self, shards: Collection[int]) -> dict[int, mmap.mmap | None]:
        maps = self._open()[2]
        with self._lock:
            return {shard: maps.get(shard) for shard in shards}

    def _open(self) -> tuple[int, TarFetcher, _Maps]:
        with self._lock:
            # Threads do not survive a fork: each process has its own.
            if self._opened is None or self._opened[0] != os.getpid():
                sizes = self._remote.sizes
                addresses, limit = self._remote.addresses, self._settings.cache_bytes
                fetcher = TarFetcher(self._folder, limit, addresses, self._digests, sizes, self._remote.fetch)
                self._opened = os.getpid(), fetcher, _Maps(self._folder, self._digests, sizes)
            return self._opened

    def _count(self, **counts: float) -> None:
        with self._lock:
            self._counts.update(counts)
