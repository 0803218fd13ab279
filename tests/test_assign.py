"""Dealing utterances to shards: complete, disjoint, balanced, and the same whatever order they are listed in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from uttershard.pipeline.errors import ConfigError
from uttershard.writers.assign import assign, shard_count, shuffle

KEYS = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=60, unique=True)
SEEDS = st.integers(0, 2**64 - 1)


@given(keys=KEYS, shards=st.integers(1, 12), seed=SEEDS, data=st.data())
def test_complete_disjoint_and_balanced(keys: list[str], shards: int, seed: int, data: st.DataObject) -> None:
    lengths = st.floats(0.0, 40.0)
    seconds = np.array(data.draw(st.lists(lengths, min_size=len(keys), max_size=len(keys))))
    dealt = assign(keys, seconds, shards, seed)
    assert len(dealt) == shards
    assert sorted(np.concatenate(dealt).tolist()) == list(range(len(keys)))
    loads = [seconds[rows].sum() for rows in dealt]
    # Each zero counts as a microsecond, so sums of many may differ by that.
    assert max(loads) - min(loads) <= seconds.max() + 1e-4
    assert min(len(rows) for rows in dealt) >= 1 or len(keys) < shards


@given(keys=KEYS, shards=st.integers(1, 5), seed=SEEDS, data=st.data())
def test_independent_of_the_listing_order(keys: list[str], shards: int, seed: int, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(keys))))
    seconds = np.arange(len(keys)) * 0.37
    dealt = [[keys[row] for row in rows] for rows in assign(keys, seconds, shards, seed)]
    again = assign([keys[row] for row in order], seconds[order], shards, seed)
    assert [[keys[order[row]] for row in rows] for rows in again] == dealt


PINNED = {0: [0, 5, 1, 4, 2, 7, 6, 3], 1: [4, 5, 3, 6, 2, 0, 1, 7]}


def test_the_order_is_pinned() -> None:
    assert shuffle([f"utt{number}" for number in range(8)], seed=0).tolist() == PINNED[0]
    assert shuffle([f"utt{number}" for number in range(8)], seed=1).tolist() == PINNED[1]


def test_shards_are_samples_of_the_corpus() -> None:
    # A corpus sorted by speaker: every shard must hold every speaker.
    keys = [f"speaker{number // 500}-{number:05d}" for number in range(5000)]
    for rows in assign(keys, np.full(5000, 3.0), 8, seed=0):
        assert {keys[row][:8] for row in rows} == {f"speaker{number}" for number in range(10)}


@pytest.mark.parametrize(
    ("utterances", "nbytes", "count"),
    [
        (1000, 1, 8),
        (1000, 8 * 512, 8),
        (1000, 8 * 512 + 1, 16),
        (1000, 10**9, 1000),  # 1,953,128 wanted: as many as there are utterances, down to a multiple of 8
        (1003, 10**9, 1000),
        (7, 1, 7),
        (1, 1, 1),
    ],
)
def test_the_number_of_shards(utterances: int, nbytes: int, count: int) -> None:
    assert shard_count(utterances, nbytes, shards=None, shard_bytes=512, multiple=8) == count


def test_a_given_number_of_shards_is_kept() -> None:
    assert shard_count(10, 10**9, shards=10, shard_bytes=512, multiple=8) == 10
    with pytest.raises(ConfigError, match="shards is 11, but there are only 10 utterances"):
        shard_count(10, 10**9, shards=11, shard_bytes=512, multiple=8)
