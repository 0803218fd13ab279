"""Equal steps: how all ranks come to the same number of batches without a collective (G5).

Every rank plans for every rank, so each knows K, the number of steps of an epoch:

    split   K = most batches that any rank needs; the others cut finer until they have K
    drop    K = fewest; the others leave batches out, other ones in every epoch
    pad     K = most; the others repeat batches of their own, marked as filler
    off     each rank has its own number
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..errors import ShardingError
from .cut import Staircase, charge_lengths, count_batches, cut_exactly
from .cut_ranks import find_budgets
from .hashing import Stream, hash_ordinals, stage_salt, stream_key
from .settings import Batching

MANY_RANKS = 96
"""So many are searched together rather than one by one; it changes how long that takes, not what is found."""


@dataclass(frozen=True, eq=False)
class Cut:
    """The batches of one rank, by position in length order.

    Attributes:
        bounds: int64[n + 1], batch i holds positions `bounds[i]` up to `bounds[i + 1]` of the length order.
        taken: int64[K], which of these batches the epoch delivers, ascending; one comes again where steps are padded.
        filler: bool[K], whether it is such a repetition.
        dropped_utterances: number of utterances in batches that are not delivered.
    """

    bounds: NDArray[np.int64]
    taken: NDArray[np.int64]
    filler: NDArray[np.bool_]
    dropped_utterances: int = 0

    @classmethod
    def join(cls, cuts: Sequence[Cut]) -> Cut:
        """Return the batches of several length orders as those of one after the other."""
        if len(cuts) == 1:
            return cuts[0]
        ends = np.cumsum([0, *(int(cut.bounds[-1]) for cut in cuts)])
        batches = np.cumsum([0, *(cut.bounds.size - 1 for cut in cuts)])
        return cls(
            np.concatenate([*(cut.bounds[:-1] + end for cut, end in zip(cuts, ends, strict=False)), ends[-1:]]),
            np.concatenate([cut.taken + first for cut, first in zip(cuts, batches, strict=False)]),
            np.concatenate([cut.filler for cut in cuts]),
            sum(cut.dropped_utterances for cut in cuts),
        )

    def without(self, utterances: int) -> Cut:
        """Return the same batches, with so many more utterances counted as not delivered."""
        return replace(self, dropped_utterances=self.dropped_utterances + utterances)

    @property
    def starts(self) -> NDArray[np.int64]:
        """Return int64[K]: first position of each batch delivered."""
        return self.bounds[self.taken]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Return int64[K]: number of utterances of each batch delivered."""
        return self.bounds[self.taken + 1] - self.bounds[self.taken]


