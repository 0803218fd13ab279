"""G7 order of delivery: the batches are the plan's, bit for bit, wherever and with how many hands they are decoded."""

from __future__ import annotations

import copy
import os
import time
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
from packed import Packed, Seen, keys_of, run, seen
from torch.utils.data import DataLoader, get_worker_info
from uttershard.pipeline import Batch, ShardLoader, ShardSet
from uttershard.pipeline.errors import ConfigError
from uttershard.pipeline.loader.settings import Workers
from uttershard.pipeline.loader.stream import _TAG_BITS, _TURN_BITS, PlanDataset
from uttershard.pipeline.reading.convert import mix_channels, resample, to_float32


@pytest.fixture(scope="module")
def expected(flac: Packed) -> list[Seen]:
    """Three epochs, decoded by one thread one after the other."""
    return list(run(flac.loader(threads=1, prefetch_factor=1), 0, 1, 2))


def test_what_is_expected_is_the_plan(flac: Packed, expected: list[Seen]) -> None:
    loader = flac.loader()
    keys = ShardSet.open(flac.address).index(["key"])["key"].to_pylist()
    planned = []
    for epoch in range(3):
        loader.set_epoch(epoch)
        plan = loader.plan
        planned += [(epoch, step, tuple(keys[row] for row in plan.batch(step))) for step in range(plan.steps)]
    assert [(batch.epoch, batch.step, batch.keys) for batch in expected] == planned
    assert sum(len(batch.keys) for batch in expected) == 3 * len(flac.sources)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"device": "gpu"}, "device='gpu' is no device of torch: give 'cpu', 'cuda'"),
        ({"device": "cuda:99"}, r"device='cuda:99', but torch finds \d+ GPUs here"),
        ({"where": "speaker = 's1'"}, "does not parse at \"= 's1'\".* write it like"),
        ({"total_shards": 1000}, "48 of the dataset are kept, and none of them is in the logical shards"),
        (
            {"batch_type": "length", "length_columns": ("tokens",)},
            "names 'tokens', .*there are .*, speaker.*--column tokens",
        ),
    ],
    ids=str,
)
def test_what_can_not_be_done_is_said_when_the_loader_is_made(
    flac: Packed, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        len(flac.loader(**settings))


@pytest.mark.parametrize("address", [None, 3, ["a", "b"]])
def test_what_is_no_dataset_is_refused(address: Any) -> None:
    with pytest.raises(ConfigError, match="give the address of a dataset, a ShardSet, or a Mix"):
        ShardLoader(address, batch_bins=600)
    with pytest.raises(ConfigError, match="the address of the dataset is empty"):
        ShardLoader("", batch_bins=600)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataloader_that_would_batch_batches_says_what_to_write(flac: Packed, workers: int) -> None:
    data: DataLoader[Batch] = DataLoader(flac.loader().dataset, num_workers=workers)
    with pytest.raises(ConfigError, match=r"say batch_size=None, as in DataLoader\(loader.dataset, batch_size=None"):
        next(iter(data))
    with pytest.raises(ConfigError, match=r"use DataLoader\(loader.dataset, batch_size=None\)"):
        next(iter(DataLoader(flac.loader(), num_workers=workers)))


@pytest.mark.parametrize(
    "settings",
    [
        {"threads": 1},
        {"threads": 3},
        {"threads": 3, "prefetch_factor": 5},
        {"num_workers": 1},
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 3, "prefetch_factor": 1, "persistent_workers": True},
        {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True},
        {"num_workers": 2, "multiprocessing_context": "forkserver", "persistent_workers": True},
        {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True},
    ],
    ids=str,
)
def test_workers_change_nothing(flac: Packed, expected: list[Seen], settings: dict[str, Any]) -> None:
    assert list(run(flac.loader(**settings), 0, 1, 2)) == expected


def test_more_workers_than_steps(flac: Packed) -> None:
    settings = {"batch_size": 24, "num_workers": 3, "multiprocessing_context": "fork"}
    assert list(run(flac.loader(**settings), 0, 1)) == list(run(flac.loader(batch_size=24), 0, 1))


