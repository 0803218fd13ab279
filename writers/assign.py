"""Which utterance goes to which shard: shuffled by hash, then each to the shard with the least audio so far.

Shards come out as random samples of the corpus, equal in seconds to within one utterance. Pure functions: the result
depends on the ids, their durations, the seed and the number of shards, and on nothing else.
"""

import heapq
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray
from uttershard.pipeline.errors import ConfigError

_MICROSECONDS = 1_000_000
_RUN = 65_536


Keys: TypeAlias = Sequence[str] | pa.ChunkedArray
"""Ids; as an Arrow column they are Python strings a run at a time and never all at once."""


def shuffle(keys: Keys, seed: int) -> NDArray[np.int64]:
    """Return the order of the utterances: by xxh3_64 of the id under the seed, then by the id itself."""
    hashes = np.fromiter(
        (xxhash.xxh3_64_intdigest(key.encode("utf-8"), seed) for key in _strings(keys)), np.uint64, len(keys)
    )
    order = np.argsort(hashes, kind="stable").astype(np.int64)
    # Two of a million ids meet in 64 bits once in 37 million corpora, but then the order must not be the listing's.
    ranked = hashes[order]
    for at in np.flatnonzero(ranked[1:] == ranked[:-1]).tolist():
        if str(keys[int(order[at])]) > str(keys[int(order[at + 1])]):
            order[[at, at + 1]] = order[[at + 1, at]]
    return order


def assign(keys: Keys, seconds: NDArray[np.float64], shards: int, seed: int) -> list[NDArray[np.int64]]:
    """Return the rows of each shard, in the order in which they are packed.

    Args:
        keys: Ids, unique.
        seconds: Duration of each, as far as it is known.
        shards: How many shards; each gets at least one utterance if there are enough.
        seed: Of the shuffle.

    Example:
        >>> [rows.tolist() for rows in assign(["a", "b", "c"], np.array([9.0, 5.0, 5.0]), 2, seed=0)]
        [[1, 0], [2]]
    """
    order = shuffle(keys, seed)
    # Whole microseconds, at least one: sums are exact, and an utterance without length still counts.
    loads = np.maximum(1, np.rint(seconds * _MICROSECONDS)).astype(np.int64)
    shard_of = np.empty(len(order), dtype=np.int64)
    heap = [(0, shard) for shard in range(shards)]
    for start in range(0, len(order), _RUN):
        for place, load in enumerate(loads[order[start : start + _RUN]].tolist(), start):
            total, shard = heap[0]
            shard_of[place] = shard
            heapq.heapreplace(heap, (total + load, shard))
    by_shard = np.argsort(shard_of, kind="stable")
    bounds = np.searchsorted(shard_of[by_shard], np.arange(1, shards))
    return np.split(order[by_shard], bounds)


def _strings(keys: Keys) -> Iterator[str]:
    if not isinstance(keys, pa.ChunkedArray):
        yield from keys
        return
    for start in range(0, len(keys), _RUN):
        yield from keys.slice(start, _RUN).to_pylist()


def shard_count(utterances: int, estimated_bytes: int, *, shards: int | None, shard_bytes: int, multiple: int) -> int:
    """Return how many shards there will be.

    Args:
        utterances: How many there are to pack.
        estimated_bytes: Of all tars together.
        shards: The number asked for, or None to derive it.
        shard_bytes: Size aimed at.
        multiple: A derived number is rounded up to a multiple of this; with fewer utterances than that, down.

    Raises:
        ConfigError: More shards asked for than there are utterances.

    Example:
        >>> shard_count(100_000, 3_000_000_000, shards=None, shard_bytes=512_000_000, multiple=8)
        8
    """
    if shards is not None:
        if shards > utterances:
            raise ConfigError(f"shards is {shards}, but there are only {utterances} utterances: ask for fewer")
        return shards
    wanted = max(1, -(-estimated_bytes // shard_bytes))
    rounded = -(-wanted // multiple) * multiple
    if rounded <= utterances:
        return rounded
    return utterances // multiple * multiple or utterances
