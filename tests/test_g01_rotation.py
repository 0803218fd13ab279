"""G1 rotation: shard_idx = (epoch * world_size + rank) % total_shards, exactly; what does not fit is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import corpus_of
from uttershard.pipeline.errors import ShardingError
from uttershard.pipeline.planning.plan import plan_epoch
from uttershard.pipeline.planning.rotation import shard_index
from uttershard.pipeline.planning.settings import Batching, Sharding


@given(epoch=st.integers(0, 10**9), world_size=st.integers(1, 2000), factor=st.integers(1, 50), data=st.data())
def test_formula(epoch: int, world_size: int, factor: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, world_size - 1))
    total_shards = world_size * factor
    assert shard_index(epoch, rank, world_size, total_shards) == (epoch * world_size + rank) % total_shards


@pytest.mark.parametrize(("world_size", "total_shards"), [(1, 1), (1, 7), (4, 4), (4, 12), (3, 30)])
@pytest.mark.parametrize("first", [0, 5])
def test_cycle_reads_every_logical_shard_once(world_size: int, total_shards: int, first: int) -> None:
    epochs = range(first, first + total_shards // world_size)
    read = [shard_index(epoch, rank, world_size, total_shards) for epoch in epochs for rank in range(world_size)]
    assert sorted(read) == list(range(total_shards))


def test_total_shards_defaults_to_world_size() -> None:
    assert Sharding(2, 4) == Sharding(2, 4, 4)
    assert Sharding(2, 4).epochs_per_cycle == 1


def test_numpy_integers_count_as_integers() -> None:
    assert shard_index(np.int64(1), np.int32(1), np.int64(2), np.uint8(4)) == 3  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("world_size", "total_shards", "works"), [(4, 10, "8 or 12"), (4, 3, "=4,"), (8, 15, "8 or 16")]
)
def test_total_shards_that_does_not_fit_names_the_nearest_that_does(
    world_size: int, total_shards: int, works: str
) -> None:
    with pytest.raises(ShardingError) as caught:
        Sharding(0, world_size, total_shards)
    for part in (f"total_shards={total_shards}", f"world_size={world_size}", works):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ((0, 4, 4, 4), "rank=4"),
        ((0, -1, 4, 4), "rank=-1"),
        ((-1, 0, 4, 4), "epoch=-1"),
        ((0, 0, 0, 4), "world_size=0"),
        ((0, 0, 1, 0), "total_shards=0"),
        ((0, True, 4, 4), "rank=True"),
        ((True, 0, 4, 4), "epoch=True"),
        ((1.0, 0, 4, 4), "epoch=1.0"),
        ((0, "0", 4, 4), "rank='0'"),
    ],
)
def test_values_that_are_no_ranks_are_refused_by_name(values: tuple[Any, ...], named: str) -> None:
    with pytest.raises(ShardingError, match=named):
        shard_index(*values)


def test_corpus_cut_for_other_total_shards_is_refused() -> None:
    corpus = corpus_of(np.full(100, 50), total_shards=4)
    with pytest.raises(ShardingError, match=r"total_shards=8.*cut into 4"):
        plan_epoch(corpus, Sharding(0, 4, 8), Batching(batch_bins=100), epoch=0)
