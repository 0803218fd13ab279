"""Length order: narrow buckets from long to short, the utterances of a bucket in an order hashed with the epoch.

One 64-bit key an utterance holds all of it; the keys are unique, so that every sorting routine gives one order:

    | bucket, 0 is the longest |      hash      | place in the logical shard |
    high bits                                                     low bits
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .hashing import CHUNK, hash_ordinals

_FEWEST_HASH_BITS = 8


@dataclass(frozen=True, eq=False)
class LengthOrder:
    """The utterances of one rank in length order: ordinals int64[n] and their lengths int32[n] in frames."""

    rows: NDArray[np.int64]
    lengths: NDArray[np.int32]

    @classmethod
    def join(cls, orders: Sequence[LengthOrder]) -> LengthOrder:
        """Return several orders one after the other."""
        if len(orders) == 1:
            return orders[0]
        return cls(
            np.concatenate([order.rows for order in orders]), np.concatenate([order.lengths for order in orders])
        )


def bucket_edges(longest: int, width: float) -> NDArray[np.int32]:
    """Return the shortest length of each bucket, ascending, up to the bucket that holds `longest`.

    Args:
        longest: longest utterance, in frames.
        width: relative width of a bucket.
    """
    # Integers only: a power or a logarithm would round differently from one mathematics library to the next.
    ratio = 1 + Fraction(str(width))
    edges = []
    edge = 1
    while edge <= longest:
        edges.append(edge)
        edge = max(edge + 1, edge * ratio.numerator // ratio.denominator)
    return np.array(edges, np.int32)


def length_order(rows: NDArray[np.int64], frames: NDArray[np.int32], edges: NDArray[np.int32], key: int) -> LengthOrder:
    """Return utterances in length order.

    Args:
        rows: int64[n], their ordinals, ascending.
        frames: int32[N], lengths of all utterances of the dataset.
        edges: from `bucket_edges`.
        key: of the stream of hashes, other in every epoch.
    """
    if rows.size == 0:
        return LengthOrder(rows, np.zeros(0, np.int32))
    first = int(rows[0])
    place_bits = (int(rows[-1]) - first).bit_length()
    bucket_bits = edges.size.bit_length()
    hash_bits = 64 - place_bits - bucket_bits
    if hash_bits < _FEWEST_HASH_BITS:
        raise ConfigError(
            f"{rows.size} utterances in {edges.size} length buckets leave no room to shuffle: "
            "use more total_shards, or a wider bucket_width"
        )
    keys = np.empty(rows.size, np.uint64)
    for start in range(0, rows.size, CHUNK):
        part = slice(start, start + CHUNK)
        out = hash_ordinals(key, rows[part], out=keys[part])
        out >>= np.uint64(64 - hash_bits)
        out <<= np.uint64(place_bits)
        out |= (rows[part] - first).view(np.uint64)
        bucket = edges.size - np.searchsorted(edges, frames[rows[part]], side="right")
        out |= bucket.view(np.uint64) << np.uint64(64 - bucket_bits)
    keys.sort()
    keys &= np.uint64((1 << place_bits) - 1)
    ordered = keys.view(np.int64)
    ordered += first
    return LengthOrder(ordered, frames[ordered])
