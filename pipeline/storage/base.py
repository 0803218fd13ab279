"""The protocol between decoding and the place where the tars are."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Counts = Counter[str]
"""What a storage did, by name; adding two up gives that of two processes.

    requests, retries, fetched_bytes          asked of a remote store
    refetched_spans                           utterances whose checksum was wrong the first time
    cache_hits, cache_misses, evictions       spans found in the cache and not, shards thrown out of it
    storage_wait_seconds                      decoders that had to wait for bytes
"""


@dataclass(frozen=True)
class Spans:
    """Byte ranges of utterances in tars: equally long arrays."""

    shard: NDArray[np.int32]
    offset: NDArray[np.int64]
    nbytes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.shard)

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
    def begin(self, shards: Sequence[int]) -> None:
        """Begin a part of an epoch that reads these shards, those of the next part last.

        What was announced for earlier parts and was not read will not be.
        """

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
