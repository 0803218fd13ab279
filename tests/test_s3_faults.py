"""Faults between the loader and the store: each passes unnoticed if it passes, and is explained in time if it stays."""

from __future__ import annotations

import logging
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import Fault, FaultProxy
from packed import run
from s3_cases import HASTY, PATIENT, RemoteDataset, tar_requests
from s3_server import ACCESS, SECRET
from uttershard.pipeline import ShardLoader, ShardSet
from uttershard.pipeline.errors import DataError, StorageError
from uttershard.pipeline.remote import obstore_s3
from uttershard.pipeline.remote.faults import redact
from uttershard.pipeline.remote.retry import LONGEST_PAUSE, Limits, pause_before

FAULTS = {
    "503": {"status": 503},
    "500": {"status": 500},
    "429": {"status": 429},
    "reset at once": {"reset_after": 0},
    "reset in the body": {"reset_after": 3000},
    "short body": {"end_after": 3000},
    "stall": {"stall_after": 3000},
}
ENDLESS = {
    "503": "HTTP 503",
    "500": "HTTP 500",
    "429": "HTTP 429",
    "reset at once": "",
    "reset in the body": "",
    "short body": "",
    "stall": "no byte within|no complete answer",
}
WORKERS = {"num_workers": 2, "multiprocessing_context": "fork"}


