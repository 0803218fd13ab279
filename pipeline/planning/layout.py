"""What a plan is: the layout of an epoch for all ranks, and the plan of one of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .hashing import CHUNK
from .settings import Sharding
from .steps import Cut
from .summary import RankSummary


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """One epoch of one rank.

    Attributes:
        epoch: number of the epoch.
        sharding: who reads.
        rows: int64[n], ordinals in the order of delivery.
        splits: int64[K + 1], step t delivers `rows[splits[t]:splits[t + 1]]`.
        filler: bool[K], whether the step repeats a batch (equal_steps="pad").
        longest: int32[K], frames of the longest utterance of each step.
        ranks: numbers of all ranks.
        filtered: over the whole dataset, how many utterances are kept and how many each rule removed.
        windows: int64[windows + 1], window i has steps `windows[i]` up to `windows[i + 1]`.
    """

    epoch: int
    sharding: Sharding
    rows: NDArray[np.int64]
    splits: NDArray[np.int64]
    filler: NDArray[np.bool_]
    longest: NDArray[np.int32]
    ranks: tuple[RankSummary, ...]
    filtered: dict[str, int]
    windows: NDArray[np.int64]

    @property
    def rank(self) -> int:
        """The rank whose plan this is."""
        return self.sharding.rank

    @property
    def steps(self) -> int:
        """Number of batches of this rank, K."""
        return self.splits.size - 1

    @property
    def padding(self) -> float:
        """Share of this rank's padded frames that is padding."""
        return self.ranks[self.rank].padding

    @property
    def fill(self) -> float | None:
        """Share of this rank's budget that its batches use; None with batch_size."""
        return self.ranks[self.rank].fill

    def batch(self, step: int) -> NDArray[np.int64]:
        """Return the ordinals that a step delivers, from 0 up to steps - 1."""
        return self.rows[self.splits[step] : self.splits[step + 1]]


@dataclass(frozen=True, eq=False)
class Window:
    """One window of all ranks: rows in length order, batches, their longest, and the order of the steps."""

    ranks: tuple[RankSummary, ...]
    rows: tuple[NDArray[np.int64], ...]
    cuts: tuple[Cut, ...]
    longest: tuple[NDArray[np.int32], ...]
    orders: tuple[NDArray[np.int64], ...]

    def steps_of(self, rank: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_], NDArray[np.int32]]:
        """Return rows, utterances of each step, filler and longest of a rank, in the order of its steps."""
        cut, order = self.cuts[rank], self.orders[rank]
        sizes = cut.sizes[order]
        rows = _gather_runs(self.rows[rank], cut.starts[order], sizes, np.concatenate(([0], np.cumsum(sizes))))
        return rows, sizes, cut.filler[order], self.longest[rank][order]


@dataclass(frozen=True, eq=False)
class EpochLayout:
    """One epoch of all ranks; holds the ordinals of all of them, so keep an `EpochPlan` rather than this.

    Attributes:
        epoch: number of the epoch.
        world_size: number of ranks.
        total_shards: number of logical shards.
        ranks: numbers of all ranks.
        filtered: over the whole dataset, how many utterances are kept and how many each rule removed.
    """

    epoch: int
    world_size: int
    total_shards: int
    ranks: tuple[RankSummary, ...]
    filtered: dict[str, int]
    _windows: tuple[Window, ...]

    def plan(self, rank: int) -> EpochPlan:
        """Return the plan of one rank."""
        sharding = Sharding(rank, self.world_size, self.total_shards)
        rows, sizes, filler, longest = zip(*(window.steps_of(rank) for window in self._windows), strict=True)
        splits = np.cumsum(np.concatenate(([0], *sizes)))
        return EpochPlan(
            self.epoch,
            sharding,
            np.concatenate(rows),
            splits,
            np.concatenate(filler),
            np.concatenate(longest),
            self.ranks,
            self.filtered,
            np.cumsum([0, *(of_window.size for of_window in sizes)]),
        )

    def remaining(self, steps: int) -> NDArray[np.int64]:
        """Return the ordinals that all ranks have yet to deliver after so many steps, ascending; fillers apart."""
        left = [np.zeros(0, np.int64)]
        for rank in range(self.world_size):
            plan = self.plan(rank)
            first = min(steps, plan.steps)
            own = np.repeat(~plan.filler[first:], np.diff(plan.splits[first:]))
            left.append(plan.rows[plan.splits[first] :][own])
        return np.sort(np.concatenate(left))


def _gather_runs(
    rows: NDArray[np.int64], starts: NDArray[np.int64], sizes: NDArray[np.int64], splits: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return `rows[starts[i]:starts[i] + sizes[i]]` for each i, one after the other; no batch is empty."""
    places = np.ones(int(splits[-1]), np.int64)
    if not places.size:
        return places
    # Steps by one inside a run and leaps between runs; the running sum makes places of them.
    places[0] = starts[0]
    places[splits[1:-1]] = starts[1:] - (starts[:-1] + sizes[:-1] - 1)
    np.cumsum(places, out=places)
    for start in range(0, places.size, CHUNK):
        part = slice(start, start + CHUNK)
        places[part] = rows[places[part]]
    return places
