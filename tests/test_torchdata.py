"""torchdata's StatefulDataLoader over `loader.dataset` resumes at the next batch, with and without workers (G8)."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from packed import Packed, keys_of, make_dataset
from torchdata.stateful_dataloader import StatefulDataLoader
from uttershard.pipeline import Batch
from uttershard.pipeline.errors import ConfigError, ShardingError
from uttershard.pipeline.reading.decoder import BatchDecoder
from uttershard.pipeline.testing import check_resume


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return make_dataset(tmp_path_factory.mktemp("torchdata"), utterances=40)


def _data(packed: Packed, workers: int, **settings: Any) -> StatefulDataLoader[Batch]:
    loader = packed.loader(**settings)
    return StatefulDataLoader(loader.dataset, batch_size=None, num_workers=workers)


def test_every_step_without_workers(packed: Packed) -> None:
    steps = sum(len(_epoch(packed, epoch)) for epoch in range(2))
    assert check_resume(lambda: _data(packed, 0), epochs=2, as_json=False) == steps


def test_some_steps_with_two_workers(packed: Packed) -> None:
    assert check_resume(lambda: _data(packed, 2), epochs=2, every=5, as_json=False) > 2


def _epoch(packed: Packed, epoch: int) -> list[tuple[str, ...]]:
    loader = packed.loader()
    loader.set_epoch(epoch)
    return keys_of(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_and_epochs_are_those_of_the_loader(packed: Packed, workers: int) -> None:
    data = _data(packed, workers)
    assert [keys_of(data) for _ in range(2)] == [_epoch(packed, 0), _epoch(packed, 1)]
    begun = iter(data)
    third = keys_of(islice(begun, 3))
    resumed = _data(packed, workers)
    resumed.load_state_dict(data.state_dict())
    assert third + keys_of(resumed) == _epoch(packed, 2)
    assert keys_of(resumed) == _epoch(packed, 3)


def test_a_resume_reads_nothing_twice(packed: Packed, monkeypatch: pytest.MonkeyPatch) -> None:
    data = _data(packed, 0)
    taken = list(islice(iter(data), 4))
    state = data.state_dict()
    decoded = []
    packed_before = BatchDecoder.packed

    def count(self: BatchDecoder, spec: Any, *rest: Any) -> Batch:
        decoded.append(spec.step)
        return packed_before(self, spec, *rest)

    monkeypatch.setattr(BatchDecoder, "packed", count)
    resumed = _data(packed, 0)
    resumed.load_state_dict(state)
    assert next(iter(resumed)).step == len(taken)
    assert decoded == [len(taken)]


def test_other_data_settings_or_ranks_are_refused(packed: Packed) -> None:
    data = _data(packed, 0)
    next(iter(data))
    for settings, error, named in (
        ({"seed": 5}, ConfigError, "seed was 0, is 5"),
        ({"rank": 0, "world_size": 2}, ShardingError, "world_size was 1, is 2"),
    ):
        other = _data(packed, 0, **settings)
        other.load_state_dict(data.state_dict())
        with pytest.raises(error, match=named):
            iter(other)


def test_a_resumed_loader_gives_the_rest_through_its_dataset(packed: Packed) -> None:
    loader = packed.loader()
    begun = iter(loader)
    first = keys_of(islice(begun, 3))
    resumed = packed.loader()
    resumed.load_state_dict(loader.state_dict())
    data = StatefulDataLoader(resumed.dataset, batch_size=None)
    assert first + keys_of(data) == _epoch(packed, 0)
    assert keys_of(data) == _epoch(packed, 1)