@pytest.fixture(autouse=True, params=["s3fs", "obstore"])
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How tars are fetched; obstore wherever it is installed, and not forbidden."""
    if request.param == "s3fs":
        monkeypatch.setattr(obstore_s3, "INSTALLED", False)
    return str(request.param)


def storages(folder: Path) -> list[dict[str, Any]]:
    return [{}, {"cache": folder}, {"windows": 3}]


@pytest.mark.parametrize("times", [1, 12], ids=["once", "often"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_passes_changes_nothing(
    remote: RemoteDataset, proxy: FaultProxy, tmp_path: Path, name: str, times: int
) -> None:
    for settings in storages(tmp_path):
        proxy.faults = [Fault(match=".tar", times=times, **FAULTS[name])]
        loader = remote.loader(proxy, **settings, read_timeout=1.0, read_deadline=100.0)
        assert list(run(loader, 0)) == list(run(remote.packed.loader(windows=settings.get("windows")), 0))
        # A connection that is reset before the answer may be made anew below us.
        assert loader.metrics()["storage"]["retries"] >= (name != "reset at once")
        assert proxy.faults[0].times == 0


def for_ever(name: str) -> Fault:
    # Every attempt gets a little further in the body: those that go on at the byte have to be stopped at once.
    return Fault(match=".tar", **{key: 0 if key.endswith("_after") else value for key, value in FAULTS[name].items()})


def check_explained(remote: RemoteDataset, error: StorageError, name: str) -> None:
    message = str(error)
    assert re.search(ENDLESS[name], message)
    assert f"{remote.address}/shard-" in message
    assert "bytes" in message and "attempts in" in message and "read_deadline" in message


def limits_of(name: str) -> dict[str, float]:
    # An answer is waited for as long as it takes; only where none ever comes, the limits are what ends it.
    return HASTY if name == "stall" else PATIENT


@pytest.mark.usefixtures("instant_pauses")
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_stays_is_explained(remote: RemoteDataset, proxy: FaultProxy, name: str) -> None:
    proxy.faults = [for_ever(name)]
    with pytest.raises(StorageError) as caught:
        list(run(remote.opened_loader(proxy, **limits_of(name)), 0))
    check_explained(remote, caught.value, name)


@pytest.mark.usefixtures("instant_pauses")
@pytest.mark.parametrize("name", ["stall", "503"])
@pytest.mark.parametrize("where", ["cache", "windows", "windows and cache", "workers"])
def test_a_fault_that_stays_is_explained_by_whoever_fetches(
    remote: RemoteDataset, proxy: FaultProxy, tmp_path: Path, where: str, name: str
) -> None:
    cache, windows = {"cache": tmp_path}, {"windows": 3}
    settings = {"cache": cache, "windows": windows, "windows and cache": cache | windows, "workers": WORKERS}[where]
    proxy.faults = [for_ever(name)]
    with pytest.raises(StorageError) as caught:
        list(run(remote.opened_loader(proxy, **settings, **limits_of(name)), 0))
    check_explained(remote, caught.value, name)


def test_a_body_is_resumed_at_the_byte(
    remote: RemoteDataset, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obstore_s3, "INSTALLED", False)  # obstore hands over 4 MB at a time, more than a tar has here
    proxy.faults = [Fault(match="shard-000003.tar", end_after=10_000, times=3)]
    loader = remote.loader(proxy, cache=tmp_path)
    list(run(loader, 0))
    assert loader.metrics()["storage"]["fetched_bytes"] == remote.tar_bytes()
    assert len(tar_requests(proxy)) == 8 + 3


@pytest.mark.parametrize("status", [403, 404])
def test_denied_and_missing_are_not_tried_again(
    remote: RemoteDataset, proxy: FaultProxy, tmp_path: Path, status: int
) -> None:
    for settings in storages(tmp_path):
        proxy.faults = [Fault(match="shard-000005.tar", status=status)]
        loader = remote.loader(proxy, **settings)
        expected = {403: StorageError, 404: DataError}[status]
        with pytest.raises(expected, match=r"shard-000005\.tar") as caught:
            list(run(loader, 0))
        assert loader._storage.take_counts()["retries"] == 0
        requests = [path for path in tar_requests(proxy) if "shard-000005.tar" in path]
        # Those for several spans of it may be under way at once; with a cache one more than for the tar.
        assert len(requests) <= 8
        proxy.requests.clear()
        if status == 403:
            assert "key of storage_options" in str(caught.value) and "s3:GetObject" in str(caught.value)


def test_wrong_credentials_and_no_dataset(remote: RemoteDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = remote.options() | {"secret": "not-the-secret-at-all"}
    with pytest.raises(StorageError, match="access denied") as caught:
        ShardSet.open(remote.address, wrong)
    assert "not-the-secret" not in "".join(map(str, [caught.value, caught.value.__cause__, repr(caught.value)]))
    with pytest.raises(DataError, match="no dataset at s3://speech/nothing"):
        ShardSet.open("s3://speech/nothing", remote.options())
    with pytest.raises(DataError, match="no dataset at s3://no-such-bucket"):
        ShardSet.open("s3://no-such-bucket/train", remote.options())
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StorageError, match=r"anonymous \(anon=True"):
        ShardSet.open(remote.address, {"endpoint_url": remote.server.endpoint, "anon": True})


def test_credentials_of_the_environment_are_used(remote: RemoteDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    opened = ShardSet.open(remote.address, {"endpoint_url": remote.server.endpoint})
    assert opened.digest == ShardSet.open(str(remote.packed.address)).digest


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "http://no-such-host.invalid:80", "https"])
def test_a_store_that_is_not_there_is_told_at_once(remote: RemoteDataset, endpoint: str) -> None:
    if endpoint == "https":  # of a server that speaks no TLS
        endpoint = remote.server.endpoint.replace("http:", "https:")
    with pytest.raises(StorageError, match=r"gave up after \d attempts .*endpoint_url"):
        ShardSet.open(remote.address, remote.server.options(endpoint), Limits(read_deadline=1000.0))


@pytest.mark.usefixtures("instant_pauses")
def test_a_manifest_and_sidecars_are_read_with_the_same_patience(remote: RemoteDataset, proxy: FaultProxy) -> None:
    proxy.faults = [
        Fault(match="dataset.json", times=2, status=503),
        Fault(match=".parquet", times=3, status=500),
        Fault(match=".parquet", times=1, end_after=100),
    ]
    table = remote.shards(proxy).index()
    assert table.equals(ShardSet.open(str(remote.packed.address)).index())
    proxy.faults = [Fault(match="dataset.json", status=503)]
    with pytest.raises(StorageError, match=r"dataset\.json: gave up after \d+ attempts"):
        ShardSet.open(remote.address, remote.options(proxy), Limits(**PATIENT))


def test_a_replaced_object_is_noticed(remote: RemoteDataset, proxy: FaultProxy) -> None:
    proxy.faults = [Fault(match="shard-000002.tar", skip=1, header='ETag: "other"')]
    loader = remote.loader(proxy, prefetch_bytes=1)
    with pytest.raises(DataError, match=r"shard-000002\.tar.*replaced.*ETag"):
        list(run(loader, 0))


def test_an_object_of_another_size_is_noticed(remote: RemoteDataset, proxy: FaultProxy, tmp_path: Path) -> None:
    for settings in storages(tmp_path):
        proxy.faults = [Fault(match="shard-000002.tar", header="Content-Range: bytes 0-1023/1024")]
        with pytest.raises(DataError, match=r"shard-000002\.tar.*1024 bytes, the manifest says"):
            list(run(remote.loader(proxy, **settings), 0))


def test_a_flipped_byte_is_fetched_again(remote: RemoteDataset, proxy: FaultProxy, tmp_path: Path) -> None:
    for settings in storages(tmp_path):
        proxy.faults = [Fault(match="shard-000004.tar", times=1, flip=2000)]
        loader = remote.loader(proxy, **settings)
        assert list(run(loader, 0)) == list(run(remote.packed.loader(windows=settings.get("windows")), 0))
        assert loader.metrics()["storage"]["refetched"] == 1


def test_bytes_that_are_always_flipped_are_an_error(remote: RemoteDataset, proxy: FaultProxy, tmp_path: Path) -> None:
    proxy.faults = [Fault(match="shard-000004.tar", flip=2000)]
    with pytest.raises(DataError, match=r"shard-000004\.tar: utterance .* at offset \d+: its bytes are damaged"):
        list(run(remote.loader(proxy), 0))
    with pytest.raises(DataError, match=r"shard-000004\.tar.* digest .* twice, the manifest says"):
        list(run(remote.loader(proxy, cache=tmp_path), 0))
    assert not [path for path in tmp_path.iterdir() if "lock" not in path.name and path.stat().st_size == 0]


@pytest.mark.usefixtures("instant_pauses")
def test_secrets_are_in_no_text(
    remote: RemoteDataset, proxy: FaultProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="uttershard")
    loader = remote.opened_loader(proxy)
    proxy.faults = [Fault(match=".tar", status=503)]
    with pytest.raises(StorageError) as caught:
        list(run(loader, 0))
    shown = [repr(loader), repr(remote.shards()), str(loader.state_dict()), str(loader.metrics()), caplog.text]
    error: BaseException | None = caught.value
    while error is not None:
        shown.append(f"{error!r} {error} {getattr(error, '__notes__', '')}")
        error = error.__cause__
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args  # noqa: S301 - our own bytes
    for secret in (SECRET, ACCESS):
        assert secret not in "\n".join(shown)


def test_what_is_redacted() -> None:
    options = {"key": "AKIA123456", "client_kwargs": {"password": "hunter2hunter2"}, "endpoint_url": "https://x"}
    text = "https://me:pw@host/a?X-Amz-Signature=9f AKIA123456 hunter2hunter2 https://x"
    assert redact(text, options) == "https://host/a?… … … https://x"


def test_pauses_grow_to_a_cap_and_are_jittered() -> None:
    pauses = [[pause_before(attempt) for _ in range(50)] for attempt in (1, 3, 30)]
    assert all(len(set(same)) > 1 for same in pauses)
    assert max(pauses[0]) < min(pauses[1]) <= max(pauses[1]) < min(pauses[2])
    assert max(pauses[2]) <= LONGEST_PAUSE
    assert pause_before(1, retry_after=3.0) == 3.0
    assert pause_before(1, retry_after=1e9) == LONGEST_PAUSE


def test_limits_are_checked(remote: RemoteDataset) -> None:
    for settings in ({"read_timeout": 0}, {"read_deadline": float("inf")}, {"prefetch_bytes": 0}, {"cache_bytes": 5}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            ShardLoader(remote.address, batch_bins=600, storage_options=remote.options(), **settings)
