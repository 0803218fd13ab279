"""G5 equal steps: all ranks have the same number of batches, each rank knowing it without asking the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import Case, cases, corpus_of, speech_like
from uttershard.pipeline.errors import ShardingError
from uttershard.pipeline.planning.cut import charge_lengths, count_batches, cut_exactly
from uttershard.pipeline.planning.plan import lay_out_epoch, plan_epoch
from uttershard.pipeline.planning.settings import Batching, Filters, Sharding


@given(
    case=cases(fewest_per_shard=1),
    times=st.integers(1, 10),
    policy=st.sampled_from(["split", "drop", "pad"]),
    fixed=st.booleans(),
)
def test_equal_on_all_ranks_or_refused_by_name(case: Case, times: int, policy: str, fixed: bool) -> None:
    size: dict[str, Any] = {"batch_size": times} if fixed else {"batch_bins": times * int(case.frames.max())}
    batching = Batching(**size, equal_steps=policy)  # type: ignore[arg-type]
    corpus = case.corpus()
    shards = case.total_shards
    own = lay_out_epoch(
        corpus, case.world_size, shards, Batching(**size, equal_steps="off"), epoch=case.epoch, seed=case.seed
    )
    needed = [rank.steps for rank in own.ranks]
    fewest = min(rank.utterances for rank in own.ranks)
    if policy == "split" and fewest < max(needed):
        with pytest.raises(ShardingError, match=f"{fewest} utterances .* {max(needed)} steps"):
            lay_out_epoch(corpus, case.world_size, shards, batching, epoch=case.epoch, seed=case.seed)
        return
    layout = lay_out_epoch(corpus, case.world_size, shards, batching, epoch=case.epoch, seed=case.seed)
    assert {rank.steps for rank in layout.ranks} == {min(needed) if policy == "drop" else max(needed)}
    for rank in range(case.world_size):
        plan = layout.plan(rank)
        assert plan.steps == plan.filler.size == plan.longest.size == layout.ranks[rank].steps
        assert (np.diff(plan.splits) > 0).all()
        assert np.count_nonzero(plan.filler) == (plan.steps - needed[rank] if policy == "pad" else 0)


@given(
    data=st.data(),
    utterances=st.integers(1, 200),
    longest=st.sampled_from([1, 3, 40, 3000]),
    times=st.floats(1, 30),
    most=st.none() | st.integers(1, 9),
    quadratic=st.none() | st.integers(1, 4000),
    seed=st.integers(0, 2**32),
)
def test_any_number_of_batches_from_the_fewest_to_one_each_is_reached_exactly(
    data: st.DataObject,
    utterances: int,
    longest: int,
    times: float,
    most: int | None,
    quadratic: int | None,
    seed: int,
) -> None:
    # Nearly falling, as hashed buckets are: the charge of a batch is the longest at or after its start.
    random = np.random.default_rng(seed)
    lengths = np.sort(random.integers(1, longest, utterances, endpoint=True).astype(np.int32))[::-1]
    lengths = np.maximum(lengths - random.integers(0, 20, utterances), 1).astype(np.int32)
    rule = Batching(batch_bins=1, quadratic=quadratic)
    batching = Batching(
        batch_bins=int(rule.cost_of(int(lengths.max())) * times), max_batch_size=most, quadratic=quadratic
    )
    stairs = charge_lengths(lengths, batching)
    fewest = count_batches(stairs, batching)
    batches = data.draw(st.integers(fewest, utterances))
    bounds = cut_exactly(stairs, batching, batches)
    assert bounds.size == batches + 1
    assert (bounds[0], bounds[-1]) == (0, utterances)
    sizes = np.diff(bounds)
    assert (sizes >= 1).all()
    costs = batching.costs_of(np.maximum.reduceat(lengths, bounds[:-1]))
    assert batching.batch_bins is not None
    assert (sizes * costs).max() <= batching.batch_bins


@given(size=st.integers(0, 300), batch_size=st.integers(1, 20), data=st.data())
def test_fixed_batch_size_is_plain_on_the_longest_rank_and_even_on_the_others(
    size: int, batch_size: int, data: st.DataObject
) -> None:
    batching = Batching(batch_size=batch_size)
    stairs = charge_lengths(np.ones(size, np.int32), batching)
    fewest = count_batches(stairs, batching)
    assert np.diff(cut_exactly(stairs, batching, fewest))[:-1].tolist() == [batch_size] * max(fewest - 1, 0)
    batches = data.draw(st.integers(fewest, size))
    sizes = np.diff(cut_exactly(stairs, batching, batches))
    assert sizes.size == batches
    assert sizes.sum() == size
    if batches > fewest:
        assert np.ptp(sizes) <= 1


@pytest.mark.parametrize("policy", ["split", "off"])
def test_no_rank_ends_in_a_nearly_empty_batch(policy: str) -> None:
    for seed in range(20):
        frames = speech_like(400 + 37 * seed, seed)
        corpus = corpus_of(frames, total_shards=2)
        layout = lay_out_epoch(corpus, 2, 2, Batching(batch_bins=15_000, equal_steps=policy), epoch=0)  # type: ignore[arg-type]
        for rank in range(2):
            plan = layout.plan(rank)
            padded = np.diff(plan.splits) * plan.longest
            assert padded.min() >= 0.6 * padded.max(), f"seed {seed}, rank {rank}: {np.sort(padded)[:3]}"


def test_too_few_utterances_to_split_names_rank_shard_counts_and_remedies() -> None:
    frames = np.array([100] * 50 + [5000])
    with pytest.raises(ShardingError) as caught:
        plan_epoch(
            corpus_of(frames, total_shards=2),
            Sharding(0, 2),
            Batching(batch_bins=5000, quadratic=10**9, oversize="alone", max_batch_size=2),
            epoch=0,
        )
    for part in (
        "rank 1",
        "logical shard 1",
        "1 utterances",
        "25 steps",
        "total_shards",
        "batch_bins (now 5000)",
        "equal_steps='drop' or 'pad'",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize("policy", ["drop", "pad", "split"])
def test_rank_without_utterances_is_refused_by_name(policy: str) -> None:
    frames = np.array([100] * 10 + [200] * 10)
    corpus = corpus_of(frames, tars=2, total_shards=2, filters=Filters(max_seconds=1))
    batching = Batching(batch_bins=1000, equal_steps=policy)  # type: ignore[arg-type]
    with pytest.raises(ShardingError, match="rank 1 reads logical shard 1"):
        plan_epoch(corpus, Sharding(0, 2), batching, epoch=0)


def test_drop_leaves_out_other_batches_in_other_epochs() -> None:
    frames = np.array([100] * 300 + [400] * 100)
    corpus = corpus_of(frames, tars=4, total_shards=2)
    batching = Batching(batch_size=10, equal_steps="drop")
    uneven = corpus_of(frames[:330], tars=3, total_shards=2)
    delivered = set()
    for epoch in range(10):
        assert plan_epoch(corpus, Sharding(0, 2), batching, epoch=epoch).ranks[0].dropped_utterances == 0
        layout = lay_out_epoch(uneven, 2, 2, batching, epoch=epoch)
        dropped = [rank.dropped_utterances for rank in layout.ranks]
        assert max(dropped) > 0
        delivered.add(tuple(np.sort(layout.plan(int(np.argmax(dropped))).rows).tolist()))
    assert len(delivered) == 10


def test_pad_repeats_whole_batches_of_its_own() -> None:
    frames = np.array([100] * 300 + [400] * 100)
    layout = lay_out_epoch(corpus_of(frames, total_shards=2), 2, 2, Batching(batch_size=10, equal_steps="pad"), epoch=3)
    fillers = 0
    for rank in range(2):
        plan = layout.plan(rank)
        batches = [tuple(plan.batch(step).tolist()) for step in range(plan.steps)]
        originals = {batch for batch, filler in zip(batches, plan.filler, strict=True) if not filler}
        repeated = [batch for batch, filler in zip(batches, plan.filler, strict=True) if filler]
        assert set(repeated) <= originals
        assert len(repeated) == layout.ranks[rank].filler_steps
        fillers += len(repeated)
    assert fillers > 0
