"""The commands on datasets in a store, and on a cache."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fault_proxy import Fault, FaultProxy
from packed import run
from s3_cases import RemoteDataset, cached_tars, stored, tar_requests
from s3_server import ACCESS, BUCKET, SECRET
from typer.testing import CliRunner, Result
from uttershard.pipeline.dataset.shardset import ShardSet
from uttershard.pipeline.errors import ConfigError, DataError
from uttershard.scripts.cli.app import app
from uttershard.writers import export, merge, subset


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the test server, as a user has them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def as_json(*arguments: str | Path, exit_code: int = 0) -> dict:
    result = call(*arguments, "--json")
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stdout)


def test_info_and_plan_read_no_tar(remote: RemoteDataset, proxy: FaultProxy) -> None:
    option = ("--storage-option", f"endpoint_url={proxy.endpoint}")
    for command in (("info",), ("plan", "--batch-bins", "600", "--world-size", "2", "--batches")):
        here = as_json(command[0], remote.packed.address, *command[1:])
        there = as_json(command[0], remote.address, *command[1:], *option)
        assert {**there, "dataset": None} == {**here, "dataset": None}
    assert tar_requests(proxy) == []


def test_verify_says_what_it_did_not_read(remote: RemoteDataset, proxy: FaultProxy) -> None:
    option = ("--storage-option", f"endpoint_url={proxy.endpoint}")
    report = as_json("verify", remote.address, *option)
    assert report["ok"] and report["unread_bytes"] == remote.tar_bytes()
    assert proxy.body_bytes < remote.tar_bytes() / 2
    said = call("verify", remote.address, *option)
    assert "not read: " in said.stdout and "/s" in said.stderr and "B/s" not in said.stderr
    report = as_json("verify", remote.address, "--full", *option)
    assert report["ok"] and report["unread_bytes"] == 0
    assert proxy.body_bytes > remote.tar_bytes()


def test_verify_finds_damage_in_the_store(remote: RemoteDataset, tmp_path: Path) -> None:
    broken = remote.packed.copy(tmp_path / "broken")
    cut, flipped, stale = broken.tar(1), broken.tar(2), broken.sidecar(3)
    cut.write_bytes(cut.read_bytes()[:-512])
    damaged = bytearray(flipped.read_bytes())
    damaged[3000] ^= 1
    flipped.write_bytes(damaged)
    stale.write_bytes(broken.sidecar(4).read_bytes())
    address = remote.server.upload(broken.address, "broken")
    option = ("--storage-option", f"endpoint_url={remote.server.endpoint}")
    found = as_json("verify", address, *option, exit_code=1)
    assert [problem["shard"] for problem in found["problems"]] == ["shard-000001.tar", "shard-000003.tar"]
    found = as_json("verify", address, "--full", *option, exit_code=1)
    assert [problem["shard"] for problem in found["problems"]] == [f"shard-00000{shard}.tar" for shard in (1, 2, 3)]


def test_plan_reports_what_windows_cost(remote: RemoteDataset) -> None:
    command = ("plan", remote.packed.address, "--batch-bins", "600", "--windows", "4")
    facts = as_json(*command)
    assert facts["windows"] == 4
    assert facts["without_windows"]["steps"] <= facts["steps"]
    assert "4 windows: " in call(*command).stdout


def test_cache_ls_prune_verify(remote: RemoteDataset, tmp_path: Path) -> None:
    list(run(remote.loader(cache=tmp_path), 0))
    listed = as_json("cache", "ls", tmp_path)
    assert listed["bytes"] == remote.tar_bytes()
    digests = {shard.tar_digest for shard in ShardSet.open(str(remote.packed.address)).manifest.shards}
    assert {entry["digest"] for entry in listed["entries"]} == digests
    assert "8 files" in call("cache", "ls", tmp_path).stdout
    assert as_json("cache", "verify", tmp_path) == {"folder": str(tmp_path), "checked": 8, "removed": []}

    damaged = cached_tars(tmp_path)[0]
    damaged.chmod(0o644)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    assert len(as_json("cache", "verify", tmp_path, exit_code=1)["removed"]) == 1
    assert not damaged.exists()

    (tmp_path / "xxh3_128-0.part").write_bytes(bytes(10))
    for age, path in enumerate(cached_tars(tmp_path)):
        os.utime(path, (1_000_000 + age, 1_000_000))
    pruned = as_json("cache", "prune", tmp_path, "--to", str(remote.tar_bytes() // 2))
    assert pruned["bytes"] <= remote.tar_bytes() // 2
    assert not (tmp_path / "xxh3_128-0.part").exists()
    assert as_json("cache", "prune", tmp_path)["bytes"] == 0
    assert call("cache", "ls", tmp_path / "nothing").exit_code != 0


def test_subset_in_the_store(remote: RemoteDataset, proxy: FaultProxy, tmp_path: Path) -> None:
    address, rule = f"s3://{BUCKET}/subset", ("--max-seconds", "0.8", "--shards", "2")
    # Two writes fail the first time.
    proxy.faults = [Fault(match="/subset/shard-000001", times=2, status=503)]
    option = ("--storage-option", f"endpoint_url={proxy.endpoint}")
    facts = as_json("subset", remote.address, "--out", address, *rule, *option)
    here = as_json("subset", remote.packed.address, "--out", tmp_path / "here", *rule)
    assert facts == {**here, "dataset": address}
    assert stored(remote.server, address) == {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()}
    with pytest.raises(ConfigError, match="holds a dataset already"):
        subset(remote.address, address, storage_options=remote.options())
    # One that fails leaves no manifest and no job behind.
    proxy.faults = [Fault(match="shard-000003.tar", flip=700)]
    with pytest.raises(DataError, match="is damaged"):
        subset(remote.address, f"s3://{BUCKET}/failed", shards=1, storage_options=remote.options(proxy))
    assert stored(remote.server, f"s3://{BUCKET}/failed") == {}


def test_merge_in_the_store_and_export_out_of_it(remote: RemoteDataset, proxy: FaultProxy, tmp_path: Path) -> None:
    option = ("--storage-option", f"endpoint_url={proxy.endpoint}")
    merged = f"s3://{BUCKET}/merged"
    prefixes = ("--prefix", "a/", "--prefix", "b/")
    assert as_json("merge", remote.address, remote.address, "--out", merged, *prefixes, *option)["dataset"] == merged
    assert sorted(stored(remote.server, merged)) == ["dataset.json", *(f"shard-{n:06d}.parquet" for n in range(16))]
    assert as_json("verify", merged, "--full", *option)["utterances"] == 96
    with pytest.raises(ConfigError, match="holds a dataset already"):
        merge([remote.address, remote.address], merged, prefixes=("a/", "b/"), storage_options=remote.options())
    local = [remote.address, str(remote.packed.address)]
    with pytest.raises(ConfigError, match=r"would point at .*shard-000000\.tar, which is on this machine only"):
        merge(local, f"s3://{BUCKET}/mixed", prefixes=("a/", "b/"), storage_options=remote.options())
    assert stored(remote.server, f"s3://{BUCKET}/mixed") == {}

    # Options that are given, not those of the environment, and the damage of a tar told.
    as_json("export", remote.address, tmp_path / "tars", "--to", "webdataset", "--extract", *option)
    for shard in range(8):
        copy = tmp_path / f"tars/shard-{shard:06d}.tar"
        assert copy.read_bytes() == remote.packed.tar(shard).read_bytes()
    proxy.faults = [Fault(match="shard-000002.tar", flip=700)]
    result = call("export", remote.address, tmp_path / "damaged", "--to", "webdataset", "--extract", *option)
    assert isinstance(result.exception, DataError)
    assert "shard-000002.tar: its digest is" in str(result.exception)
    with pytest.raises(ConfigError, match="an export is written to a local folder"):
        export(remote.address, "jsonl", f"s3://{BUCKET}/manifests", storage_options=remote.options())
