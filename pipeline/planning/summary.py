"""What an epoch costs each rank: padding, fill, steps; from the lengths alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .settings import Batching
from .steps import Cut


@dataclass(frozen=True)
class RankSummary:
    """One rank's epoch in numbers. Filler batches count in the steps only, so that they show as lower fill.

    Attributes:
        rank: the rank.
        logical_shard: what it reads; None for the rest of an epoch dealt anew.
        utterances: utterances delivered, each counted once.
        frames: their frames.
        padded_frames: frames of their batches, padding included.
        padding: share of padded_frames that is padding.
        fill: what the batches cost, by the rule of `Batching`, of steps * batch_bins; None without a hard budget.
        steps: number of batches.
        filler_steps: how many of them repeat a batch.
        dropped_utterances: utterances left out to come to equal steps.
    """

    rank: int
    logical_shard: int | None
    utterances: int
    frames: int
    padded_frames: int
    padding: float
    fill: float | None
    steps: int
    filler_steps: int
    dropped_utterances: int


def longest_of_batches(lengths: NDArray[np.int32], cut: Cut) -> NDArray[np.int32]:
    """Return int32[K]: frames of the longest utterance of each batch that a rank delivers, in length order."""
    if lengths.size == 0:
        return np.zeros(0, np.int32)
    longest: NDArray[np.int32] = np.maximum.reduceat(lengths, cut.bounds[:-1])[cut.taken]
    return longest


def summarise_rank(
    rank: int,
    logical_shard: int | None,
    lengths: NDArray[np.int32],
    cut: Cut,
    longest: NDArray[np.int32],
    batching: Batching,
) -> RankSummary:
    """Return the numbers of one rank.

    Args:
        rank: the rank.
        logical_shard: what it reads.
        lengths: int32[n], in length order.
        cut: its batches.
        longest: from `longest_of_batches`.
        batching: the budget.
    """
    first = ~cut.filler
    sizes = cut.sizes[first]
    padded = int((sizes * longest[first]).sum())
    frames = 0
    if lengths.size:
        of_batches = np.add.reduceat(lengths, cut.bounds[:-1], dtype=np.int64)
        frames = int(of_batches[cut.taken[first]].sum())
    steps = cut.taken.size
    fill = None
    if batching.budget_frames is not None:
        cost = int((sizes * batching.costs_of(longest[first])).sum())
        fill = cost / (steps * batching.budget_frames) if steps else 0.0
    return RankSummary(
        rank=rank,
        logical_shard=logical_shard,
        utterances=int(sizes.sum()),
        frames=frames,
        padded_frames=padded,
        padding=1 - frames / padded if padded else 0.0,
        fill=fill,
        steps=steps,
        filler_steps=int(np.count_nonzero(cut.filler)),
        dropped_utterances=cut.dropped_utterances,
    )


def add_up(parts: Sequence[RankSummary], batching: Batching) -> RankSummary:
    """Return the numbers of a rank's epoch from those of its windows."""
    first = parts[0]
    if len(parts) == 1:
        return first
    frames, padded = sum(part.frames for part in parts), sum(part.padded_frames for part in parts)
    steps = sum(part.steps for part in parts)
    fill = None
    if batching.budget_frames is not None:
        fill = sum((part.fill or 0.0) * part.steps for part in parts) / steps if steps else 0.0
    return RankSummary(
        rank=first.rank,
        logical_shard=first.logical_shard,
        utterances=sum(part.utterances for part in parts),
        frames=frames,
        padded_frames=padded,
        padding=1 - frames / padded if padded else 0.0,
        fill=fill,
        steps=steps,
        filler_steps=sum(part.filler_steps for part in parts),
        dropped_utterances=sum(part.dropped_utterances for part in parts),
    )
