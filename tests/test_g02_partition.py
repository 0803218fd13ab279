"""G2 partition: logical shards are disjoint and complete for every T, whatever the number of tars."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from planning_cases import columns_of, corpus_of, speech_like
from uttershard.pipeline.errors import DataError
from uttershard.pipeline.planning.corpus import build_corpus
from uttershard.pipeline.planning.partition import logical_bounds
from uttershard.pipeline.planning.settings import Filters


def _bounds(rows_per_tar: list[int], total_shards: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    utterances = sum(rows_per_tar)
    samples = random.integers(1, 500_000, utterances)
    rates = random.choice(np.array([8_000, 16_000, 44_100], np.int32), utterances)
    bounds = logical_bounds(np.array(rows_per_tar, np.int64), samples, rates, total_shards)
    return bounds, samples * 1_000_000 // rates


@given(
    rows_per_tar=st.lists(st.integers(0, 40), min_size=1, max_size=30),
    total_shards=st.integers(1, 60),
    seed=st.integers(0, 2**32),
)
def test_disjoint_and_complete(rows_per_tar: list[int], total_shards: int, seed: int) -> None:
    bounds, _ = _bounds(rows_per_tar, total_shards, seed)
    utterances = sum(rows_per_tar)
    assert bounds.dtype == np.int64
    assert bounds.size == total_shards + 1
    assert bounds[0] == 0
    assert bounds[-1] == utterances
    sizes = np.diff(bounds)
    assert (sizes >= 0).all()
    if utterances >= total_shards:
        assert (sizes > 0).all(), f"empty logical shards {np.flatnonzero(sizes == 0)} of {utterances} utterances"


@given(rows_per_tar=st.lists(st.integers(1, 9), min_size=1, max_size=40), data=st.data(), seed=st.integers(0, 99))
def test_whole_tars_where_their_number_divides(rows_per_tar: list[int], data: st.DataObject, seed: int) -> None:
    tars = len(rows_per_tar)
    total_shards = data.draw(st.sampled_from([t for t in range(1, tars + 1) if tars % t == 0]))
    bounds, _ = _bounds(rows_per_tar, total_shards, seed)
    tar_bounds = [0, *np.cumsum(rows_per_tar).tolist()]
    assert bounds.tolist() == tar_bounds[:: tars // total_shards]


@given(tars=st.integers(1, 7), total_shards=st.integers(2, 40), seed=st.integers(0, 2**32))
def test_otherwise_cut_at_the_utterance_nearest_to_equal_audio(tars: int, total_shards: int, seed: int) -> None:
    bounds, micros = _bounds([301] * tars, total_shards, seed)
    if tars % total_shards == 0:
        return
    until = [0, *np.cumsum(micros).tolist()]
    for i, bound in enumerate(bounds.tolist()):
        target = until[-1] * i // total_shards
        assert abs(until[bound] - target) == min(abs(time - target) for time in until), f"bound {i}"


def test_more_ranks_than_tars_is_no_special_case() -> None:
    frames = speech_like(5_000)
    corpus = corpus_of(frames, tars=3, total_shards=64)
    seconds = np.add.reduceat(frames, corpus.bounds[:-1]) / 100
    # A cut is off by half an utterance at most, at either end.
    assert np.ptp(seconds) <= 2 * frames.max() / 100


def test_one_giant_utterance_leaves_no_shard_empty() -> None:
    frames = np.array([1, 1, 1_000_000, 1, 1, 1])
    assert corpus_of(frames, total_shards=6).bounds.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert corpus_of(frames[::-1].copy(), total_shards=6).bounds.tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_fewer_utterances_than_shards_leaves_some_empty_and_loses_none() -> None:
    bounds = corpus_of(np.full(3, 100), total_shards=8).bounds
    assert bounds[0] == 0
    assert bounds[-1] == 3
    assert (np.diff(bounds) >= 0).all()


def test_a_tar_without_utterances_does_not_make_an_empty_logical_shard() -> None:
    corpus = build_corpus(columns_of(np.full(90, 100)), rows_per_tar=[30, 0, 60], total_shards=3)
    assert corpus.bounds.tolist() == [0, 30, 60, 90]


def test_filters_do_not_move_the_bounds() -> None:
    frames = speech_like(1_000)
    plain = corpus_of(frames, tars=7, total_shards=4)
    filtered = corpus_of(frames, tars=7, total_shards=4, filters=Filters(max_seconds=10))
    assert plain.bounds.tolist() == filtered.bounds.tolist()


def test_columns_and_tars_of_two_datasets_are_refused() -> None:
    with pytest.raises(DataError, match=r"2 tars of 30 utterances.*sidecars list 40"):
        build_corpus(columns_of(np.full(40, 100)), rows_per_tar=[10, 20], total_shards=1)
