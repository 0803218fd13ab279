"""Cutting the length order into batches, greedily at a budget (G4), or into exactly so many (G5).

A batch that starts at position s is charged for the longest utterance at or after s. These bounds never rise along
the order, so that no batch exceeds the budget, and a larger budget never reaches less far: what the bisection
in `cut_exactly` stands on.
"""

from __future__ import annotations

import bisect

import numpy as np
from numpy.typing import NDArray

from ..errors import UttershardError
from .settings import Batching


def count_batches(lengths: NDArray[np.int32], batching: Batching) -> int:
    """Return how many batches the utterances make at the full budget; the fewest there can be in this order.

    Args:
        lengths: int32[n], in length order.
        batching: the budget.
    """
    if batching.batch_size is not None:
        return -(-lengths.size // batching.batch_size)
    assert batching.batch_bins is not None
    return len(_cut(_bounds(lengths, batching), batching.batch_bins, 0, _most(lengths, batching), lengths.size))


def cut_exactly(lengths: NDArray[np.int32], batching: Batching, batches: int) -> NDArray[np.int64]:
    """Return the bounds of exactly so many batches, alike in fill.

    Args:
        lengths: int32[n], in length order.
        batching: the budget that no batch exceeds.
        batches: from `count_batches` of these lengths up to n.

    Returns:
        int64[batches + 1]: batch i holds positions `bounds[i]` up to `bounds[i + 1]`, at least one.
    """
    size = lengths.size
    if batching.batch_size is not None:
        if batches == count_batches(lengths, batching):
            # Plain batches and a rest: what whoever asks for a fixed size expects.
            return np.minimum(np.arange(batches + 1, dtype=np.int64) * batching.batch_size, size)
        return np.arange(batches + 1, dtype=np.int64) * size // max(batches, 1)
    if batches == size:
        return np.arange(size + 1, dtype=np.int64)
    ends = _cut_finer(lengths, batching, batches)
    if len(ends) != batches or ends[-1] != size:
        raise UttershardError(
            f"internal error: {size} utterances cut into {len(ends)} batches up to {ends[-1:]} instead of {batches} "
            f"under {batching}: please report these settings"
        )
    return np.concatenate(([0], np.array(ends, np.int64)))


def _cut_finer(lengths: NDArray[np.int32], batching: Batching, batches: int) -> list[int]:
    """Return the ends of the batches at the smallest budget that needs no more than `batches` of them.

    That budget may need fewer, and one less needs more. Giving one more of the first batches the smaller budget adds
    at most one batch: from any later start, one batch reaches at least as far as the replaced one did. So the most
    such batches that still do with `batches` need exactly so many, and leave the last one nearly full.
    """
    assert batching.batch_bins is not None
    bounds, most, size = _bounds(lengths, batching), _most(lengths, batching), lengths.size

    def fits(budget: int, finer: int) -> bool:
        return _cut(bounds, budget, finer, most, batches)[-1] == size

    budget = 1 + bisect.bisect_left(range(1, batching.batch_bins), True, key=lambda b: fits(b, 0))
    finer = bisect.bisect_left(range(1, batches), True, key=lambda j: not fits(budget, j))
    return _cut(bounds, budget, finer, most, batches)


def _cut(bounds: memoryview, budget: int, finer: int, most: int, batches: int) -> list[int]:
    """Return the ends of greedy batches, at most so many: the first `finer` at `budget - 1`, the rest at `budget`.

    The one Python loop of planning that grows with the data: over batches, at about 0.1 us each.
    """
    ends: list[int] = []
    size = len(bounds)
    position = 0
    for allowance, rounds in ((budget - 1, finer), (budget, batches - finer)):
        for _ in range(rounds):
            if position >= size:
                break
            count = allowance // bounds[position] or 1
            position += count if count < most else most
            ends.append(position)
    if position > size:
        ends[-1] = size
    return ends


def _bounds(lengths: NDArray[np.int32], batching: Batching) -> memoryview:
    """Return, for each start of a batch, what its longest utterance may cost."""
    bounds = np.empty_like(lengths)
    np.maximum.accumulate(lengths[::-1], out=bounds[::-1])
    return memoryview(batching.costs_of(bounds))


def _most(lengths: NDArray[np.int32], batching: Batching) -> int:
    return batching.max_batch_size or max(lengths.size, 1)
