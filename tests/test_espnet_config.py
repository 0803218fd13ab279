"""A training.yaml of ESPnet3 becomes a ShardLoader, or an error that names its mistake; batches as ESPnet has them."""

from __future__ import annotations

import copy
import functools
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from packed import Packed, keys_of
from torch.utils.data import DataLoader
from uttershard.pipeline import UtteranceDataset
from uttershard.pipeline.errors import ConfigError, ShardingError
from uttershard.pipeline.espnet import espnet_collate, loader_from_espnet
from uttershard.writers import StatsSettings, collect_stats


def characters(text: str) -> list[int]:
    """Stand in for a tokenizer; at the top of a module, so that spawned workers can have it."""
    return [ord(letter) for letter in text]


@pytest.fixture
def folder(flac: Packed, tmp_path: Path) -> Path:
    """What ESPnet's collect_stats leaves: shape files."""
    ds = UtteranceDataset(flac.address, dist_world_size=1)
    lines = [f"{ds.get_utt_id(number).replace(' ', '_')} {len(ds[number]['speech'])}\n" for number in range(len(ds))]
    (tmp_path / "speech_shape").write_text("".join(lines), "utf-8")
    (tmp_path / "text_shape.char").write_text("a 7,30\n", "utf-8")
    (tmp_path / "text_shape.bpe").write_text("a 7,500\n", "utf-8")
    return tmp_path


def config_of(folder: Path) -> dict[str, Any]:
    """Return a training.yaml as ESPnet3's recipes have it."""
    config: dict[str, Any] = yaml.safe_load(
        f"""
        seed: 7
        dataset:
          train:
            - dataset: {{_target_: recipe.Corpus, total_shards: 4, dist_world_size: 2}}
        dataloader:
          collate_fn: {{_target_: espnet2.train.collate_fn.CommonCollateFn, int_pad_value: -1}}
          train:
            iter_factory:
              _target_: espnet2.iterators.sequence_iter_factory.SequenceIterFactory
              shuffle: true
              collate_fn: ${{dataloader.collate_fn}}
              batches:
                _target_: espnet2.samplers.build_batch_sampler.build_batch_sampler
                type: numel
                batch_bins: 60000
                min_batch_size: 2
                shape_files: [{folder}/speech_shape]
          valid:
            iter_factory:
            batch_size: 6
            num_workers: 0
            shuffle: false
        """
    )
    return config


def changed(folder: Path, path: str, value: Any) -> dict[str, Any]:
    """Return the configuration with one value set, or removed if it is None."""
    config = config_of(folder)
    place: Any = config
    *above, last = path.split(".")
    for name in above:
        place = place[int(name)] if name.isdigit() else place.setdefault(name, {})
    if value is None:
        del place[last]
    else:
        place[last] = value
    return config


BATCHES = "dataloader.train.iter_factory.batches"
DATASET = "dataset.train.0.dataset"


def test_the_loader_does_what_the_configuration_says(flac: Packed, folder: Path) -> None:
    for rank in range(2):
        loader = loader_from_espnet(config_of(folder), flac.address, rank=rank, world_size=2)
        same = flac.loader(
            rank=rank,
            world_size=2,
            total_shards=4,
            batch_type="numel",
            batch_bins=60_000,
            min_batch_size=2,
            length_columns=("num_samples",),
            seed=7,
        )
        for epoch in range(2):
            loader.set_epoch(epoch)
            same.set_epoch(epoch)
            assert loader.plan.ranks[rank].logical_shard == (2 * epoch + rank) % 4
            assert keys_of(loader) == keys_of(same)


def test_the_configuration_may_be_a_file(flac: Packed, folder: Path) -> None:
    path = folder / "training.yaml"
    path.write_text(yaml.safe_dump(config_of(folder)), "utf-8")
    loader = loader_from_espnet(path, flac.address, rank=0, world_size=2)
    expected = loader_from_espnet(config_of(folder), flac.address, rank=0, world_size=2)
    assert keys_of(loader) == keys_of(expected)


