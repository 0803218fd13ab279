"""G4 hard budget: no batch exceeds batch_bins, padding included; an utterance that cannot fit is a choice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import Case, cases, corpus_of, speech_like
from uttershard.pipeline.errors import ConfigError
from uttershard.pipeline.planning.plan import EpochLayout, lay_out_epoch, plan_epoch
from uttershard.pipeline.planning.settings import Batching, Sharding


def _check_batches(case: Case, layout: EpochLayout, batching: Batching) -> None:
    for rank in range(layout.world_size):
        plan = layout.plan(rank)
        for step in range(plan.steps):
            lengths = case.frames[plan.batch(step)]
            longest = int(lengths.max())
            assert plan.longest[step] == longest
            assert batching.batch_bins is not None
            assert lengths.size * batching.cost_of(longest) <= batching.batch_bins, f"rank {rank}, step {step}"
            assert lengths.size <= (batching.max_batch_size or lengths.size)


@given(
    case=cases(fewest_per_shard=1),
    times=st.floats(1, 20),
    policy=st.sampled_from(["off", "drop", "pad"]),
    most=st.none() | st.integers(1, 5),
    quadratic=st.none() | st.integers(1, 5000),
    longest_first=st.booleans(),
)
def test_no_batch_over_the_budget(
    case: Case, times: float, policy: Any, most: int | None, quadratic: int | None, longest_first: bool
) -> None:
    rule = Batching(batch_bins=1, quadratic=quadratic)
    batching = Batching(
        batch_bins=int(rule.cost_of(int(case.frames.max())) * times),
        max_batch_size=most,
        quadratic=quadratic,
        longest_first=longest_first,
        equal_steps=policy,
    )
    for layout in case.cycle(case.corpus(), batching):
        _check_batches(case, layout, batching)


@given(case=cases(fewest_per_shard=40), times=st.floats(10, 20))
def test_no_batch_over_the_budget_when_steps_are_split(case: Case, times: float) -> None:
    batching = Batching(batch_bins=int(case.frames.max() * times) * 2)
    layouts = case.cycle(case.corpus(), batching)
    for layout in layouts:
        _check_batches(case, layout, batching)


@given(case=cases(fewest_per_shard=1), budget=st.integers(1, 3000))
def test_oversize_drop_leaves_out_and_counts(case: Case, budget: int) -> None:
    batching = Batching(batch_bins=budget, oversize="drop", equal_steps="off")
    if budget < case.frames.min():
        with pytest.raises(ConfigError, match=f"all {case.frames.size} utterances are longer than batch_bins={budget}"):
            case.cycle(case.corpus(), batching)
        return
    layouts = case.cycle(case.corpus(), batching)
    delivered = np.concatenate([layout.plan(r).rows for layout in layouts for r in range(layout.world_size)])
    fitting = np.flatnonzero(case.frames <= budget)
    assert np.sort(delivered).tolist() == fitting.tolist()
    for layout in layouts:
        _check_batches(case, layout, batching)
        assert layout.filtered["over_budget"] == case.frames.size - fitting.size
        assert layout.filtered["kept"] == fitting.size


@given(case=cases(fewest_per_shard=1), budget=st.integers(1, 3000))
def test_oversize_alone_is_alone_and_the_others_keep_the_budget(case: Case, budget: int) -> None:
    batching = Batching(batch_bins=budget, oversize="alone", equal_steps="off")
    for layout in case.cycle(case.corpus(), batching):
        for rank in range(layout.world_size):
            plan = layout.plan(rank)
            sizes = np.diff(plan.splits)
            assert (sizes[plan.longest > budget] == 1).all()
            assert (sizes * plan.longest)[plan.longest <= budget].max(initial=0) <= budget


def test_oversize_alone_does_not_isolate_shorter_ones() -> None:
    frames = np.array([500, 1001] * 20)
    plan = plan_epoch(
        corpus_of(frames), Sharding(), Batching(batch_bins=1000, oversize="alone", equal_steps="off"), epoch=0
    )
    assert plan.steps == 20 + 10


def test_oversize_error_says_how_many_which_and_what_to_do() -> None:
    frames = np.array([100, 900, 1200, 100])
    with pytest.raises(ConfigError) as caught:
        plan_epoch(corpus_of(frames), Sharding(), Batching(batch_bins=800), epoch=0)
    for part in (
        "2 of 4 utterances",
        "batch_bins=800",
        "utterance 2 ('utt/2'), 12 s",
        "1200 or more",
        "max_seconds=8",
        "'drop'",
        "'alone'",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize(("ranks", "padding", "fill"), [(1, 0.010, 0.985), (8, 0.015, 0.975)])
def test_padding_and_fill_on_speech_like_lengths(ranks: int, padding: float, fill: float) -> None:
    frames = speech_like(60_000)
    corpus = corpus_of(frames, tars=16, total_shards=ranks)
    layout = lay_out_epoch(corpus, ranks, ranks, Batching(batch_bins=60_000), epoch=0, seed=0)
    for rank in range(ranks):
        plan = layout.plan(rank)
        assert plan.padding <= padding
        assert plan.fill is not None
        assert plan.fill >= fill
        assert (np.diff(plan.splits) * plan.longest).min() >= 0.6 * 60_000


def test_summary_numbers_are_those_of_the_batches() -> None:
    frames = speech_like(2_000)
    corpus = corpus_of(frames, total_shards=4)
    batching = Batching(batch_bins=8_000)
    layout = lay_out_epoch(corpus, 2, 4, batching, epoch=1, seed=5)
    for rank in range(2):
        plan = layout.plan(rank)
        padded = int((np.diff(plan.splits) * plan.longest).sum())
        numbers = plan.ranks[rank]
        assert numbers.logical_shard == 2 + rank
        assert numbers.utterances == plan.rows.size
        assert numbers.frames == int(frames[plan.rows].sum())
        assert numbers.padded_frames == padded
        assert plan.padding == pytest.approx(1 - numbers.frames / padded)
        assert plan.fill == pytest.approx(padded / (plan.steps * 8_000))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, "exactly one"),
        ({"batch_bins": 10, "batch_size": 2}, "exactly one"),
        ({"batch_bins": 0}, "batch_bins=0"),
        ({"batch_bins": 1e4}, "batch_bins=10000.0"),
        ({"batch_size": True}, "batch_size=True"),
        ({"batch_size": 4, "max_batch_size": 8}, "max_batch_size=8 has no meaning with batch_size=4"),
        ({"batch_size": 4, "quadratic": 8}, "quadratic=8 has no meaning"),
        ({"batch_size": 4, "oversize": "drop"}, "oversize='drop' has no meaning"),
        ({"batch_bins": 4, "oversize": "skip"}, "oversize='skip' is unknown: choose one of 'error', 'drop', 'alone'"),
        ({"batch_bins": 4, "equal_steps": True}, "equal_steps=True is unknown"),
        ({"batch_bins": 4, "longest_first": 1}, "longest_first=1"),
        ({"batch_bins": 4, "bucket_width": 0.0}, "bucket_width=0.0"),
    ],
)
def test_conflicting_settings_are_refused_by_name(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Batching(**settings)