@pytest.mark.parametrize(
    "settings",
    [
        {"num_workers": 0},
        {"num_workers": 1},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 3, "prefetch_factor": 1, "multiprocessing_context": "fork"},
        {"num_workers": 2, "multiprocessing_context": "forkserver", "persistent_workers": True},
    ],
    ids=str,
)
def test_a_plain_dataloader_gives_the_same(flac: Packed, expected: list[Seen], settings: dict[str, Any]) -> None:
    loader = flac.loader()
    data: DataLoader[Batch] = DataLoader(loader.dataset, batch_size=None, **settings)
    # Without set_epoch each iteration is the next epoch.
    assert [seen(batch) for _ in range(3) for batch in data] == expected
    loader.set_epoch(1)
    assert [seen(batch) for batch in data] == [batch for batch in expected if batch.epoch == 1]
    assert [seen(batch) for batch in data] == [batch for batch in expected if batch.epoch == 2]
    assert len(data) == len(loader)


@pytest.mark.parametrize(("persistent", "taken"), [(False, 0), (False, 1), (True, 1), (True, 3)])
def test_breaking_out_leaves_all_workers_in_one_epoch(flac: Packed, persistent: bool, taken: int) -> None:
    """A worker that is stopped before its first batch must not fall an epoch behind the others."""
    data: DataLoader[Batch] = DataLoader(
        flac.loader().dataset, batch_size=None, num_workers=3, prefetch_factor=1, persistent_workers=persistent
    )
    begun = 0
    for _ in range(3):
        batches = iter(data)
        first = [next(batches).epoch for _ in range(taken)]
        begun += bool(taken)
        assert first == [begun - 1] * taken
        del batches
    rest = [seen(batch) for batch in data]
    epochs = {batch.epoch for batch in rest}
    assert len(epochs) == 1
    assert keys_of(rest) == keys_of(run(flac.loader(), *epochs))


def start_late(worker: int) -> None:
    """Hold the last worker up until the first one has been told of the second iteration."""
    info = get_worker_info()
    assert info is not None
    while worker == info.num_workers - 1 and int(info.dataset._begun[0]) >> (_TAG_BITS + _TURN_BITS) < 2:
        time.sleep(0.001)


def test_a_worker_that_is_slow_to_start_does_not_fall_behind(flac: Packed) -> None:
    data: DataLoader[Batch] = DataLoader(
        flac.loader().dataset, batch_size=None, num_workers=3, persistent_workers=True, worker_init_fn=start_late,
        multiprocessing_context="fork",
    )  # fmt: skip
    assert next(iter(data)).epoch == 0
    assert [seen(batch) for batch in data] == list(run(flac.loader(), 1))


def started(dataset: PlanDataset) -> PlanDataset:
    """Return what a worker process has of it when it starts."""
    worker = copy.copy(dataset)
    worker._turns = {}
    return worker


def test_a_worker_that_begins_when_an_epoch_has_been_set_meanwhile(flac: Packed) -> None:
    dataset = flac.loader().dataset
    early, late, dropped = (started(dataset) for _ in range(3))
    assert early._begin(0, 7) == 0
    dataset.set_epoch(5)
    dropped._begin(0, 8)  # of workers that have not been kept: whatever it does, nobody takes it
    late._begin(1, 7)
    assert [early._begin(0, 7), late._begin(1, 7)] == [0, 0]
    assert [late._begin(1, 7), early._begin(0, 7)] == [1, 1]
    first, second = started(dataset), started(dataset)
    assert [first._begin(0, 9), second._begin(1, 9)] == [2, 2]


def test_the_loader_and_its_dataset_are_told_of_an_epoch_at_once(flac: Packed) -> None:
    loader = flac.loader()
    assert loader.dataset is loader.dataset
    loader.set_epoch(5)
    assert {batch.epoch for batch in loader.dataset} == {5}


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_share_the_dataset(flac: Packed, rank: int) -> None:
    loaders = [flac.loader(rank=each, world_size=2, total_shards=4, num_workers=each) for each in (0, 1)]
    halves = [[key for batch in run(loader, 0, 1) for key in batch.keys] for loader in loaders]
    assert sorted(halves[0] + halves[1]) == sorted(flac.sources)
    assert len(loaders[rank]) == len(loaders[1 - rank])


# What is in a batch


@pytest.mark.parametrize("name", ["flac", "wav", "stereo"])
@pytest.mark.parametrize("settings", [{"threads": 2}, {"num_workers": 1}], ids=str)
def test_samples_are_soundfiles(request: pytest.FixtureRequest, name: str, settings: dict[str, Any]) -> None:
    dataset: Packed = request.getfixturevalue(name)
    found = set()
    for batch in dataset.loader(**settings):
        audio, lengths = batch.audio, batch.audio_lengths
        assert lengths.dtype == torch.int64
        assert audio.shape[-1] == int(lengths.max())
        assert audio.shape == ((len(batch), 2, audio.shape[-1]) if name == "stereo" else (len(batch), audio.shape[-1]))
        for row, key in enumerate(batch.keys):
            source, length = dataset.sources[key], int(lengths[row])
            np.testing.assert_array_equal(audio[row, ..., :length].numpy(), source.samples())
            assert not audio[row, ..., length:].any()
            assert batch.text[row] == source.text
            assert batch.meta[row] == source.meta
            found.add(key)
    assert found == set(dataset.sources)


