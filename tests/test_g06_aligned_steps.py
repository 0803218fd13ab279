"""G6 aligned steps: at each step all ranks hold batches of similar length, so that none waits for another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from planning_cases import corpus_of, speech_like
from uttershard.pipeline.planning.order import order_steps
from uttershard.pipeline.planning.plan import EpochLayout, lay_out_epoch
from uttershard.pipeline.planning.settings import Batching


def _longest(layout: EpochLayout) -> NDArray[np.int32]:
    return np.stack([layout.plan(rank).longest for rank in range(layout.world_size)])


@pytest.mark.parametrize("world_size", [2, 8, 16])
@pytest.mark.parametrize("policy", ["split", "drop", "pad"])
def test_ranks_differ_little_at_each_step(world_size: int, policy: str) -> None:
    frames = speech_like(2_000 * world_size)
    corpus = corpus_of(frames, total_shards=world_size)
    batching = Batching(batch_bins=30_000, equal_steps=policy)  # type: ignore[arg-type]
    longest = _longest(lay_out_epoch(corpus, world_size, world_size, batching, epoch=2))
    spread = np.ptp(longest, axis=0)
    # Ranks differ by the sampling noise of their length quantiles: a few percent of the corpus' range.
    assert spread.max() <= 0.15 * np.ptp(frames)
    assert spread.mean() <= 0.03 * np.ptp(frames)


def test_ranks_with_the_same_lengths_differ_by_a_bucket_at_most() -> None:
    # The order in a bucket differs between ranks, so a batch's longest does too: by less than the bucket's width
    # where a bucket holds several batches.
    once = np.repeat(np.array([300, 301, 302, 303, 900, 904, 908, 911]), 500)
    longest = _longest(
        lay_out_epoch(corpus_of(np.tile(once, 4), total_shards=4), 4, 4, Batching(batch_bins=20_000), epoch=0)
    )
    assert (np.ptp(longest, axis=0) <= 1 + 0.0125 * longest.max(axis=0)).all()


@given(steps=st.integers(0, 300), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 99))
def test_order_of_steps_is_a_permutation(steps: int, seed: int, epoch: int) -> None:
    assert sorted(order_steps(steps, seed=seed, epoch=epoch).tolist()) == list(range(steps))


def test_order_of_steps_changes_with_epoch_and_seed() -> None:
    orders = {tuple(order_steps(50, seed=seed, epoch=epoch).tolist()) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_batches_come_in_no_order_of_length() -> None:
    corpus = corpus_of(speech_like(20_000))
    longest = lay_out_epoch(corpus, 1, 1, Batching(batch_bins=20_000), epoch=0).plan(0).longest
    assert abs(np.corrcoef(longest, np.arange(longest.size))[0, 1]) < 0.1


@pytest.mark.parametrize("policy", ["split", "drop", "pad", "off"])
@pytest.mark.parametrize("size", [{"batch_bins": 9_000}, {"batch_bins": 9_000, "quadratic": 800}, {"batch_size": 7}])
def test_longest_first_puts_the_heaviest_batch_at_step_0(policy: str, size: dict[str, int]) -> None:
    corpus = corpus_of(speech_like(3_000), total_shards=3)
    batching = Batching(**size, longest_first=True, equal_steps=policy)  # type: ignore[arg-type]
    layout = lay_out_epoch(corpus, 3, 3, batching, epoch=4, seed=9)
    plans = [layout.plan(rank) for rank in range(3)]
    costs = [np.diff(plan.splits) * batching.costs_of(plan.longest) for plan in plans]
    if policy == "off":
        for of_rank in costs:
            assert of_rank[0] == of_rank.max()
    else:
        assert max(of_rank[0] for of_rank in costs) == max(of_rank.max() for of_rank in costs)
