"""Searching budgets for many ranks at once finds what searching rank by rank finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import corpus_of
from uttershard.pipeline.planning import steps
from uttershard.pipeline.planning.cut import charge_lengths, count_batches, find_budget
from uttershard.pipeline.planning.cut_ranks import find_budgets
from uttershard.pipeline.planning.plan import lay_out_epoch
from uttershard.pipeline.planning.settings import Batching


@given(
    data=st.data(),
    ranks=st.integers(1, 6),
    longest=st.sampled_from([1, 3, 40, 3000]),
    times=st.integers(1, 30),
    most=st.none() | st.integers(3, 9),
    fewest=st.integers(1, 3),
    quadratic=st.none() | st.integers(1, 4000),
    seed=st.integers(0, 2**32),
)
def test_budgets_are_those_of_each_rank_by_itself(
    data: st.DataObject,
    ranks: int,
    longest: int,
    times: int,
    most: int | None,
    fewest: int,
    quadratic: int | None,
    seed: int,
) -> None:
    random = np.random.default_rng(seed)
    bins = Batching(batch_bins=1, quadratic=quadratic).cost_of(longest) * max(times, fewest)
    batching = Batching(batch_bins=bins, max_batch_size=most, min_batch_size=fewest, quadratic=quadratic)
    of_ranks = []
    for _ in range(ranks):
        lengths = np.sort(random.integers(1, longest, random.integers(1, 200), endpoint=True).astype(np.int32))[::-1]
        stairs = charge_lengths(lengths, batching)
        least = count_batches(stairs, batching)
        of_ranks.append((stairs, data.draw(st.integers(least, max(least, lengths.size // fewest)))))
    assert find_budgets(of_ranks, bins, fewest, most) == [
        find_budget(stairs, bins, fewest, most or stairs.utterances, batches) for stairs, batches in of_ranks
    ]


def test_plans_do_not_depend_on_how_they_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    corpus = corpus_of(random.integers(100, 1700, 3_000), tars=30, total_shards=20)
    found = []
    for many in (1, 1_000):
        monkeypatch.setattr(steps, "MANY_RANKS", many)
        layout = lay_out_epoch(corpus, 20, 20, Batching(batch_bins=9_000), epoch=1)
        found.append([(layout.plan(rank).rows.tolist(), layout.plan(rank).splits.tolist()) for rank in range(20)])
    assert found[0] == found[1]
