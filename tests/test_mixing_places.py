"""A Mix of datasets in several kinds of places: local, in a store, adopted; with statistics, windows and a cache."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fault_proxy import FaultProxy
from hypothesis import given
from hypothesis import strategies as st
from packed import BINS, Packed, keys_of, make_dataset, run, seen
from planning_cases import corpus_of
from s3_cases import PATIENT, RemoteDataset, cached_tars
from test_adopt import nemo, webdataset_tars
from torch.utils.data import DataLoader
from uttershard.pipeline import Mix, Part, ShardLoader
from uttershard.pipeline.errors import ConfigError, ShardingError
from uttershard.pipeline.planning.elastic import Stage
from uttershard.pipeline.planning.layout import EpochLayout
from uttershard.pipeline.planning.mixing import MixedCorpus, mix_corpora
from uttershard.pipeline.planning.plan import lay_out_epoch, lay_out_rest, windows_of_rank
from uttershard.pipeline.planning.settings import Batching, Sharding
from uttershard.pipeline.testing import check_elastic_resume, check_resume
from uttershard.writers import StatsSettings, collect_stats, index_tars, merge


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return make_dataset(tmp_path_factory.mktemp("near"), utterances=24)


@pytest.fixture(scope="module")
def webdataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve utterances, adopted."""
    folder = tmp_path_factory.mktemp("webdataset")
    webdataset_tars(folder)
    index_tars([str(folder)], columns=("speaker",), workers=1)
    return folder


def _loader(mix: Mix, remote: RemoteDataset | None = None, **settings: Any) -> ShardLoader:
    options = None if remote is None else remote.options()
    world = {"rank": 0, "world_size": 1, "batch_bins": BINS, **PATIENT}
    return ShardLoader(mix, **{**world, "storage_options": options, **settings})


