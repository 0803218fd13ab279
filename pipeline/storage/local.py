"""Tars on a local disk, memory-mapped: a span is a slice of the page cache, nothing is copied."""

import mmap
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..dataset.files import local_path
from ..dataset.shardset import ShardSet
from ..errors import DataError, StorageError, UttershardError
from .base import Spans, Storage

MAX_MAPS = 16_384
"""Linux allows a process 65,530 maps (vm.max_map_count), of which torch takes some thousands."""


def most_maps() -> int:
    """Return how many tars may be mapped at once: a map keeps its file open, and most systems allow 1,024 files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_MAPS if soft == resource.RLIM_INFINITY else max(1, min(MAX_MAPS, soft // 2))


class LocalTars(Storage):
    """Reads spans out of the local tars of a dataset."""

    def __init__(self, shards: ShardSet) -> None:
        paths = [local_path(shards.tar_address(index)) for index in range(len(shards.manifest.shards))]
        self._paths = [Path(path) for path in paths if path is not None]
        if len(self._paths) < len(paths):
            raise UttershardError(f"internal error: {shards.address} has remote tars")
        self._sizes = [shard.tar_bytes for shard in shards.manifest.shards]
        self._maps: dict[int, mmap.mmap] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maps": {}}

    def check_sizes(self) -> None:
        """Look at the size of every tar, so that a cut or missing one is found before the first step."""
        for shard in range(len(self._paths)):
            self._check_size(shard)

    def forget(self) -> None:
        """Nothing is kept: the kernel reads ahead, and forgets by itself."""

    def begin(self, shards: Sequence[int]) -> None:
        """Nothing needs to be brought near."""

    def will_need(self, spans: Spans) -> None:
        """Ask the kernel to read these spans ahead."""
        for shard, offset, nbytes in spans.triples():
            begin = offset // mmap.PAGESIZE * mmap.PAGESIZE
            self._map(shard).madvise(mmap.MADV_WILLNEED, begin, offset + nbytes - begin)

    def read(self, spans: Spans) -> Sequence[memoryview]:
        """Return slices of the mapped tars."""
        # A map of a file that somebody cuts ends the process with SIGBUS when touched: look at the sizes first.
        views = {}
        for shard in np.unique(spans.shard).tolist():
            mapped = self._map(shard)
            self._check_size(shard)
            views[shard] = memoryview(mapped)
        return [views[shard][offset : offset + nbytes] for shard, offset, nbytes in spans.triples()]

    def _map(self, shard: int) -> mmap.mmap:
        found = self._maps.get(shard)
        if found is not None:
            return found
        self._check_size(shard)
        if len(self._maps) >= most_maps():
            self._maps = {}  # a map is unmapped when the last batch that reads from it lets go
        try:
            with self._paths[shard].open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise StorageError(f"{self._paths[shard]}: could not be opened ({error})") from error
        self._maps[shard] = mapped
        return mapped

    def _check_size(self, shard: int) -> None:
        path, expected = self._paths[shard], self._sizes[shard]
        try:
            found = path.stat().st_size
        except FileNotFoundError as error:
            raise DataError(f"{path}: missing, but the manifest lists it. Copy it back, or pack again") from error
        except OSError as error:
            raise StorageError(f"{path}: could not be looked up ({error})") from error
        if found != expected:
            what = "it has been cut" if found < expected else "it was replaced or appended to"
            raise DataError(f"{path}: {found} bytes, the manifest says {expected}: {what}. Copy or pack it again")
