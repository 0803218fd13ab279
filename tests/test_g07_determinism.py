"""G7 determinism: a plan is a function of data, seed, epoch, ranks and settings, pinned here as literal numbers.

A golden value that changes means that every run in progress would lose its place: it needs a new format version,
not a new golden value.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import columns_of, corpus_of
from uttershard.pipeline.errors import ConfigError
from uttershard.pipeline.planning import bucket as bucket_module
from uttershard.pipeline.planning import frames as frames_module
from uttershard.pipeline.planning import layout as layout_module
from uttershard.pipeline.planning import partition as partition_module
from uttershard.pipeline.planning.bucket import bucket_edges, length_order
from uttershard.pipeline.planning.corpus import build_corpus
from uttershard.pipeline.planning.hashing import Stream, hash_ordinals, mix, stream_key
from uttershard.pipeline.planning.order import order_steps
from uttershard.pipeline.planning.plan import EpochPlan, lay_out_epoch, plan_epoch
from uttershard.pipeline.planning.settings import Batching, Filters, Sharding


def _lengths(utterances: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return lengths from arithmetic alone, since a library's random stream may change."""
    return np.array([100 + mix(i) % 1500 for i in range(utterances)], np.int64)


def _digest(plan: EpochPlan) -> str:
    digest = hashlib.sha256()
    for column, kind in ((plan.rows, "<i8"), (plan.splits, "<i8"), (plan.filler, "u1"), (plan.longest, "<i4")):
        digest.update(column.astype(kind).tobytes())
    return digest.hexdigest()[:16]


def test_mix_is_splitmix64() -> None:
    # The published outputs of splitmix64 for the seeds 0 and 1234567.
    assert mix(0) == 0xE220A8397B1DCDAF
    assert mix(1234567) == 6457827717110365317


@given(key=st.integers(0, 2**64 - 1), ordinals=st.lists(st.integers(0, 2**62), min_size=1, max_size=9, unique=True))
def test_vector_hash_is_splitmix64_of_the_stream(key: int, ordinals: list[int]) -> None:
    hashes = hash_ordinals(key, np.array(ordinals, np.int64)).tolist()
    golden = 0x9E3779B97F4A7C15
    assert hashes == [mix((key + golden * ordinal) % 2**64) for ordinal in ordinals]


def test_streams_differ_in_every_part() -> None:
    keys = {
        stream_key(stream, seed, epoch, *rank)
        for stream in Stream
        for seed in range(4)
        for epoch in range(4)
        for rank in ((), (0,), (1,))
    }
    assert len(keys) == len(Stream) * 4 * 4 * 3


def test_golden_pieces() -> None:
    assert stream_key(Stream.UTTERANCES, 0, 0) == 12793040940332582595
    assert hash_ordinals(7, np.arange(3)).tolist() == [7191089600892374487, 309689372594955804, 16616101746815609346]
    assert bucket_edges(100, 0.1)[:20].tolist() == list(range(1, 21))
    assert bucket_edges(100, 0.1)[20:].tolist() == [
        *(22, 24, 26, 28, 30, 33, 36, 39, 42, 46, 50, 55, 60, 66, 72, 79, 86, 94)
    ]
    assert order_steps(10, seed=3, epoch=1).tolist() == [7, 8, 2, 5, 1, 4, 9, 0, 3, 6]
    assert corpus_of(_lengths(50), tars=3, total_shards=4).bounds.tolist() == [0, 12, 26, 39, 50]


def test_golden_plan() -> None:
    corpus = corpus_of(_lengths(24), total_shards=2)
    plan = plan_epoch(corpus, Sharding(1, 2), Batching(batch_bins=4000), epoch=5, seed=42)
    assert [plan.batch(step).tolist() for step in range(plan.steps)] == [
        [15, 17, 19],
        [22, 12],
        [13, 20],
        [23, 18, 14, 16, 21],
    ]
    assert plan.longest.tolist() == [1041, 1446, 1295, 566]


@pytest.mark.parametrize(
    ("batching", "digest"),
    [
        (Batching(batch_bins=20_000), "066747dab5a18585"),
        (Batching(batch_bins=20_000, longest_first=True, max_batch_size=20), "df6e9e0565312579"),
        (Batching(batch_bins=20_000, quadratic=3000, equal_steps="drop"), "2a2c944212c7aed3"),
        (Batching(batch_bins=20_000, equal_steps="pad"), "779b72b73a56cc9d"),
        (Batching(batch_bins=1_200, oversize="drop", equal_steps="off"), "a03025173f3e4776"),
        (Batching(batch_bins=1_200, oversize="alone", equal_steps="off"), "194d2f52b822139c"),
        (Batching(batch_size=16), "631fbe238067b5b0"),
        (Batching(batch_bins=20_000, bucket_width=0.1), "1b377f40bcf22451"),
    ],
)
def test_golden_digests(batching: Batching, digest: str) -> None:
    filters = Filters(2, 15, "frames != 700")
    corpus = corpus_of(_lengths(5_000), tars=7, total_shards=6, filters=filters)
    layout = lay_out_epoch(corpus, 3, 6, batching, epoch=11, seed=2**63 + 5)
    joined = "".join(_digest(layout.plan(rank)) for rank in range(3))
    assert hashlib.sha256(joined.encode()).hexdigest()[:16] == digest


