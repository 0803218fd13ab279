"""Streaming from S3 gives the batches of a local disk, bit for bit; from a cache without asking the store again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import soundfile
from corpora import noise, write_jsonl
from fault_proxy import Fault, FaultProxy
from packed import Packed, run, seen
from s3_cases import RemoteDataset, cached_tars, tar_requests
from s3_server import S3Server
from torch.utils.data import DataLoader
from uttershard.pipeline.errors import ConfigError
from uttershard.pipeline.storage.cache_files import CacheFolder
from uttershard.writers import pack


def settings_of(storage: str, folder: Path) -> dict[str, Any]:
    return {
        "spans": {},
        "spans, little memory": {"prefetch_bytes": 20_000},
        "cache": {"cache": folder},
        "cache, reading through": {"cache": folder, "prefetch_bytes": 1},
        "windows": {"windows": 3},
        "windows, small cache": {"windows": 4, "cache": folder},
    }[storage]


@pytest.mark.parametrize(
    "workers", [{}, {"num_workers": 3, "multiprocessing_context": "fork"}], ids=["threads", "fork"]
)
@pytest.mark.parametrize(
    "storage",
    ["spans", "spans, little memory", "cache", "cache, reading through", "windows", "windows, small cache"],
)
def test_batches_are_those_of_a_local_disk(
    remote: RemoteDataset, tmp_path: Path, storage: str, workers: dict[str, Any]
) -> None:
    settings = settings_of(storage, tmp_path)
    if storage == "windows, small cache":
        settings["cache_bytes"] = remote.tar_bytes() * 3 // 4
    local = remote.packed.loader(windows=settings.get("windows"))
    assert list(run(remote.loader(**settings, **workers), 0, 1)) == list(run(local, 0, 1))


@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_workers_of_every_start_method(remote: RemoteDataset, tmp_path: Path, context: str) -> None:
    loader = remote.loader(cache=tmp_path, num_workers=2, multiprocessing_context=context)
    assert list(run(loader, 0)) == list(run(remote.packed.loader(), 0))


@pytest.mark.parametrize("storage", ["spans", "cache", "windows"])
def test_two_ranks(remote: RemoteDataset, tmp_path: Path, storage: str) -> None:
    settings = settings_of(storage, tmp_path)
    for rank in range(2):
        world = {"rank": rank, "world_size": 2, "total_shards": 4}
        expected = list(run(remote.packed.loader(windows=settings.get("windows"), **world), 0, 1))
        for workers in ({}, {"num_workers": 3, "multiprocessing_context": "fork"}):
            loader = remote.loader(**settings, **world, **workers)
            assert list(run(loader, 0, 1)) == expected


def test_a_dataloader_of_the_users_own(remote: RemoteDataset, tmp_path: Path) -> None:
    expected = list(run(remote.packed.loader(), 0))
    for settings in ({}, {"cache": tmp_path}):
        dataset = remote.loader(**settings).dataset
        loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
        assert list(map(seen, loader)) == expected


def test_a_fork_of_a_process_that_has_read(remote: RemoteDataset) -> None:
    loader = remote.loader()
    expected = list(run(loader, 0))
    child = os.fork()
    if not child:
        os._exit(list(run(loader, 0)) != expected)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_workers_forked_from_a_process_that_has_read(remote: RemoteDataset, tmp_path: Path) -> None:
    # obstore is of no use in such a process; what it would do there is wait for ever.
    expected = list(run(remote.loader(), 0))
    for settings in ({}, {"cache": tmp_path}):
        loader = remote.loader(num_workers=2, multiprocessing_context="fork", **settings)
        assert list(run(loader, 0)) == expected


def test_utterances_of_more_than_16_bits_are_fetched_once(s3: S3Server, proxy: FaultProxy, tmp_path: Path) -> None:
    records = []
    for number in range(4):
        path = tmp_path / f"{number}.flac"
        soundfile.write(path, noise(0.5, number, 16_000, 1), 16_000, subtype="PCM_24" if number else "PCM_16")
        records.append({"audio_filepath": str(path), "id": f"utterance-{number}"})
    packed = tmp_path / "shards"
    pack(write_jsonl(tmp_path / "train.jsonl", records), packed, shards=1, workers=1)
    remote = RemoteDataset(Packed(packed, {}), s3.upload(packed, "deep"), s3)
    loader = remote.loader(proxy, num_workers=1, multiprocessing_context="fork")
    assert list(run(loader, 0)) == list(run(remote.packed.loader(), 0))
    assert loader.metrics()["storage"]["fetched_bytes"] <= remote.tar_bytes()


def test_the_second_epoch_from_the_cache_makes_no_request(
    remote: RemoteDataset, proxy: FaultProxy, tmp_path: Path
) -> None:
    loader = remote.loader(proxy, cache=tmp_path)
    first = list(run(loader, 0))
    assert sum(path.stat().st_size for path in cached_tars(tmp_path)) == remote.tar_bytes()
    proxy.requests.clear()
    assert [batch.audio for batch in run(loader, 0)] == [batch.audio for batch in first]
    assert proxy.requests == []
    storage = loader.metrics()["epoch"]["storage"]
    assert storage["cache_hits"] == 48
    assert storage["requests"] == storage["cache_misses"] == 0


def test_ranks_and_workers_fetch_a_tar_once(remote: RemoteDataset, proxy: FaultProxy, tmp_path: Path) -> None:
    loaders = [
        remote.loader(proxy, cache=tmp_path, rank=rank, world_size=2, num_workers=3, multiprocessing_context="fork")
        for rank in range(2)
    ]
    # Every epoch of either rank reads half of the tars; with total_shards = world_size all of them in two epochs.
    for _ in zip(*(run(loader, 0, 1) for loader in loaders), strict=True):
        pass
    assert len(tar_requests(proxy)) == 8
    assert len(cached_tars(tmp_path)) == 8
    assert not list(tmp_path.glob("*.part"))


def test_another_job_finds_the_tars(remote: RemoteDataset, proxy: FaultProxy, tmp_path: Path) -> None:
    list(run(remote.loader(cache=tmp_path), 0))
    list(run(remote.loader(proxy, cache=tmp_path), 0))
    assert tar_requests(proxy) == []


def test_windows_keep_the_cache_small(remote: RemoteDataset, tmp_path: Path) -> None:
    limit = remote.tar_bytes() * 3 // 4
    loader = remote.loader(windows=4, cache=tmp_path, cache_bytes=limit)
    for epoch in range(3):
        loader.set_epoch(epoch)
        for _ in loader:
            with CacheFolder(tmp_path).locked():  # else what goes and what comes in its place may both be counted
                assert CacheFolder(tmp_path).nbytes() <= limit
    assert loader.metrics()["storage"]["evictions"] > 0


def test_a_cache_that_can_not_hold_the_windows_is_refused(remote: RemoteDataset, tmp_path: Path) -> None:
    for windows, share in ((None, 0.9), (2, 0.9), (4, 0.4)):
        limit = int(remote.tar_bytes() * share)
        with pytest.raises(ConfigError, match=r"cache_bytes=\d+ can't hold what rank 0 .* windows=\d+"):
            remote.loader(windows=windows, cache=tmp_path, cache_bytes=limit)
    remote.loader(windows=8, cache=tmp_path, cache_bytes=remote.tar_bytes() // 3)


def test_a_loader_resumes_from_the_store(remote: RemoteDataset, tmp_path: Path) -> None:
    settings = {"windows": 2, "num_workers": 2, "multiprocessing_context": "fork"}
    whole = list(run(remote.packed.loader(windows=2), 0))
    begun = remote.loader(**settings)
    taken = [seen(batch) for _, batch in zip(range(len(whole) - 3), begun, strict=False)]
    resumed = remote.loader(cache=tmp_path, **settings)
    resumed.load_state_dict(begun.state_dict())
    assert taken + list(map(seen, resumed)) == whole


def test_an_iteration_begun_anew(remote: RemoteDataset, tmp_path: Path) -> None:
    for settings in ({}, {"cache": tmp_path}, {"num_workers": 2, "persistent_workers": True}):
        loader = remote.loader(**settings)
        loader.set_epoch(0)
        next(iter(loader))
        assert list(run(loader, 1)) == list(run(remote.packed.loader(), 1))


@pytest.mark.parametrize("delay", [0.03, 0.2])
def test_a_slow_store_changes_nothing(remote: RemoteDataset, proxy: FaultProxy, delay: float) -> None:
    proxy.faults.append(Fault(delay=delay))
    assert list(run(remote.loader(proxy), 0)) == list(run(remote.packed.loader(), 0))


def test_a_rate_limit_changes_nothing(remote: RemoteDataset, proxy: FaultProxy, tmp_path: Path) -> None:
    proxy.faults.append(Fault(match=".tar", rate=2_000_000))
    assert list(run(remote.loader(proxy, cache=tmp_path), 0)) == list(run(remote.packed.loader(), 0))


def test_neighbours_are_read_together(remote: RemoteDataset, proxy: FaultProxy) -> None:
    loader = remote.loader(proxy)
    first_batch = len(loader.plan.batch(0))
    list(run(loader, 0))
    # The first batch comes alone; all others are announced at once, and the tars are small: one request each.
    assert len(tar_requests(proxy)) <= first_batch + 8 < 48
    assert loader.metrics()["storage"]["fetched_bytes"] < 1.5 * remote.tar_bytes()
