"""Cutting the length order into batches, greedily at a budget (G4), or into exactly so many (G5).

A batch that starts at position s is charged for the longest utterance at or after s. These charges never rise along
the order, so that no batch exceeds the budget, and a larger budget never reaches less far: what the bisection in
`cut_exactly` stands on. They fall in few steps, one or a few for each length bucket, and are kept as a staircase:

    charge   ______
                   |_____
                         |_________________        all batches that start on one stair have one size,
             0     ends[0] ends[1]    ends[-1]     so that a cut costs one round a stair, not one a batch
"""

from __future__ import annotations

import bisect
import operator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import UttershardError
from .settings import Batching


@dataclass(frozen=True)
class Staircase:
    """What utterances in length order are charged with: stair i costs `costs[i]` each, up to position `ends[i]`."""

    costs: list[int]
    ends: list[int]

    @property
    def utterances(self) -> int:
        """Number of utterances."""
        return self.ends[-1] if self.ends else 0


def charge_lengths(lengths: NDArray[np.int32], batching: Batching) -> Staircase:
    """Return the charges of utterances.

    Args:
        lengths: int32[n], in length order.
        batching: the rule of cost.
    """
    if not lengths.size:
        return Staircase([], [])
    longest = np.empty_like(lengths)
    np.maximum.accumulate(lengths[::-1], out=longest[::-1])
    lasts = np.flatnonzero(longest[1:] != longest[:-1])
    ends = np.append(lasts + 1, lengths.size)
    return Staircase(batching.costs_of(longest[ends - 1]).tolist(), ends.tolist())


def count_batches(stairs: Staircase, batching: Batching) -> int:
    """Return how many batches the utterances make at the full budget; the fewest there can be in this order."""
    if batching.batch_bins is None:
        return -(-stairs.utterances // (batching.batch_size or 1))
    most = batching.max_batch_size or stairs.utterances
    runs, _ = _cut(stairs, batching.batch_bins, 0, most, stairs.utterances)
    return sum(count for _, count in runs)


def count_in_batches(stairs: Staircase, batching: Batching) -> int:
    """Return how many utterances can be in batches of `min_batch_size` or more; the rest is less than one of these."""
    size, batches = stairs.utterances, count_batches(stairs, batching)
    if size >= batches * batching.fewest:
        return size
    if batching.batch_bins is None:
        return (batches - 1) * (batching.batch_size or 1)
    return _cut(stairs, batching.batch_bins, 0, batching.max_batch_size or size, batches - 1)[1]


def cut_exactly(
    stairs: Staircase, batching: Batching, batches: int, found: tuple[int, int] | None = None
) -> NDArray[np.int64]:
    """Return the bounds of exactly so many batches, alike in fill.

    Args:
        stairs: charges of n utterances.
        batching: the budget that no batch exceeds.
        batches: from `count_batches` up to n.
        found: what `find_budget` returns, if that is known.

    Returns:
        int64[batches + 1]: batch i holds positions `bounds[i]` up to `bounds[i + 1]`, at least `min_batch_size` if
        there are enough for all, else at least one.
    """
    bounds, size = _cut_bounds(stairs, batching, batches, found), stairs.utterances
    if batching.fewest == 1 or size < batches * batching.fewest:
        return bounds
    # Only the last batch can be smaller. It takes from the one before, which may take in turn; so many of any utterance
    # fit the budget.
    return np.minimum(bounds, size - batching.fewest * np.arange(batches, -1, -1))


def _cut_bounds(
    stairs: Staircase, batching: Batching, batches: int, found: tuple[int, int] | None
) -> NDArray[np.int64]:
    size = stairs.utterances
    if batches == size:
        return np.arange(size + 1)
    if batching.batch_bins is None:
        if batches == count_batches(stairs, batching):
            # Plain batches and a rest: what whoever asks for a fixed size expects.
            return np.minimum(np.arange(batches + 1) * (batching.batch_size or 1), size)
        return np.arange(batches + 1) * size // batches
    most = batching.max_batch_size or size
    budget, finer = found or find_budget(stairs, batching.batch_bins, batching.fewest, most, batches)
    runs = np.array(_cut(stairs, budget, finer, most, batches, batching.fewest)[0], np.int64)
    bounds = np.zeros(int(runs[:, 1].sum()) + 1, np.int64)
    np.cumsum(np.repeat(runs[:, 0], runs[:, 1]), out=bounds[1:])
    if bounds.size != batches + 1 or not bounds[-2] < size <= bounds[-1]:
        raise UttershardError(
            f"internal error: {size} utterances cut into {bounds.size - 1} batches up to {bounds[-1]} instead of "
            f"{batches} under {batching}: please report these settings"
        )
    bounds[-1] = size
    return bounds


def find_budget(stairs: Staircase, batch_bins: int, fewest: int, most: int, batches: int) -> tuple[int, int]:
    """Return the smallest budget that needs no more than `batches`, and for how many of them one less has to do.

    That budget may need fewer, and one less needs more. Giving one more of the first batches the smaller budget adds
    at most one batch: from any later start, one batch reaches at least as far as the replaced one did. So the most
    such batches that still do with `batches` need exactly so many, and leave the last one nearly full.
    """

    def fits(budget: int, finer: int) -> bool:
        return _cut(stairs, budget, finer, most, batches, fewest)[1] >= stairs.utterances

    least = least_budget(stairs, batches, fewest)
    budget = least + bisect.bisect_left(range(least, batch_bins), True, key=lambda b: fits(b, 0))
    finer = bisect.bisect_left(range(1, batches), True, key=lambda j: not fits(budget, j))
    return budget, finer


def least_budget(stairs: Staircase, batches: int, fewest: int) -> int:
    """Return a budget below which no cut has so few batches."""
    # No batch is charged more than its budget, so that batches * budget covers all charges: most budgets need no try.
    # Not so below the longest utterance, which is let through alone, or with as many as a batch must have.
    charged = sum(map(operator.mul, stairs.costs, map(operator.sub, stairs.ends, [0, *stairs.ends])))
    least = -(-charged // batches)
    return 1 if least <= stairs.costs[0] * fewest else least


def _cut(
    stairs: Staircase, budget: int, finer: int, most: int, batches: int, fewest: int = 1
) -> tuple[list[tuple[int, int]], int]:
    """Return a greedy cut of at most so many batches: the first `finer` at `budget - 1`, the others at `budget`.

    It comes as runs of (utterances of a batch, number of such batches), and the position where it ends: before the
    last utterance if the batches do not suffice, or beyond it by what the last batch has room for.
    """
    costs, ends, size = stairs.costs, stairs.ends, stairs.utterances
    runs: list[tuple[int, int]] = []
    position = stair = 0
    for allowance, left in ((budget - 1, finer), (budget, batches - finer)):
        while left and position < size:
            stair = bisect.bisect_right(ends, position, stair)
            utterances = allowance // costs[stair]
            if utterances < fewest:
                utterances = fewest
            if utterances > most:
                utterances = most
            # As many batches as start on this stair; the last of them may end on a lower one.
            count = -((position - ends[stair]) // utterances)
            if count > left:
                count = left
            runs.append((utterances, count))
            position += utterances * count
            left -= count
    return runs, position