def test_asking_rank_changes_nothing() -> None:
    corpus = corpus_of(_lengths(2_000), total_shards=4)
    batching = Batching(batch_bins=10_000)
    layout = lay_out_epoch(corpus, 4, 4, batching, epoch=1, seed=1)
    for rank in range(4):
        plan = plan_epoch(corpus, Sharding(rank, 4), batching, epoch=1, seed=1)
        assert _digest(plan) == _digest(layout.plan(rank))
        assert plan.ranks == layout.ranks


def test_seed_and_epoch_change_the_batches_not_only_their_order() -> None:
    corpus = corpus_of(_lengths(2_000))
    seen = set()
    for seed, epoch in ((0, 0), (0, 1), (1, 0), (1, 1)):
        plan = plan_epoch(corpus, Sharding(), Batching(batch_bins=10_000), epoch=epoch, seed=seed)
        seen.add(frozenset(frozenset(plan.batch(step).tolist()) for step in range(plan.steps)))
    assert len(seen) == 4
    assert len(frozenset.intersection(*seen)) < 0.1 * min(map(len, seen))


def test_work_in_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan() -> str:
        corpus = corpus_of(_lengths(700), tars=2, total_shards=3)
        return _digest(plan_epoch(corpus, Sharding(2, 3), Batching(batch_bins=5_000), epoch=0, seed=0))

    whole = plan()
    for module in (bucket_module, frames_module, partition_module, layout_module):
        monkeypatch.setattr(module, "CHUNK", 13)
    assert plan() == whole


def test_chunks_of_the_sidecar_table_change_nothing() -> None:
    columns = columns_of(_lengths(300))
    batches = columns.to_batches(max_chunksize=17)
    for table in (columns, columns.from_batches(batches)):
        corpus = build_corpus(table, rows_per_tar=[300], total_shards=2)
        plan = plan_epoch(corpus, Sharding(0, 2), Batching(batch_bins=5_000), epoch=0, seed=0)
        assert _digest(plan) == "53f6f63a1872387a"


@given(
    seed=st.integers(0, 2**32),
    utterances=st.integers(1, 400),
    longest=st.sampled_from([1, 70, 3000]),
    gap=st.integers(1, 9),
)
def test_length_order_is_one_order_for_every_sort(seed: int, utterances: int, longest: int, gap: int) -> None:
    random = np.random.default_rng(seed)
    frames = random.integers(1, longest, utterances * gap, endpoint=True).astype(np.int32)
    rows = np.arange(0, frames.size, gap)
    edges = bucket_edges(longest, 0.0125)
    order = length_order(rows, frames, edges, key=seed)
    assert np.sort(order.rows).tolist() == rows.tolist()
    assert order.lengths.tolist() == frames[order.rows].tolist()
    buckets = np.searchsorted(edges, order.lengths, side="right")
    hashes = hash_ordinals(seed, order.rows)
    in_order = sorted(zip((-buckets).tolist(), hashes.tolist(), order.rows.tolist(), strict=True))
    assert order.rows.tolist() == [row for _, _, row in in_order]


def test_equal_hashes_fall_back_to_the_ordinal(monkeypatch: pytest.MonkeyPatch) -> None:
    def constant(key: int, ordinals: np.ndarray, out: np.ndarray) -> np.ndarray:
        out[...] = 5
        return out

    monkeypatch.setattr(bucket_module, "hash_ordinals", constant)
    rows = np.arange(3, 100)
    assert length_order(rows, np.full(100, 50, np.int32), bucket_edges(50, 0.0125), 0).rows.tolist() == rows.tolist()


def test_numbers_that_are_no_seed_or_epoch_are_refused() -> None:
    corpus = corpus_of(_lengths(10))
    for seed, epoch, named in ((-1, 0, "seed=-1"), (2**64, 0, "seed="), (0.5, 0, "seed=0.5"), (0, -1, "epoch=-1")):
        with pytest.raises(ConfigError, match=named):
            plan_epoch(corpus, Sharding(), Batching(batch_size=2), epoch=epoch, seed=seed)  # type: ignore[arg-type]
