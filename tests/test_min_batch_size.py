"""`min_batch_size` with `bucket`: no smaller batch, budget and equal steps as ever, and what is left out is counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from packed import BINS, Packed
from planning_cases import Case, cases, corpus_of
from uttershard.pipeline.errors import ConfigError, ShardingError
from uttershard.pipeline.planning.elastic import Stage
from uttershard.pipeline.planning.layout import EpochLayout
from uttershard.pipeline.planning.plan import lay_out_epoch, lay_out_rest
from uttershard.pipeline.planning.settings import Batching


def _delivered(layout: EpochLayout, steps: int | None = None) -> list[int]:
    rows = []
    for rank in range(layout.world_size):
        plan = layout.plan(rank)
        for step in range(plan.steps if steps is None else min(steps, plan.steps)):
            rows += [] if plan.filler[step] else plan.batch(step).tolist()
    return rows


@given(
    case=cases(fewest_per_shard=1),
    fewest=st.integers(2, 9),
    times=st.integers(1, 30),
    most=st.none() | st.integers(0, 9),
    fixed=st.booleans(),
    oversize=st.booleans(),
    policy=st.sampled_from(["split", "drop", "pad", "off"]),
)
def test_no_batch_is_smaller_or_over_the_budget_and_what_is_left_out_is_counted(
    case: Case, fewest: int, times: int, most: int | None, fixed: bool, oversize: bool, policy: Any
) -> None:
    budget = max(times, 0 if oversize else fewest) * int(case.frames.max())
    size: dict[str, Any] = {"batch_size": fewest + times} if fixed else {"batch_bins": budget}
    if not fixed:
        size |= {"max_batch_size": None if most is None else fewest + most, "oversize": "drop" if oversize else "error"}
    batching = Batching(**size, min_batch_size=fewest, equal_steps=policy)
    corpus = case.corpus()
    try:
        layout = lay_out_epoch(corpus, case.world_size, case.total_shards, batching, epoch=case.epoch, seed=case.seed)
    except ShardingError as refused:
        assert "utterance" in str(refused) and policy != "off"
        return
    except ConfigError as refused:
        assert oversize and "all" in str(refused)
        return
    if policy != "off":
        assert len({rank.steps for rank in layout.ranks}) == 1
    for rank in range(case.world_size):
        plan = layout.plan(rank)
        sizes = np.diff(plan.splits)
        assert (sizes >= fewest).all()
        assert fixed or (sizes * plan.longest <= budget).all()
        summary = layout.ranks[rank]
        shard = summary.logical_shard
        kept = corpus.kept_rows(shard if shard is not None else -1)
        if oversize and not fixed:
            kept = kept[corpus.frames[kept] <= budget // fewest]
        own = np.concatenate([plan.batch(step) for step in range(plan.steps) if not plan.filler[step]] or [kept[:0]])
        assert np.unique(own).size == own.size
        assert set(own.tolist()) <= set(kept.tolist())
        assert own.size + summary.dropped_utterances == kept.size
        if policy != "drop":
            assert summary.dropped_utterances < fewest


@given(case=cases(fewest_per_shard=20), fewest=st.integers(2, 5), share=st.floats(0, 1), ranks=st.integers(1, 6))
def test_going_on_with_other_ranks_loses_and_repeats_nothing(case: Case, fewest: int, share: float, ranks: int) -> None:
    batching = Batching(batch_bins=4 * fewest * int(case.frames.max()), min_batch_size=fewest)
    world = case.world_size
    corpus = case.corpus()
    try:
        layout = lay_out_epoch(corpus, world, case.total_shards, batching, epoch=case.epoch, seed=case.seed)
    except ShardingError:
        assume(False)
    steps = round(share * layout.plan(0).steps)
    first = _delivered(layout, steps)
    stages = [Stage(world, case.total_shards, steps)]
    total = case.total_shards * ranks
    rest = lay_out_rest(corpus, stages, ranks, total, batching, epoch=case.epoch, seed=case.seed)
    assert sorted(first + _delivered(rest)) == sorted(_delivered(layout))
    assert len({rest.plan(rank).steps for rank in range(ranks)}) == 1


def test_without_it_and_with_one_plans_are_the_same() -> None:
    corpus = corpus_of(100 + np.arange(90) * 7919 % 500, total_shards=2)
    plans = [
        lay_out_epoch(corpus, 2, 2, Batching(batch_bins=2_000, min_batch_size=least), epoch=3).plan(1)
        for least in (None, 1)
    ]
    assert plans[0].rows.tolist() == plans[1].rows.tolist()
    assert plans[0].splits.tolist() == plans[1].splits.tolist()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"batch_bins": 900, "min_batch_size": 0}, "min_batch_size=0"),
        ({"batch_bins": 900, "min_batch_size": 8, "max_batch_size": 4}, "min_batch_size=8 is above max_batch_size=4"),
        ({"batch_size": 4, "min_batch_size": 5}, "min_batch_size=5 is above batch_size=4"),
        ({"batch_bins": 900, "min_batch_size": 2, "oversize": "alone"}, "min_batch_size=2 rules out"),
    ],
)
def test_what_can_not_be_is_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Batching(**settings)


def test_errors_say_what_it_has_to_do_with_it() -> None:
    corpus = corpus_of(np.array([400, *[100] * 30]), total_shards=2)
    with pytest.raises(ConfigError, match=r"1 of 31 .* allows with min_batch_size=3 \(300 frames.* batch_bins to 1200"):
        lay_out_epoch(corpus, 2, 2, Batching(batch_bins=900, min_batch_size=3), epoch=0)
    uneven = corpus_of(np.array([*[1000] * 20, *[20_000] * 1]), total_shards=2)
    with pytest.raises(ShardingError, match=r"rank 1 .* 0 utterances .* 7 steps of min_batch_size=2"):
        lay_out_epoch(uneven, 2, 2, Batching(batch_bins=3000, min_batch_size=2, oversize="drop"), epoch=0)


@pytest.mark.parametrize("workers", [{"threads": 2}, {"num_workers": 2, "multiprocessing_context": "fork"}])
def test_delivered(flac: Packed, workers: dict[str, Any]) -> None:
    loader = flac.loader(min_batch_size=4, max_seconds=BINS / 400, **workers)
    sizes = [len(batch) for batch in loader]
    assert min(sizes) >= 4
    assert sum(sizes) + loader.plan.ranks[0].dropped_utterances == loader.filtered["kept"]
    assert loader.state_dict()["min_batch_size"] == 4