def test_a_plain_dataloader_for_validation(flac: Packed, folder: Path) -> None:
    config = config_of(folder)
    loader = loader_from_espnet(config, flac.address, mode="valid", rank=0, world_size=1)
    first = keys_of(loader)
    assert [len(keys) for keys in first] == [6] * 8
    assert keys_of(loader) == first
    config["dataset"]["valid"] = copy.deepcopy(config["dataset"]["train"])
    rotating = loader_from_espnet(config, flac.address, mode="valid", rank=1, world_size=2)
    parts = [{key for keys in keys_of(rotating) for key in keys} for _ in range(3)]
    assert parts[0] == parts[2]
    assert not parts[0] & parts[1]


def test_settings_win(flac: Packed, folder: Path) -> None:
    loader = loader_from_espnet(
        changed(folder, "dataset", None), flac.address, rank=0, world_size=1, batch_bins=30_000, seed=1
    )
    same = flac.loader(batch_type="numel", batch_bins=30_000, min_batch_size=2, length_columns=("num_samples",), seed=1)
    assert keys_of(loader) == keys_of(same)


def test_frames_and_characters(flac: Packed, folder: Path) -> None:
    config = changed(folder, f"{BATCHES}.shape_files", [f"{folder}/speech_shape", f"{folder}/text_shape.char"])
    loader = loader_from_espnet(config, flac.address, rank=0, world_size=2)
    same = flac.loader(
        rank=0,
        world_size=2,
        total_shards=4,
        batch_type="numel",
        batch_bins=60_000,
        min_batch_size=2,
        length_columns=("num_samples", "text_chars"),
        length_dims=(1, 30),
        seed=7,
    )
    assert keys_of(loader) == keys_of(same)


def test_tokens_of_the_datasets_own_statistics(flac: Packed, folder: Path) -> None:
    texts = "text_chars > 0"
    # A token a character.
    settings = StatsSettings(features="none", tokenizer="stats_functions:characters")
    stats = collect_stats(str(flac.address), settings, out=str(folder / "stats"), workers=1)
    loader = flac.loader(
        batch_type="length",
        batch_bins=200,
        length_columns=("frames", "tokens"),
        stats=stats.path,
        where=texts,
        shuffle=False,
        max_seconds=0.8,
    )
    for batch in list(loader)[:-1]:
        longest = max(range(len(batch)), key=lambda row: int(batch.audio_lengths[row]))
        cost = round(int(batch.audio_lengths[longest]) / 160) + len(batch.text[longest] or "")
        assert len(batch) * cost > 200
    fewer = flac.loader(stats=stats.path, where="tokens > 8")
    assert all(len(text or "") > 8 for batch in fewer for text in batch.text)
    assert len(list(fewer))