def _three(near: Packed, far: Any, adopted: Path, **settings: Any) -> Mix:
    parts = [Part(far, "far", repeat=0.7), Part(near.address, "near", repeat=1.5), Part(adopted, "adopted", repeat=2)]
    return Mix(parts, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"prefetch_bytes": 20_000},
        {"num_workers": 2, "multiprocessing_context": "fork"},
        {"num_workers": 1, "multiprocessing_context": "spawn"},
        {"windows": 3},
        {"cache": "cache"},
        {"cache": "cache", "windows": 3, "num_workers": 2, "multiprocessing_context": "fork"},
        {"rank": 1, "world_size": 2, "total_shards": 4},
    ],
    ids=str,
)
def test_batches_are_those_of_the_same_datasets_on_one_disk(
    near: Packed, remote: RemoteDataset, webdataset: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    plan = {
        name: value for name, value in settings.items() if name in ("windows", "rank", "world_size", "total_shards")
    }
    here = _loader(_three(near, remote.packed.address, webdataset), **plan)
    if "cache" in settings:
        settings = {**settings, "cache": tmp_path / "cache"}
    there = _loader(_three(near, remote.address, webdataset), remote, **settings)
    assert list(run(there, 0, 1)) == list(run(here, 0, 1))
    assert there.parts == here.parts
    assert there.metrics()["storage"]["fetched_bytes"] > 0
    if "cache" in settings:
        # What is on the disk already is not copied into the cache.
        assert len(cached_tars(tmp_path / "cache")) == 8


def test_merged_datasets_here_and_there(near: Packed, remote: RemoteDataset, tmp_path: Path) -> None:
    loaders = []
    for name, far in (("here", str(remote.packed.address)), ("there", remote.address)):
        merge([far, str(near.address)], str(tmp_path / name), prefixes=("a/", "b/"), storage_options=remote.options())
        settings = {"rank": 0, "world_size": 1, "batch_bins": BINS, "cache": tmp_path / "cache", **PATIENT}
        loaders.append(ShardLoader(tmp_path / name, storage_options=remote.options(), **settings))
    here, there = loaders
    assert list(run(there, 0)) == list(run(here, 0))
    # Local tars are mapped where they are, and not copied into the cache.
    assert len(cached_tars(tmp_path / "cache")) == 8


def test_through_a_dataloader_of_ones_own(near: Packed, remote: RemoteDataset, webdataset: Path) -> None:
    loader = _loader(_three(near, remote.address, webdataset), remote)
    data: DataLoader[Any] = DataLoader(loader.dataset, batch_size=None, num_workers=2)
    assert [seen(batch) for batch in data] == list(run(loader, 0))


def test_text_and_metadata_come_from_where_each_has_them(near: Packed, webdataset: Path, tmp_path: Path) -> None:
    nemo(tmp_path / "nemo")
    manifests = str(tmp_path / "nemo" / "tarred_audio_manifest.json")
    index_tars([str(tmp_path / "nemo" / "audio__OP_0..1_CL_.tar")], manifests=manifests, workers=1)
    mix = Mix([Part(near.address, "near"), Part(webdataset, "web"), Part(tmp_path / "nemo", "nemo")])
    for pure in (False, True):
        delivered: Counter[str] = Counter()
        for batch in _loader(Mix(mix.parts, pure=pure)):
            for key, text, meta in zip(batch.keys, batch.text, batch.meta, strict=True):
                delivered[meta["dataset"]] += 1
                if meta["dataset"] == "near":
                    assert (text, meta["speaker"]) == (near.sources[key].text, near.sources[key].meta["speaker"])
                else:
                    number = int(key.removeprefix("rec"))
                    assert text == f"text {number}"
                    assert ("speaker" in meta) == (meta["dataset"] == "web")
        assert delivered == {"near": 24, "web": 12, "nemo": 4}


def test_resume_and_another_world(near: Packed, remote: RemoteDataset, webdataset: Path) -> None:
    def make(rank: int = 0, world_size: int = 1) -> ShardLoader:
        mix = _three(near, remote.address, webdataset)
        return _loader(mix, remote, rank=rank, world_size=world_size, windows=2)

    assert check_resume(make, epochs=1, every=5) > 2
    check_elastic_resume(make, [1, 2], [3], epoch=1)


def test_stores_with_options_of_their_own(near: Packed, remote: RemoteDataset, proxy: FaultProxy) -> None:
    mix = Mix([Part(remote.shards(), "direct"), Part(remote.shards(proxy), "by proxy"), Part(near.address, "near")])
    delivered = Counter(meta["dataset"] for batch in _loader(mix) for meta in batch.meta)
    assert delivered == {"direct": 48, "by proxy": 48, "near": 24}


def test_damage_is_named_with_its_dataset(near: Packed, remote: RemoteDataset, tmp_path: Path) -> None:
    broken = near.copy(tmp_path / "broken")
    data = bytearray(broken.tar(1).read_bytes())
    data[3000] ^= 1
    broken.tar(1).write_bytes(data)
    mix = Mix([Part(remote.address, "far"), Part(broken.address, "near")])
    loader = _loader(mix, remote, on_error="skip")
    assert sum(len(batch) for batch in loader) == 48 + 23
    [skipped] = loader.metrics()["skipped_utterances"]
    assert "broken/shard-000001.tar" in str(skipped)


def test_a_dataset_of_the_store_is_added_between_epochs(near: Packed, remote: RemoteDataset) -> None:
    before = _loader(Mix([Part(near.address, "near")]))
    list(before)
    both = Mix([Part(near.address, "near"), Part(remote.address, "far")])
    after = _loader(both, remote)
    after.load_state_dict(before.state_dict())
    fresh = _loader(both, remote)
    fresh.set_epoch(1)
    assert after.epoch == 1 and keys_of(after) == keys_of(fresh)


def test_statistics_of_each(near: Packed, flac: Packed, tmp_path: Path) -> None:
    settings = StatsSettings(features="none", tokenizer="stats_functions:characters")
    paths = [
        collect_stats(str(packed.address), settings, out=str(tmp_path / name), workers=1).path
        for name, packed in (("near", near), ("flac", flac))
    ]
    parts = [
        Part(near.address, "near", stats=paths[0]),
        Part(flac.address, "flac", stats=paths[1], where="tokens != 8"),
    ]
    loader = _loader(Mix(parts), where="tokens > 0")
    lengths = Counter(
        (meta["dataset"], len(text or ""))
        for batch in loader
        for text, meta in zip(batch.text, batch.meta, strict=True)
    )
    assert all(length for _, length in lengths) and lengths["near", 8] and not lengths["flac", 8]
    by_both = {"batch_type": "length", "batch_bins": 300, "length_columns": ("frames", "tokens"), "where": "tokens > 0"}
    assert sum(len(batch) for batch in _loader(Mix(parts), **by_both)) == lengths.total()
    with pytest.raises(ConfigError, match="dataset 'flac': where='tokens > 0': there is no column 'tokens'"):
        _loader(Mix([parts[0], Part(flac.address, "flac")]), where="tokens > 0")
    with pytest.raises(ConfigError, match=r"is of one dataset, and a Mix has several.*Part\(..., stats=...\)"):
        _loader(Mix([near.address]), stats=paths[0])
    with pytest.raises(ConfigError, match=r"mix was|parts was"):
        _loader(Mix(parts)).load_state_dict(_loader(Mix([Part(near.address, "near"), *parts[1:]])).state_dict())


# Windows


def _mix(sizes: list[int], repeats: list[Fraction], total_shards: int, seed: int) -> MixedCorpus:
    random = np.random.default_rng(seed)
    corpora = [
        corpus_of(random.integers(1, 900, size, endpoint=True), tars=12, total_shards=total_shards) for size in sizes
    ]
    names = [f"set{number}" for number in range(len(corpora))]
    return mix_corpora(list(zip(names, corpora, repeats, strict=True)), separate=False)


@given(
    repeats=st.lists(st.fractions(Fraction(1, 3), Fraction(3), max_denominator=9), min_size=2, max_size=2),
    world_size=st.integers(1, 3),
    windows=st.integers(2, 5),
    epoch=st.integers(0, 9),
    seed=st.integers(0, 2**32),
)
def test_windows_of_a_mix(repeats: list[Fraction], world_size: int, windows: int, epoch: int, seed: int) -> None:
    mix = _mix([240, 120], repeats, world_size, seed)
    batching = Batching(batch_bins=9_000, windows=windows)
    plain = lay_out_epoch(mix, world_size, world_size, Batching(batch_bins=9_000), epoch=epoch, seed=seed)
    layout = lay_out_epoch(mix, world_size, world_size, batching, epoch=epoch, seed=seed)
    for rank in range(world_size):
        plan = layout.plan(rank)
        assert sorted(plan.rows) == sorted(plain.plan(rank).rows)
        sharding = Sharding(rank, world_size)
        told = windows_of_rank(mix, sharding, batching, epoch=epoch, seed=seed)
        for number, rows in enumerate(told):
            steps = slice(*plan.windows[number : number + 2])
            inside = plan.rows[plan.splits[steps.start] : plan.splits[steps.stop]]
            assert sorted(inside) == rows.tolist()
            # A few tars of each dataset, not all of them.
            tars = np.unique(np.searchsorted(mix.tars, mix.real_rows(rows), side="right"))
            assert tars.size <= 24 / world_size / windows + 4
    stages = [Stage(world_size, world_size, layout.plan(0).steps // 2)]
    rest = lay_out_rest(mix, stages, world_size + 1, world_size + 1, batching, epoch=epoch, seed=seed)
    delivered = _delivered(layout, stages[0].steps) + _delivered(rest)
    assert sorted(delivered) == sorted(_delivered(plain))


def _delivered(layout: EpochLayout, steps: int | None = None) -> list[int]:
    """Return what all ranks deliver in their first steps, fillers apart."""
    plans = [layout.plan(rank) for rank in range(layout.world_size)]
    every = [(plan, step) for plan in plans for step in range(plan.steps if steps is None else steps)]
    return [row for plan, step in every if not plan.filler[step] for row in plan.batch(step).tolist()]


def test_too_many_windows_are_refused_by_name() -> None:
    mix = _mix([40, 4], [Fraction(1)] * 2, 4, 0)
    with pytest.raises(ConfigError, match="windows=11, but rank 0 has 10 utterances"):
        lay_out_epoch(mix, 4, 4, Batching(batch_size=4, windows=11), epoch=0)
    with pytest.raises(ShardingError, match=r"logical shard 0 of dataset 'b', window \d, which has"):
        two = mix_corpora(
            [
                ("a", corpus_of(np.full(40, 9), total_shards=2), Fraction(1)),
                ("b", corpus_of(np.full(5, 9), total_shards=2), Fraction(1)),
            ],
            separate=True,
        )
        lay_out_epoch(two, 2, 2, Batching(batch_size=1, windows=3), epoch=0)
