"""Logical shards: a contiguous run of utterances each, disjoint and complete, for any number of tars (G2).

tars              |  0   |  1   |  2   |  3   |  4   |  5   |
T = 3, divides    |      0      |      1      |      2      |     whole tars
T = 4, does not   |    0    |    1    |    2    |     3     |     cut at utterances, by audio time
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .hashing import CHUNK


def logical_bounds(
    rows_per_tar: NDArray[np.int64],
    num_samples: NDArray[np.int64],
    sample_rate: NDArray[np.int32],
    total_shards: int,
) -> NDArray[np.int64]:
    """Return where each logical shard begins and ends: shard i holds utterances `bounds[i]` up to `bounds[i + 1]`.

    Computed over all utterances, before any filter: a filter never moves an utterance to another logical shard.

    Args:
        rows_per_tar: int64[tars], utterances of each tar, in shard order.
        num_samples: int64[N], of one channel, in shard order.
        sample_rate: int32[N], in Hz.
        total_shards: number of logical shards, at least 1.

    Returns:
        int64[total_shards + 1], from 0 to N. Empty logical shards occur only with fewer utterances than shards.
    """
    utterances = num_samples.size
    if rows_per_tar.size and rows_per_tar.size % total_shards == 0:
        tar_bounds = np.concatenate(([0], np.cumsum(rows_per_tar)))
        bounds = tar_bounds[:: rows_per_tar.size // total_shards].astype(np.int64)
        # Tars without utterances are legal; a logical shard made of those alone would stall its rank.
        if utterances < total_shards or bool((np.diff(bounds) > 0).all()):
            return bounds
    return cut_by_weight(_audio_until(num_samples, sample_rate), total_shards)


def _audio_until(num_samples: NDArray[np.int64], sample_rate: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return int64[N + 1]: microseconds of audio before each utterance, and in all."""
    until = np.zeros(num_samples.size + 1, np.int64)
    for start in range(0, num_samples.size, CHUNK):
        part = slice(start, start + CHUNK)
        micros = num_samples[part] * 1_000_000 // sample_rate[part]
        np.cumsum(micros, out=micros)
        until[start + 1 : start + 1 + micros.size] = micros + until[start]
    return until


def cut_by_weight(until: NDArray[np.int64], total_shards: int) -> NDArray[np.int64]:
    """Return the bounds of contiguous parts of about equal weight, none of them empty if there is enough to cut.

    Args:
        until: int64[N + 1], weight of all utterances before each, and of all.
        total_shards: number of parts.
    """
    utterances = until.size - 1
    total = int(until[-1])
    # Python integers: microseconds of a large corpus times the shard number leave int64.
    targets = np.array([total * i // total_shards for i in range(total_shards + 1)], np.int64)
    above = np.searchsorted(until, targets, side="left").astype(np.int64)
    below = np.maximum(above - 1, 0)
    bounds = np.where(targets - until[below] <= until[above] - targets, below, above)
    bounds[0], bounds[-1] = 0, utterances
    if utterances >= total_shards:
        shard = np.arange(total_shards + 1)
        bounds = np.maximum.accumulate(bounds - shard) + shard
        bounds = np.minimum(bounds, utterances - total_shards + shard)
    return bounds