@pytest.mark.parametrize(
    ("path", "value", "error", "says"),
    [
        ("dataloader.train.total_shards", 4, ConfigError, "`dataloader.train.total_shards: 4` has no effect there"),
        ("dataloader.dist_world_size", 4, ConfigError, "`dataloader.dist_world_size: 4` has no effect there"),
        (f"{DATASET}.dist_world_size", 1, ShardingError, "dist_world_size is 1, as it is by default, but 2 ranks are"),
        (f"{DATASET}.dist_world_size", 8, ShardingError, "dist_world_size is 8, but 2 ranks are running"),
        (f"{DATASET}.dist_world_size", None, ShardingError, "stands without dist_world_size, which ESPnet3 needs"),
        (f"{DATASET}.total_shards", 5, ShardingError, "total_shards=5 is no multiple of world_size=2"),
        (
            f"{BATCHES}.type",
            "sorted",
            ConfigError,
            "`batch_bins: 60000` is a budget that ESPnet ignores with `type",
        ),
        ("dataloader.valid.batch_bins", 9, ConfigError, "`batch_bins: 9` is a budget that ESPnet ignores"),
        (f"{BATCHES}.shape_files", ["stats/speech_shape"], ConfigError, "speech_shape: the statistics are missing"),
        (
            f"{BATCHES}.shape_files",
            ["FOLDER/text_shape.bpe"],
            ConfigError,
            "have tokens of each utterance",
        ),
        (f"{BATCHES}.shape_files", ["stats/odd"], ConfigError, "does not show from its name; give length_columns="),
        (f"{BATCHES}.shape_files", None, ConfigError, "`type: numel` has no shape_files"),
        (
            "model.normalize_conf.stats_file",
            "no/feats_stats.npz",
            ConfigError,
            "no/feats_stats.npz`: the statistics are",
        ),
        (f"{BATCHES}.type", "length_or_so", ConfigError, "is no batch type of ESPnet: choose one of unsorted, sorted"),
        (f"{BATCHES}.type", "catpow_balance_dataset", ConfigError, "use a Mix"),
        (f"{BATCHES}.utt2category_file", "utt2spk", ConfigError, "Pack with --column NAME, and give category='NAME'"),
        (f"{BATCHES}.num_batches", 3, ConfigError, "`num_batches: 3` has no counterpart"),
        (f"{BATCHES}.min_batchsize", 3, ConfigError, "`batches: min_batchsize: 3` has no counterpart"),
        (f"{BATCHES}.batch_bins", "${bins}", ConfigError, "is not resolved"),
        ("dataloader.train.iter_factory.num_iters_per_epoch", 9, ConfigError, "give the dataset a larger total_shards"),
        (
            "dataloader.train.iter_factory._target_",
            "a.ChunkIterFactory",
            ConfigError,
            "Factory` has no counterpart",
        ),
        ("dataloader.train.iter_factory._target_", None, ConfigError, "`iter_factory:` has no `_target_:`"),
        ("dataloader.train.iter_factory.batches", None, ConfigError, "has no `batches:`"),
        ("dataloader.train.multiple_iterator", True, ConfigError, "give total_shards to the dataset"),
        ("dataloader.valid.drop_last", True, ConfigError, "makes equal steps without dropping"),
        ("dataloader.valid.sampler", "x", ConfigError, "`dataloader: sampler: x` has no counterpart"),
        ("dataloader", None, ConfigError, "the configuration has no `dataloader: train:`"),
    ],
)
def test_mistakes_are_named(
    flac: Packed, folder: Path, path: str, value: Any, error: type[Exception], says: str
) -> None:
    if isinstance(value, list):
        value = [one.replace("FOLDER", str(folder)) for one in value]
    mode = "valid" if path.startswith("dataloader.valid") else "train"
    with pytest.raises(error) as refused:
        loader_from_espnet(changed(folder, path, value), flac.address, mode=mode, rank=0, world_size=2)
    assert says in str(refused.value)


def test_datasets_of_one_loader_have_the_same_shards(flac: Packed, folder: Path) -> None:
    config = config_of(folder)
    config["dataset"]["train"].append({"dataset": {"total_shards": 8, "dist_world_size": 2}})
    with pytest.raises(ShardingError, match="all datasets of one loader need the same total_shards"):
        loader_from_espnet(config, flac.address, rank=0, world_size=2)


def test_a_batch_size_that_espnet_demands_and_ignores(
    flac: Packed, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "uttershard"):
        loader = loader_from_espnet(changed(folder, f"{BATCHES}.batch_size", 20), flac.address, rank=0, world_size=2)
    assert "`batch_size: 20` has no effect with `type: numel`" in caplog.text
    assert keys_of(loader) == keys_of(loader_from_espnet(config_of(folder), flac.address, rank=0, world_size=2))


