"""Windows of an epoch: few tars each, equal steps in each on all ranks, nothing lost or repeated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_cases import Case, cases, corpus_of, speech_like
from uttershard.pipeline.errors import ConfigError
from uttershard.pipeline.planning.plan import EpochLayout, lay_out_epoch, windows_of_rank
from uttershard.pipeline.planning.settings import Batching, Sharding

BINS = 3000


def plans_of(layout: EpochLayout) -> list:
    return [layout.plan(rank) for rank in range(layout.world_size)]


@settings(max_examples=60)
@given(case=cases(fewest_per_shard=6), most=st.integers(1, 6))
def test_every_utterance_is_in_one_window_and_windows_have_equal_steps(case: Case, most: int) -> None:
    corpus = case.corpus()
    windows = min(most, int(np.diff(corpus.bounds).min()))
    batching = Batching(batch_bins=BINS, windows=windows, equal_steps="pad")
    for layout in case.cycle(corpus, batching):
        plans = plans_of(layout)
        assert all(np.array_equal(plan.windows, plans[0].windows) for plan in plans)
        for plan in plans:
            assert plan.windows.size == windows + 1
            assert plan.windows[-1] == plan.steps
            sharding = Sharding(plan.rank, case.world_size, case.total_shards)
            expected = windows_of_rank(corpus, sharding, batching, epoch=layout.epoch, seed=case.seed)
            for window, rows in enumerate(expected):
                first, last = plan.splits[plan.windows[window]], plan.splits[plan.windows[window + 1]]
                assert sorted(set(plan.rows[first:last].tolist())) == rows.tolist()


@settings(max_examples=60)
@given(case=cases(fewest_per_shard=1))
def test_one_window_is_no_window(case: Case) -> None:
    batching = Batching(batch_bins=BINS, equal_steps="pad")
    for with_one, without in zip(
        case.cycle(case.corpus(), replace(batching, windows=1)), case.cycle(case.corpus(), batching), strict=True
    ):
        for one, other in zip(plans_of(with_one), plans_of(without), strict=True):
            assert np.array_equal(one.rows, other.rows) and np.array_equal(one.splits, other.splits)


def test_windows_are_whole_tars_if_there_are_enough() -> None:
    corpus = corpus_of(speech_like(4000), tars=16, total_shards=2)
    for rank in range(2):
        parts = windows_of_rank(corpus, Sharding(rank, 2), Batching(batch_bins=60_000, windows=4), epoch=3, seed=1)
        for rows in parts:
            tars = np.unique(np.searchsorted(corpus.tars, rows, side="right"))
            assert tars.size == 2
            assert rows.size == 500


def test_the_order_of_windows_changes_with_the_epoch() -> None:
    corpus = corpus_of(speech_like(4000), tars=16)
    batching = Batching(batch_bins=60_000, windows=8)
    firsts = {int(windows_of_rank(corpus, Sharding(), batching, epoch=epoch, seed=1)[0][0]) for epoch in range(20)}
    assert len(firsts) > 4


def test_the_loss_is_small() -> None:
    corpus = corpus_of(speech_like(20_000), tars=32, total_shards=4)
    whole = lay_out_epoch(corpus, 4, 4, Batching(batch_bins=60_000), epoch=0)
    layout = lay_out_epoch(corpus, 4, 4, Batching(batch_bins=60_000, windows=4), epoch=0)
    for here, there in zip(layout.ranks, whole.ranks, strict=True):
        assert here.utterances == there.utterances and here.frames == there.frames
        assert here.fill is not None and there.fill is not None
        # Four windows of 20 batches each: one batch of each may be short of what the last one was before.
        assert there.fill - here.fill < 0.06
        assert here.padding < 0.05


def test_more_windows_than_utterances_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"windows=7, but rank 0 has 5 utterances"):
        lay_out_epoch(corpus_of(np.full(5, 100)), 1, 1, Batching(batch_bins=1000, windows=7), epoch=0)
