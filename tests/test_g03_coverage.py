"""G3 coverage: over a cycle and all ranks, every utterance that the filters keep is planned exactly once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from packed import Packed
from planning_cases import Case, cases, corpus_of
from uttershard.pipeline.errors import ConfigError, ShardingError
from uttershard.pipeline.planning.plan import EpochLayout
from uttershard.pipeline.planning.settings import Batching, EqualSteps, Filters


def _delivered(layouts: list[EpochLayout], *, fillers: bool = False) -> NDArray[np.int64]:
    batches = [np.zeros(0, np.int64)]
    for layout in layouts:
        for rank in range(layout.world_size):
            plan = layout.plan(rank)
            assert plan.splits[-1] == plan.rows.size
            batches += [plan.batch(step) for step in range(plan.steps) if fillers or not plan.filler[step]]
    return np.sort(np.concatenate(batches))


def _batching(draw: st.DrawFn, longest: int, equal_steps: EqualSteps) -> Batching:
    if draw(st.booleans()):
        return Batching(batch_size=draw(st.integers(1, 9)), equal_steps=equal_steps)
    budget = longest * draw(st.integers(1, 12))
    most = draw(st.none() | st.integers(1, 9))
    return Batching(batch_bins=budget, max_batch_size=most, equal_steps=equal_steps)


@given(case=cases(fewest_per_shard=1), data=st.data())
def test_every_utterance_once_per_cycle_without_filters(case: Case, data: st.DataObject) -> None:
    batching = data.draw(st.composite(_batching)(int(case.frames.max()), "off"))
    delivered = _delivered(case.cycle(case.corpus(), batching))
    assert delivered.tolist() == list(range(case.frames.size))


@given(case=cases(), data=st.data())
def test_every_kept_utterance_once_per_cycle_with_filters(case: Case, data: st.DataObject) -> None:
    shortest, longest = sorted(data.draw(st.tuples(st.integers(0, 3100), st.integers(0, 3100))))
    kept = np.flatnonzero((case.frames >= shortest) & (case.frames <= longest))
    filters = Filters(where=[f"frames >= {shortest}", f"frames <= {longest}"])
    if not kept.size:
        with pytest.raises(ConfigError, match="no utterance"):
            case.corpus(filters)
        return
    batching = data.draw(st.composite(_batching)(int(case.frames.max()), "off"))
    layouts = case.cycle(case.corpus(filters), batching)
    assert _delivered(layouts).tolist() == kept.tolist()
    assert sum(rank.utterances for layout in layouts for rank in layout.ranks) == kept.size
    counts = layouts[0].filtered
    assert counts["kept"] == kept.size
    assert sum(counts.values()) == case.frames.size


@given(case=cases(fewest_per_shard=30), batch_size=st.integers(10, 40))
def test_split_loses_and_repeats_nothing(case: Case, batch_size: int) -> None:
    frames = np.full_like(case.frames, 100)
    even = Case(frames, case.tars, case.world_size, case.total_shards, case.seed, case.epoch)
    layouts = even.cycle(even.corpus(), Batching(batch_bins=100 * batch_size))
    assert _delivered(layouts, fillers=True).tolist() == list(range(frames.size))


@given(case=cases(fewest_per_shard=1), data=st.data())
def test_drop_reports_exactly_what_it_leaves_out(case: Case, data: st.DataObject) -> None:
    batching = data.draw(st.composite(_batching)(int(case.frames.max()), "drop"))
    for layout in case.cycle(case.corpus(), batching):
        delivered = _delivered([layout])
        assert np.unique(delivered).size == delivered.size
        bounds = case.corpus().bounds
        for rank in layout.ranks:
            available = bounds[rank.logical_shard + 1] - bounds[rank.logical_shard]
            assert rank.utterances + rank.dropped_utterances == available


@given(case=cases(fewest_per_shard=1), data=st.data())
def test_pad_repeats_only_what_it_marks(case: Case, data: st.DataObject) -> None:
    batching = data.draw(st.composite(_batching)(int(case.frames.max()), "pad"))
    layouts = case.cycle(case.corpus(), batching)
    assert _delivered(layouts).tolist() == list(range(case.frames.size))


def test_filtered_counts_name_each_rule_once_in_order() -> None:
    filters = Filters(0.5, 2, ["frames != 100", "key != 'utt/1'"])
    counts = corpus_of(np.array([10, 60, 60, 100, 300, 300]), filters=filters).filtered
    assert list(counts.items()) == [
        ("kept", 1),
        ("too_short", 1),
        ("too_long", 2),
        ("frames != 100", 1),
        ("key != 'utt/1'", 1),
    ]


def test_an_epoch_of_nothing_is_refused(flac: Packed) -> None:
    loader = flac.loader(total_shards=5 * len(flac.sources), where="num_samples > 0")
    with pytest.raises(ShardingError, match=r"epoch \d+ has no utterance.*smaller total_shards"):
        for epoch in range(5 * len(flac.sources)):
            loader.set_epoch(epoch)
            list(loader)
