"""Where to cut finer, for many ranks at once: `find_budget` for all of them, in steps that they take together.

An epoch of many ranks has few batches on each, so that it is the ranks that cost, not their batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .cut import Staircase, least_budget

Numbers = NDArray[np.int64]


class Stairs(NamedTuple):
    """The staircases of all ranks, one after the other."""

    costs: Numbers
    ends: Numbers
    """Positions where stairs end, each counted from its rank's `origins`."""
    sorted_ends: Numbers
    """The same counted from the first rank's origin, ascending."""
    origins: Numbers
    sizes: Numbers

    @classmethod
    def of(cls, ranks: Sequence[Staircase]) -> Stairs:
        """Put staircases together."""
        sizes = np.array([rank.utterances for rank in ranks], np.int64)
        origins = np.cumsum(np.append(0, sizes[:-1] + 1))
        ends = np.concatenate([np.array(rank.ends, np.int64) for rank in ranks])
        of_stairs = np.repeat(origins, [len(rank.ends) for rank in ranks])
        return cls(
            np.concatenate([np.array(rank.costs, np.int64) for rank in ranks]), ends, ends + of_stairs, origins, sizes
        )


def find_budgets(
    ranks: Sequence[tuple[Staircase, int]], batch_bins: int, fewest: int, most: int | None
) -> list[tuple[int, int]]:
    """Return what `find_budget` does, for each rank.

    Args:
        ranks: their staircases, none of them empty, and the batches that each is to have.
        batch_bins: the budget.
        fewest: utterances of a batch.
        most: utterances of a batch; None for any number.
    """
    if not ranks:
        return []
    stairs, counts = Stairs.of([rank for rank, _ in ranks]), np.array([batches for _, batches in ranks], np.int64)
    lower = np.array([least_budget(rank, batches, fewest) for rank, batches in ranks], np.int64)
    everyone = np.arange(len(ranks))

    def fits(who: Numbers, budget: Numbers, finer: Numbers) -> NDArray[np.bool_]:
        return _reach(stairs, who, budget, finer, counts[who], fewest, most) >= stairs.sizes[who]

    low, high = lower, np.maximum(lower, batch_bins)
    while (who := everyone[low < high]).size:
        middle = (low[who] + high[who]) // 2
        enough = fits(who, middle, np.zeros_like(who))
        high[who[enough]], low[who[~enough]] = middle[enough], middle[~enough] + 1
    budgets = low
    low, high = np.zeros_like(counts), counts - 1
    while (who := everyone[low < high]).size:
        middle = (low[who] + high[who]) // 2
        enough = fits(who, budgets[who], middle + 1)
        low[who[enough]], high[who[~enough]] = middle[enough] + 1, middle[~enough]
    return list(zip(budgets.tolist(), low.tolist(), strict=True))


def _reach(
    stairs: Stairs, who: Numbers, budget: Numbers, finer: Numbers, batches: Numbers, fewest: int, most: int | None
) -> Numbers:
    """Return the positions where the cuts of some ranks end: `_cut` of cut.py without its runs."""
    position = np.zeros_like(budget)
    for allowance, total in ((budget - 1, finer), (budget, batches - finer)):
        left = total.copy()
        while (now := np.flatnonzero((left > 0) & (position < stairs.sizes[who]))).size:
            at = position[now]
            stair = np.searchsorted(stairs.sorted_ends, at + stairs.origins[who[now]], side="right")
            size = np.maximum(allowance[now] // stairs.costs[stair], fewest)
            if most is not None:
                size = np.minimum(size, most)
            count = np.minimum(-((at - stairs.ends[stair]) // size), left[now])
            position[now] += size * count
            left[now] -= count
    return position
