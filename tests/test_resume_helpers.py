"""The public helpers that test a pipeline's resume find what they are for, and ShardLoader passes them (G8, G9)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packed import Packed, keys_of, make_dataset
from uttershard.pipeline import ShardLoader
from uttershard.pipeline.errors import ConfigError, ShardingError
from uttershard.pipeline.testing import check_elastic_resume, check_resume, fingerprint


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return make_dataset(tmp_path_factory.mktemp("resume"), utterances=60)


@pytest.mark.parametrize("settings", [{}, {"batch_size": 7}, {"equal_steps": "pad", "total_shards": 4}])
def test_a_shard_loader_resumes_at_every_step(packed: Packed, settings: dict[str, Any]) -> None:
    loader = packed.loader(**settings)
    assert check_resume(lambda: packed.loader(**settings), epochs=2) == len(loader) + _steps(loader, 1)


def _steps(loader: ShardLoader, epoch: int) -> int:
    loader.set_epoch(epoch)
    return len(loader)


@pytest.mark.parametrize(
    ("world_sizes", "steps"),
    [([2, 3], [2]), ([3, 2], [1]), ([4, 1], [0]), ([1, 5, 2], [3, 1]), ([2, 3, 2, 4], [1, 1, 1]), ([2, 3], [99])],
)
@pytest.mark.parametrize("policy", ["split", "pad"])
def test_an_epoch_goes_through_world_sizes(
    packed: Packed, world_sizes: list[int], steps: list[int], policy: str
) -> None:
    def make(rank: int, world_size: int) -> ShardLoader:
        return packed.loader(rank=rank, world_size=world_size, equal_steps=policy)

    taken = check_elastic_resume(make, world_sizes, steps, epoch=3)
    assert [len(ranks) for ranks in taken] == world_sizes


def test_the_rotation_goes_on_and_covers_everything(packed: Packed) -> None:
    """T=12 over W=4, then W=6, then W=3: a cycle from any point on is every utterance once."""
    read: list[str] = []
    state: Any = None
    plans = ((4, [0]), (6, [1, 2]), (3, [3, 4, 5]))
    for world_size, epochs in plans:
        loaders = [
            packed.loader(rank=r, world_size=world_size, total_shards=12, batch_size=2) for r in range(world_size)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
            for epoch in epochs:
                loader.set_epoch(epoch)
                read += [key for batch in loader for key in batch.keys]
        state = loaders[0].state_dict()
    # 4 + 12 + 9 logical shards: one cycle of 12, another of 12, and one shard.
    counts = np.unique([read.count(key) for key in packed.sources])
    assert counts.tolist() == [2, 3]
    assert state["rotation"] == [3, 4]


def test_states_of_other_worlds_are_equal_on_all_ranks_and_small(packed: Packed) -> None:
    state = packed.loader(batch_size=2).state_dict()
    for world_size in (2, 3, 5, 2, 4):
        loaders = [packed.loader(rank=rank, world_size=world_size, batch_size=2) for rank in range(world_size)]
        for loader in loaders:
            loader.load_state_dict(state)
            next(iter(loader))
        states = [loader.state_dict() for loader in loaders]
        assert all(other == states[0] for other in states)
        state = states[0]
    assert [stage[0] for stage in state["stages"]] == [2, 3, 5, 2]
    assert len(repr(state)) < 1024


def test_total_shards_that_were_asked_for_stay(packed: Packed) -> None:
    loader = packed.loader(rank=0, world_size=2, total_shards=4)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(ShardingError, match="total_shards was 4, is 8"):
        packed.loader(rank=0, world_size=2, total_shards=8).load_state_dict(state)
    with pytest.raises(ShardingError, match="total_shards was 4, is 3"):
        packed.loader(rank=0, world_size=3).load_state_dict(state)
    packed.loader(rank=0, world_size=4, total_shards=4).load_state_dict(state)


def test_force_starts_at_the_next_epoch_and_says_so(packed: Packed, caplog: pytest.LogCaptureFixture) -> None:
    loader = packed.loader()
    loader.set_epoch(4)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    other = packed.loader(seed=9)
    with pytest.raises(ConfigError, match=r"seed was 0, is 9.*force=True"):
        other.load_state_dict(state)
    other.load_state_dict(state, force=True)
    assert "starting at epoch 5" in caplog.text and "seed was 0, is 9" in caplog.text
    fresh = packed.loader(seed=9)
    fresh.set_epoch(5)
    assert keys_of(other) == keys_of(fresh)
    same = packed.loader()
    same.load_state_dict(state, force=True)
    assert keys_of(same) == keys_of(batches)


@pytest.mark.parametrize(
    ("damage", "named"),
    [({"rotation": [1]}, "rotation"), ({"stages": [[1, 2]]}, "stages"), ({"stages": [[1, 1, -1]]}, "stages")],
)
def test_a_damaged_state_is_named(packed: Packed, damage: dict[str, Any], named: str) -> None:
    loader = packed.loader()
    with pytest.raises(ConfigError, match=f"damaged: {named}"):
        loader.load_state_dict(loader.state_dict() | damage, force=True)


class _Counter:
    """A pipeline whose state is off by `error` once `after` steps are made."""

    def __init__(self, steps: int, error: int = 0, after: int = 0) -> None:
        self._steps, self._error, self._after, self._at = steps, error, after, 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while self._at < self._steps:
            self._at += 1
            yield {"number": self._at, "tensor": torch.full((2,), self._at)}
        self._at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self._at + (self._error if self._at > self._after else 0)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._at = state["at"]


def test_a_pipeline_of_ones_own_is_checked() -> None:
    assert check_resume(lambda: _Counter(5), epochs=1) == 5
    assert check_resume(lambda: _Counter(5), every=2) == 3
    with pytest.raises(AssertionError, match="resumed after 4 steps of epoch 0: epoch 0: 2 batches, expected 1"):
        check_resume(lambda: _Counter(5, error=-1, after=3))
    with pytest.raises(AssertionError, match="no batches"):
        check_resume(lambda: _Counter(0))


def test_what_differs_is_named() -> None:
    class Other(_Counter):
        made = 0

        def __iter__(self) -> Iterator[dict[str, Any]]:
            Other.made += 1
            for batch in super().__iter__():
                yield batch | {"tensor": torch.full((2,), Other.made)}

    with pytest.raises(AssertionError, match=r"batch 0 after the resume is \{'tensor'"):
        check_resume(lambda: Other(3))


def test_a_large_state_is_refused() -> None:
    class Large(_Counter):
        def state_dict(self) -> Any:
            return {"at": self._at, "buffer": "x" * 2000}

    with pytest.raises(AssertionError, match="at most 1024"):
        check_resume(lambda: Large(3))
    assert check_resume(lambda: Large(3), as_json=False) == 3


def test_lost_utterances_are_named(packed: Packed, tmp_path: Path) -> None:
    smaller = make_dataset(tmp_path, utterances=20)

    def make(rank: int, world_size: int) -> ShardLoader:
        loader = (packed if world_size == 2 else smaller).loader(rank=rank, world_size=world_size, batch_size=3)
        loader.load_state_dict = lambda state: None  # type: ignore[method-assign]
        return loader

    with pytest.raises(AssertionError, match=r"lost \{"):
        check_elastic_resume(make, [2, 3], [1])


def test_fingerprints_see_types_shapes_and_values() -> None:
    values = [torch.zeros(2), torch.zeros(2, dtype=torch.int32), torch.zeros(1, 2), torch.ones(2)]
    assert len({fingerprint(value) for value in values}) == 4
    assert fingerprint(values) == fingerprint([value.numpy() for value in values])