def test_flac_and_wav_of_the_same_samples_give_the_same_batches(flac: Packed, wav: Packed) -> None:
    def rows(dataset: Packed) -> dict[str, bytes]:
        return {
            key: batch.audio[row, : int(batch.audio_lengths[row])].numpy().tobytes()
            for batch in dataset.loader()
            for row, key in enumerate(batch.keys)
        }

    assert rows(flac) == rows(wav)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "sample_rate 8000, 16000: say which one batches should have, e.g. sample_rate=8000, or filter"),
        ({"sample_rate": 16_000}, "channels 1, 2: say which one batches should have, e.g. channels=1, or filter"),
        ({"sample_rate": 16_000, "channels": 3}, "channels=3: the audio has 1, 2 channels"),
        ({"sample_rate": 0}, "sample_rate must be a whole number of 1 or more, not 0"),
        ({"channels": 1.0}, "channels must be a whole number of 1 or more, not 1.0"),
    ],
)
def test_mixed_audio_is_refused_until_told(mixed: Packed, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        mixed.loader(**settings)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("rate", [16_000, 11_025])
def test_mixed_audio_is_brought_to_what_is_asked(mixed: Packed, rate: int, channels: int, workers: int) -> None:
    index = ShardSet.open(mixed.address).index(["key", "sample_rate"]).to_pylist()
    rates = {row["key"]: row["sample_rate"] for row in index}
    for batch in mixed.loader(sample_rate=rate, channels=channels, num_workers=workers):
        for row, key in enumerate(batch.keys):
            original = np.round(mixed.sources[key].samples() * 32768).astype(np.int16).T
            wanted = resample(to_float32(mix_channels(original, channels)), rates[key], rate).T
            length = int(batch.audio_lengths[row])
            assert length == wanted.shape[-1]
            np.testing.assert_array_equal(batch.audio[row, ..., :length].numpy(), wanted)
            assert not batch.audio[row, ..., length:].any()


def test_a_filter_makes_the_audio_uniform(mixed: Packed) -> None:
    loader = mixed.loader(where="sample_rate == 8000 and channels == 1")
    assert loader.filtered["kept"] == sum(len(batch) for batch in loader) > 0


@pytest.mark.parametrize("form", ["expression", "string", "list"])
def test_rules_in_any_form_on_a_dataset_in_any_form(flac: Packed, form: str) -> None:
    rule = pc.field("speaker") == "s1"
    rules = {"expression": rule, "string": 'speaker == "s1"', "list": [rule, "num_samples > 0"]}
    settings = {"batch_bins": 600, "rank": 0, "world_size": 1, "where": rules[form]}
    wanted = {key for key, source in flac.sources.items() if source.meta["speaker"] == "s1"}
    for address in (flac.address, str(flac.address), f"file://{flac.address}", ShardSet.open(flac.address)):
        loader = ShardLoader(address, **settings)
        assert {key for batch in loader for key in batch.keys} == wanted
        loader.load_state_dict(loader.state_dict())


def test_fork_after_decoding_in_threads(flac: Packed, expected: list[Seen]) -> None:
    """Threads of one loader are running when the processes of another are forked."""
    running = iter(flac.loader(threads=2))
    first = seen(next(running))
    forked = list(run(flac.loader(num_workers=2, multiprocessing_context="fork"), 0))
    assert [first, *map(seen, running)] == forked == [batch for batch in expected if batch.epoch == 0]


@pytest.mark.parametrize(
    "settings",
    [
        {"threads": 0},
        {"num_workers": -1},
        {"num_workers": 1.5},
        {"num_workers": 1, "threads": 1},
        {"persistent_workers": True},
        {"multiprocessing_context": "fork"},
        {"num_workers": 1, "multiprocessing_context": "thread"},
        {"prefetch_factor": 0},
        {"timeout": 0},
    ],
    ids=str,
)
def test_worker_settings_that_make_no_sense_are_refused(flac: Packed, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="|".join(settings)):
        flac.loader(**settings)


def test_threads_are_as_many_as_the_cores_of_this_rank(flac: Packed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    assert Workers().decode_threads == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert Workers().decode_threads == 3
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "64")
    assert Workers().decode_threads == 1
