"""UtteranceDataset: any sampler, by number and by id, in any worker; shards and frame budgets for ESPnet3."""

from __future__ import annotations

import copy
import pickle
import sys
import types
from abc import ABC
from collections import Counter
from itertools import chain
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packed import Packed, make_dataset
from s3_cases import RemoteDataset
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Subset,
    WeightedRandomSampler,
)
from uttershard.pipeline import Batch, Mix, ShardSet, UtteranceDataset
from uttershard.pipeline.errors import ConfigError, DataError, ShardingError
from uttershard.pipeline.loader.plan_sampler import PlanSampler
from uttershard.pipeline.loader.utterance_dataset import ESPNET3_MODULE


def alone(packed: Packed | ShardSet, **settings: Any) -> UtteranceDataset:
    """Open a dataset, alone in the world."""
    data = packed if isinstance(packed, ShardSet) else packed.address
    return UtteranceDataset(data, **{"dist_world_size": 1, **settings})


def check(packed: Packed, batch: Batch) -> None:
    """Compare a batch with what was packed."""
    for row, key in enumerate(batch.keys):
        source = packed.sources[key]
        length = int(batch.audio_lengths[row])
        assert np.array_equal(batch.audio[row, ..., :length].numpy(), source.samples())
        assert not batch.audio[row, ..., length:].any()
        assert batch.text[row] == source.text
        assert batch.meta[row] == source.meta


@pytest.mark.parametrize("kind", ["flac", "wav", "stereo"])
def test_items_are_what_was_packed(kind: str, request: pytest.FixtureRequest) -> None:
    packed: Packed = request.getfixturevalue(kind)
    ds = alone(packed)
    assert sorted(ds.keys()) == sorted(packed.sources)
    for number in range(len(ds)):
        item = ds[number]
        source = packed.sources[item.key]
        assert ds.get_utt_id(number) == item.key
        assert item["speech"].dtype == np.float32
        assert np.array_equal(item["speech"].T, source.samples())
        assert item.get("text") == source.text
        assert (item.meta, item.sample_rate) == (source.meta, 16_000)
        assert set(item) == ({"speech", "text"} if source.text is not None else {"speech"})
        by_id = ds[item.key]
        assert by_id.key == item.key
        assert np.array_equal(by_id["speech"], item["speech"])
    copied = copy.deepcopy(ds[0])
    assert (copied.key, copied.meta, copied.sample_rate) == (ds[0].key, ds[0].meta, ds[0].sample_rate)
    assert ds[-1].key == ds[len(ds) - 1].key
    assert ds[torch.tensor(3)].key == ds[np.int64(3)].key == ds.get_utt_id(3)


