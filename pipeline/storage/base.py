"""The protocol between decoding and the place where the tars are."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Counts = Counter[str]
"""What a storage did, by the names of COUNTS; adding two up gives that of two processes."""

COUNTS = {
    "requests": "asked of a remote store",
    "retries": "requests that were made again, or went on at the byte where they broke off",
    "fetched_bytes": "got from a remote store",
    "cache_hits": "utterances found in the cache",
    "cache_misses": "utterances not found there",
    "evictions": "tars thrown out of the cache to make room",
    "refetched": "tars and utterances whose checksum was wrong the first time",
    "wait_seconds": "decoders waited for bytes, all of them together",
}
"""Names and meanings."""


@dataclass(frozen=True)
class Spans:
    """Byte ranges of utterances in tars: equally long arrays."""

    shard: NDArray[np.int32]
    offset: NDArray[np.int64]
    nbytes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.shard)

    @staticmethod
    def join(parts: "Sequence[Spans]") -> "Spans":
        """Return the spans of all parts, in order."""
        columns = (np.concatenate([getattr(part, name) for part in parts]) for name in ("shard", "offset", "nbytes"))
        return Spans(*columns)

    def triples(self) -> list[tuple[int, int, int]]:
        """Return (shard, offset, nbytes) of each span."""
        return list(zip(self.shard.tolist(), self.offset.tolist(), self.nbytes.tolist(), strict=True))


class Storage(ABC):
    """Reads spans. Picklable: a copy in another process opens its own files and connections there, on first use."""

    lookahead_bytes: int = 0
    """How far ahead it wants to be told what will be read; 0 for the batches that are being made."""

    @abstractmethod
    def check_sizes(self) -> None:
        """Find tars that are missing or were cut, where that shows without asking a store."""

    @abstractmethod
    def forget(self) -> None:
        """Forget what was announced and not read: it will not be."""

    @abstractmethod
    def begin(self, shards: Sequence[int]) -> None:
        """Begin a window: these shards are read in it, and then, the last ones, in the next."""

    @abstractmethod
    def will_need(self, spans: Spans) -> None:
        """Begin to bring these spans near, without waiting: they will be read soon."""

    @abstractmethod
    def read(self, spans: Spans) -> Sequence[memoryview]:
        """Return the bytes of each span; raise DataError or StorageError, never fewer bytes than asked for."""

    def read_again(self, spans: Spans, row: int) -> memoryview | None:
        """Return one span from its origin, because what `read` gave is damaged; None if that was the origin."""
        return None

    def take_counts(self) -> Counts:
        """Return what was done in this process since this was called last."""
        return Counter()