def cut_equally(
    lengths: Sequence[NDArray[np.int32]],
    logical_shards: Sequence[str],
    batching: Batching,
    *,
    seed: int,
    epoch: int,
    salt: int = 0,
    rest: bool = False,
) -> list[Cut]:
    """Return the batches of every rank, equally many unless the policy is "off".

    Args:
        lengths: int32[n] of each rank, in length order.
        logical_shards: what each rank reads, as messages name it.
        batching: budget and policy.
        seed: of the run.
        epoch: number of the epoch.
        salt: what tells these batches from those of other stages and windows of the epoch.
        rest: whether this is the rest of an epoch, dealt anew. It may be too small for any policy, and a run must be
            able to go on: "split" then pads the ranks with too few utterances, and "drop" may leave no step.

    Raises:
        ShardingError: a rank has too few utterances for the policy.
    """
    more = stage_salt(salt)
    stairs = [charge_lengths(of_rank, batching) for of_rank in lengths]
    counts = [count_batches(of_rank, batching) for of_rank in stairs]
    match batching.equal_steps:
        case "split":
            steps = max(counts)
            if not rest:
                _check_split(stairs, logical_shards, steps, batching)
            own = [
                min(steps, max(count, each.utterances // batching.fewest))
                for count, each in zip(counts, stairs, strict=True)
            ]
            return [
                _pad(bounds, steps, stream_key(Stream.FILLER_BATCHES, seed, epoch, rank, *more))
                for rank, bounds in enumerate(_cut_all(stairs, batching, own))
            ]
        case _:
            return match_steps(
                _cut_all(stairs, batching, counts),
                logical_shards,
                batching,
                seed=seed,
                epoch=epoch,
                salt=salt,
                rest=rest,
            )


def match_steps(
    bounds: Sequence[NDArray[np.int64]],
    logical_shards: Sequence[str],
    batching: Batching,
    *,
    seed: int,
    epoch: int,
    salt: int = 0,
    rest: bool = False,
) -> list[Cut]:
    """Return the batches of every rank, equally many unless the policy is "off", without cutting any.

    Args:
        bounds: int64[batches + 1] of each rank, batch i holds positions `bounds[i]` up to `bounds[i + 1]`.
        logical_shards: what each rank reads, as messages name it.
        batching: the policy, which is not "split".
        seed: of the run.
        epoch: number of the epoch.
        salt: as for `cut_equally`.
        rest: as for `cut_equally`.

    Raises:
        ShardingError: a rank has no batch.
    """
    more = stage_salt(salt)
    counts = [of_rank.size - 1 for of_rank in bounds]
    if batching.equal_steps == "off":
        return [_whole(of_rank) for of_rank in bounds]
    if batching.equal_steps == "drop":
        if not rest:
            _check_empty(counts, logical_shards, batching, "would leave no steps")
        return [
            _drop(of_rank, min(counts), stream_key(Stream.DROPPED_BATCHES, seed, epoch, rank, *more))
            for rank, of_rank in enumerate(bounds)
        ]
    _check_empty(counts, logical_shards, batching, "has no batch to repeat")
    return [
        _pad(of_rank, max(counts), stream_key(Stream.FILLER_BATCHES, seed, epoch, rank, *more))
        for rank, of_rank in enumerate(bounds)
    ]


def _cut_all(stairs: Sequence[Staircase], batching: Batching, counts: Sequence[int]) -> list[NDArray[np.int64]]:
    """Return the bounds of so many batches for each rank."""
    found: dict[int, tuple[int, int]] = {}
    if batching.batch_bins is not None and len(stairs) >= MANY_RANKS:
        searched = [rank for rank, count in enumerate(counts) if 0 < count < stairs[rank].utterances]
        of_ranks = [(stairs[rank], counts[rank]) for rank in searched]
        budgets = find_budgets(of_ranks, batching.batch_bins, batching.fewest, batching.max_batch_size)
        found = dict(zip(searched, budgets, strict=True))
    pairs = enumerate(zip(stairs, counts, strict=True))
    return [cut_exactly(of_rank, batching, count, found.get(rank)) for rank, (of_rank, count) in pairs]


def _whole(bounds: NDArray[np.int64]) -> Cut:
    batches = bounds.size - 1
    return Cut(bounds, np.arange(batches), np.zeros(batches, np.bool_))


def _drop(bounds: NDArray[np.int64], steps: int, key: int) -> Cut:
    batches = bounds.size - 1
    taken = np.sort(_draw(batches, steps, key))
    left_out = int(bounds[-1] - (bounds[taken + 1] - bounds[taken]).sum())
    return Cut(bounds, taken, np.zeros(steps, np.bool_), left_out)


def _pad(bounds: NDArray[np.int64], steps: int, key: int) -> Cut:
    batches = bounds.size - 1
    if batches in (0, steps):
        return _whole(bounds)
    times = np.full(batches, steps // batches)
    times[_draw(batches, steps % batches, key)] += 1
    # A repetition stands beside its original, so that lengths stay aligned with those of the other ranks.
    taken = np.repeat(np.arange(batches), times)
    filler = np.zeros(steps, np.bool_)
    filler[1:] = taken[1:] == taken[:-1]
    return Cut(bounds, taken, filler)


def _draw(batches: int, chosen: int, key: int) -> NDArray[np.int64]:
    hashes = hash_ordinals(key, np.arange(batches, dtype=np.int64))
    return np.argsort(hashes, kind="stable")[:chosen]


def _check_split(stairs: Sequence[Staircase], logical_shards: Sequence[str], steps: int, batching: Batching) -> None:
    sizes = [of_rank.utterances for of_rank in stairs]
    rank = int(np.argmin(sizes))
    if sizes[rank] < steps * batching.fewest:
        at_least = "" if batching.min_batch_size is None else f" of min_batch_size={batching.min_batch_size}"
        raise ShardingError(
            f"rank {rank} reads {logical_shards[rank]}, which has {sizes[rank]} utterances after "
            f"filtering, but the epoch has {steps} steps{at_least}, which no split of them makes: use "
            f"{_fewer(batching)}, a larger {_describe_size(batching)}, or equal_steps='drop' or 'pad'"
        )


def _check_empty(counts: Sequence[int], logical_shards: Sequence[str], batching: Batching, consequence: str) -> None:
    if min(counts) == 0 and max(counts) > 0:
        rank = int(np.argmin(counts))
        raise ShardingError(
            f"rank {rank} reads {logical_shards[rank]}, which has no utterance after filtering, or makes no batch of "
            f"them; equal_steps={batching.equal_steps!r} {consequence}: use {_fewer(batching)}, smaller batches, or "
            "loosen the filters"
        )


def _fewer(batching: Batching) -> str:
    return (
        "fewer total_shards" if batching.windows is None else f"fewer total_shards or windows (now {batching.windows})"
    )


def _describe_size(batching: Batching) -> str:
    if batching.batch_bins is not None:
        return f"batch_bins (now {batching.batch_bins})"
    return f"batch_size (now {batching.batch_size})"