@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork"), (1, "forkserver"), (1, "spawn")])
def test_a_plain_dataloader_with_a_weighted_sampler(flac: Packed, workers: int, method: str | None) -> None:
    ds = alone(flac)
    weights = torch.where(torch.arange(len(ds)) % 2 == 0, 1.0, 0.0)
    sampler = WeightedRandomSampler(weights.tolist(), 40, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(ds, batch_size=16, sampler=sampler, num_workers=workers, multiprocessing_context=method)
    batches = list(loader)
    assert [len(batch) for batch in batches] == [16, 16, 8]
    for batch in batches:
        check(flac, batch)
    even = {ds.get_utt_id(number) for number in range(0, len(ds), 2)}
    assert {key for batch in batches for key in batch.keys} <= even


def test_other_samplers(flac: Packed) -> None:
    ds = alone(flac)
    shuffled = DataLoader(ds, batch_sampler=BatchSampler(RandomSampler(ds), 7, drop_last=False))
    assert sorted(key for batch in shuffled for key in batch.keys) == sorted(flac.sources)
    parts = [DistributedSampler(ds, num_replicas=2, rank=rank, shuffle=False) for rank in range(2)]
    keys = [[key for batch in DataLoader(ds, batch_size=5, sampler=part) for key in batch.keys] for part in parts]
    assert sorted(keys[0] + keys[1]) == sorted(flac.sources)
    by_id = DataLoader(ds, batch_sampler=[["plain-0", "語 3"], ["Größe 2"]])
    assert [batch.keys for batch in by_id] == [["plain-0", "語 3"], ["Größe 2"]]
    subset = DataLoader(Subset(ds, [4, 2]), batch_size=2)
    assert [batch.keys for batch in subset] == [[ds.get_utt_id(4), ds.get_utt_id(2)]]
    single = DataLoader(ds, batch_size=None, sampler=[3])
    assert [item["text"] for item in single] == [flac.sources[ds.get_utt_id(3)].text]


def test_audio_is_brought_to_one_form(mixed: Packed) -> None:
    with pytest.raises(ConfigError, match="give channels=1"):
        next(iter(DataLoader(alone(mixed), batch_size=16)))
    batch = next(iter(DataLoader(alone(mixed, channels=1, sample_rate=16_000), batch_size=16)))
    assert batch.audio.ndim == 2
    assert all(item.sample_rate == 16_000 for item in [alone(mixed, channels=1, sample_rate=16_000)[0]])
    assert {alone(mixed)[number]["speech"].ndim for number in range(16)} == {1, 2}


def test_filters_leave_out_what_they_say(flac: Packed) -> None:
    ds = alone(flac, where="text_chars > 0", max_seconds=0.7)
    expected = [k for k, s in flac.sources.items() if s.text is not None and s.samples().size <= 0.7 * 16_000]
    assert sorted(ds.keys()) == sorted(expected)
    assert len(ds) == len(expected)
    with pytest.raises(ConfigError, match="no utterance 'plain-0' among the"):
        ds["plain-0"]


@pytest.mark.parametrize("cached", [False, True])
def test_it_reads_from_a_store(remote: RemoteDataset, tmp_path: Path, cached: bool) -> None:
    ds = UtteranceDataset(
        remote.address, storage_options=remote.options(), dist_world_size=1, cache=tmp_path if cached else None
    )
    for batch in DataLoader(ds, batch_size=20):
        check(remote.packed, batch)
    assert np.array_equal(ds["plain-0"]["speech"], remote.packed.sources["plain-0"].samples())


@pytest.mark.parametrize(("index", "error"), [(48, IndexError), (-49, IndexError), ("nobody", ConfigError)])
def test_what_is_not_there_is_an_error(flac: Packed, index: int | str, error: type[Exception]) -> None:
    with pytest.raises(error, match=str(index)):
        alone(flac)[index]


def test_damage_is_named(broken: Packed) -> None:
    ds = alone(broken)
    tar = broken.tar(0)
    data = bytearray(tar.read_bytes())
    data[700] ^= 1
    tar.write_bytes(data)
    with pytest.raises(DataError) as raised:
        ds[0]
    for named in (str(tar), repr(ds.get_utt_id(0)), "offset 0"):
        assert named in str(raised.value)
    with pytest.raises(DataError, match="offset 0"):
        list(DataLoader(ds, batch_size=4, num_workers=1))


def test_the_index_is_not_copied_to_workers(tmp_path_factory: pytest.TempPathFactory) -> None:
    sizes = []
    for count in (8, 80):
        packed = make_dataset(tmp_path_factory.mktemp(f"of{count}"), utterances=count, shards=2)
        ds = alone(packed)
        ds[ds.get_utt_id(0)]  # the order of the ids too
        sizes.append(len(ForkingPickler.dumps(ds)))
    assert abs(sizes[1] - sizes[0]) < 100
    copied = pickle.loads(ForkingPickler.dumps(ds))  # noqa: S301
    assert copied[5].key == ds[5].key
    with pytest.raises(ConfigError, match="in another process has no ShardSet"):
        _ = copied.shards


@pytest.mark.parametrize("total_shards", [2, 4, 6, 14])
def test_shards_are_disjoint_and_complete(flac: Packed, total_shards: int) -> None:
    ds = alone(flac, total_shards=total_shards, dist_world_size=2)
    assert (ds.total_shards, ds.dist_world_size) == (total_shards, 2)
    shards = [ds.shard(number) for number in range(total_shards)]
    assert Counter(chain.from_iterable(shard.keys() for shard in shards)) == Counter(ds.keys())
    for shard in shards:
        assert [shard[number].key for number in range(len(shard))] == list(shard.keys())
        assert shard.shards is ds.shards


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda ds: ds.shard(4), "shard index=4 is out of range: give an integer from 0 to 3"),
        (lambda ds: ds.shard(1).shard(0), "logical shard 1 of 4"),
        (lambda ds: alone(ds.shards).shard(0), "give total_shards="),
        (
            lambda ds: alone(ds.shards, total_shards=3, dist_world_size=2),
            "total_shards=3 is no multiple",
        ),
        (lambda ds: PlanSampler(ds.shard(1), batch_size=2, rank=0, world_size=1), "its number says who reads it"),
        (lambda ds: PlanSampler(ds.shard(3), batch_size=2).set_epoch(2), "epoch 2 does not read"),
    ],
)
def test_shards_that_there_are_not(flac: Packed, make: Any, says: str) -> None:
    ds = alone(flac, total_shards=4, dist_world_size=2)
    with pytest.raises(ShardingError) as refused:
        make(ds)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("dataset", "says"), [(None, "give the address"), (3, "3 is a int"), (Mix(["a"]), "ConcatDataset")]
)
def test_what_is_no_dataset_is_refused(dataset: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        UtteranceDataset(dataset)


@pytest.mark.parametrize("index", [1.5, None, slice(0, 3)])
def test_what_is_no_number_and_no_id_is_refused(flac: Packed, index: Any) -> None:
    with pytest.raises(TypeError, match="give a whole number or an id"):
        alone(flac)[index]


def test_frame_budgets_and_shards_together(flac: Packed) -> None:
    ds = alone(flac, total_shards=4, dist_world_size=2)
    for epoch in range(2):
        samplers = [PlanSampler(ds.shard(2 * epoch + rank), batch_bins=300, seed=5) for rank in range(2)]
        for rank, sampler in enumerate(samplers):
            part = ds.shard(2 * epoch + rank)
            batches = list(DataLoader(part, batch_sampler=sampler))
            assert len(batches) == len(samplers[0]), "as many on every rank"
            assert sorted(key for batch in batches for key in batch.keys) == sorted(part.keys())
            for batch in batches:
                check(flac, batch)
                assert len(batch) * int(batch.audio_lengths.max()) <= 300 * 160 + len(batch) * 80
            sampler.set_epoch(epoch + 2)
            assert list(sampler) != list(PlanSampler(part, batch_bins=300, seed=5))


def test_the_batches_are_those_of_a_shard_loader(flac: Packed) -> None:
    ds = alone(flac)
    for settings in ({"batch_bins": 600}, {"batch_type": "numel", "batch_bins": 600, "equal_steps": "drop"}):
        for rank in range(3):
            loader = flac.loader(rank=rank, world_size=3, seed=4, **settings)
            sampler = PlanSampler(ds, rank=rank, world_size=3, seed=4, **settings)
            for epoch in range(2):
                loader.set_epoch(epoch)
                sampler.set_epoch(epoch)
                assert [[ds.get_utt_id(i) for i in numbers] for numbers in sampler] == [batch.keys for batch in loader]


class _ShardedDataset(ABC, Dataset):  # type: ignore[type-arg]
    """What ESPnet3 wants datasets with shards to be an instance of."""


class _CombinedDataset:
    """What ESPnet3 does with them: numbers over all, ids by `get_utt_id`, shards of sharded datasets only."""

    def __init__(self, datasets: list[Any]) -> None:
        self.datasets = datasets
        self.ids = {dataset.get_utt_id(i): (dataset, i) for dataset in datasets for i in range(len(dataset))}

    def __getitem__(self, index: int | str) -> tuple[str, dict[str, Any]]:
        dataset, number = self.ids[index] if isinstance(index, str) else (self.datasets[0], index)
        return dataset.get_utt_id(number), dataset[number]

    def __len__(self) -> int:
        return sum(map(len, self.datasets))

    def shard(self, index: int) -> _CombinedDataset:
        if not all(isinstance(dataset, _ShardedDataset) for dataset in self.datasets):
            raise RuntimeError("not sharded")
        return _CombinedDataset([dataset.shard(index) for dataset in self.datasets])


def test_espnet3_takes_its_shards(flac: Packed, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType(ESPNET3_MODULE)
    module.ShardedDataset = _ShardedDataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, ESPNET3_MODULE, module)
    combined = _CombinedDataset([alone(flac, total_shards=4, dist_world_size=2, where="text_chars > 0")])
    first = combined.datasets[0]
    assert isinstance(first, _ShardedDataset)
    seen = []
    for epoch in range(2):
        for rank in range(2):
            part = combined.shard((epoch * first.dist_world_size + rank) % first.total_shards)
            sampler = PlanSampler(part, batch_bins=400)
            for items in DataLoader(part, batch_sampler=sampler, collate_fn=list):
                for key, sample in items:
                    assert sample["text"] == flac.sources[key].text == part.datasets[0].get_text(key)
                    seen.append(key)
    assert sorted(seen) == sorted(key for key, source in flac.sources.items() if source.text is not None)


def test_a_sampler_needs_one_of_our_datasets() -> None:
    with pytest.raises(ConfigError, match="not list"):
        PlanSampler([1, 2], batch_size=2)