@pytest.mark.parametrize(("config", "says"), [([1], "is no mapping"), ("no/such.yaml", "there is no such file")])
def test_what_is_no_configuration(flac: Packed, config: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        loader_from_espnet(config, flac.address)


def _expected(flac: Packed, keys: list[str]) -> dict[str, torch.Tensor]:
    """Return what ESPnet's CommonCollateFn(float_pad_value=0.0, int_pad_value=-1) makes of these, by its rule."""
    waves = [flac.sources[key].samples() for key in keys]
    tokens = [np.array(characters(flac.sources[key].text or ""), np.int64) for key in keys]
    made = {}
    for name, arrays, pad in (("speech", waves, 0.0), ("text", tokens, -1)):
        lengths = [len(array) for array in arrays]
        padded = torch.full((len(arrays), max(lengths)), pad, dtype=torch.from_numpy(arrays[0]).dtype)
        for row, array in enumerate(arrays):
            padded[row, : len(array)] = torch.from_numpy(array)
        made |= {name: padded, f"{name}_lengths": torch.tensor(lengths)}
    return made


def test_batches_as_espnet_has_them(flac: Packed) -> None:
    ds = UtteranceDataset(flac.address, dist_world_size=1, where="text_chars > 0")
    collate = functools.partial(espnet_collate, tokenizer=characters)
    of_items = DataLoader(ds, batch_size=8, collate_fn=collate, num_workers=1, multiprocessing_context="fork")
    of_batches = flac.loader(where="text_chars > 0", tokenizer=characters, token_pad=5)
    of_texts = flac.loader(where="text_chars > 0")
    pairs = [(ds.get_utt_id(number), dict(ds[number])) for number in (3, 1, 4)]
    seen = [
        *of_items,
        *map(espnet_collate, of_batches),
        *map(collate, of_texts),
        collate(pairs),
    ]
    for keys, data in seen:
        expected = _expected(flac, keys)
        assert list(data) == ["speech", "speech_lengths", "text", "text_lengths"]
        for name, tensor in data.items():
            assert tensor.dtype == expected[name].dtype
            assert torch.equal(tensor, expected[name]), name
    assert sorted(key for keys, _ in seen[: len(of_items)] for key in keys) == sorted(ds.keys())


def test_channels_come_last(stereo: Packed) -> None:
    ds = UtteranceDataset(stereo.address, dist_world_size=1, where="text_chars > 0")
    items = [ds[number] for number in (1, 2)]
    keys, data = espnet_collate(items, tokenizer=characters)
    (batch,) = DataLoader(ds, batch_sampler=[[1, 2]])
    same_keys, same = espnet_collate(batch, tokenizer=characters)
    assert keys == same_keys
    assert data["speech"].shape == (2, max(len(item["speech"]) for item in items), 2)
    assert torch.equal(data["speech"], same["speech"])


def test_float_pad(flac: Packed) -> None:
    ds = UtteranceDataset(flac.address, dist_world_size=1)
    (batch,) = DataLoader(ds, batch_sampler=[[1, 2, 3]])
    collate = functools.partial(espnet_collate, float_pad=-9.0)
    batch.text = [None] * 3
    speech_only = [(ds.get_utt_id(number), {"speech": ds[number]["speech"]}) for number in (1, 2, 3)]
    for _, data in (collate(batch), collate(speech_only)):
        for row, length in enumerate(data["speech_lengths"].tolist()):
            assert (data["speech"][row, length:] == -9).all()
            assert (data["speech"][row, :length] > -9).all()


@pytest.mark.parametrize(
    ("numbers", "settings", "says"),
    [((0, 1), {"tokenizer": characters}, "has no transcript"), ((1, 2), {}, "give tokenizer= to make numbers of it")],
)
def test_transcripts_that_make_no_numbers(
    flac: Packed, numbers: tuple[int, ...], settings: dict[str, Any], says: str
) -> None:
    ds = UtteranceDataset(flac.address, dist_world_size=1)
    items = sorted((ds[number] for number in range(len(ds))), key=lambda item: item.meta["take"])
    with pytest.raises(ConfigError, match=says):
        espnet_collate([items[number] for number in numbers], **settings)


def test_speech_alone(flac: Packed) -> None:
    ds = UtteranceDataset(flac.address, dist_world_size=1)
    silent = [item for item in (ds[number] for number in range(len(ds))) if "text" not in item]
    _, data = espnet_collate(silent)
    assert list(data) == ["speech", "speech_lengths"]
