"""Tars of other tools in S3: adopted in place or elsewhere by ranged reads, resumed after a kill, loaded like any."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from corpora import write_audio
from fault_proxy import Fault, FaultProxy
from s3_cases import stored
from s3_server import ACCESS, BUCKET, READER, READER_SECRET, SECRET, S3Server
from test_adopt import assert_noise, encoded, loaded, write_tar
from typer.testing import CliRunner
from uttershard.pipeline import ShardSet
from uttershard.pipeline.errors import ConfigError, DataError, StorageError
from uttershard.scripts.cli.app import app
from uttershard.writers import index_tars, merge, pack, verify
from uttershard.writers.cluster import ClusterSettings
from uttershard.writers.progress import Silent

HERE = ClusterSettings(n_workers=2, options={"processes": False})
LIMIT_SECONDS = 120
SECONDS = 10.0


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tars of WAV and FLAC; of nine samples one has no audio, and one id is there twice."""
    folder = tmp_path_factory.mktemp("tars")
    for shard in range(3):
        members = []
        for number in range(2):
            seed, kind = 2 * shard + number, ("wav", "flac")[number]
            members += [
                (f"utt{seed}.{kind}", encoded(seed, kind.upper(), SECONDS)),
                (f"utt{seed}.json", json.dumps({"speaker": f"s{shard}", "text": f"text {seed}"}).encode()),
            ]
        members.append(("lost.txt", b"no audio") if shard == 1 else ("utt9.flac", encoded(9, seconds=SECONDS)))
        write_tar(folder / f"train-{shard:04d}.tar", members)
    return folder


@pytest.fixture
def address(s3: S3Server, tars: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The tars in a place of their own."""
    yield s3.upload(tars, f"index/{re.sub(r'[^a-z_]', '', request.node.name.lower())}")


def index(pattern: str, **settings: Any) -> Any:
    return index_tars([pattern], **{"cluster": HERE, "max_errors": 2, "columns": ("speaker",), **settings})


def check(dataset: str, options: dict[str, Any], **settings: Any) -> None:
    found = loaded(dataset, storage_options=options, **settings)
    assert sorted(found) == [*(f"utt{seed}" for seed in range(6)), "utt9"]
    for seed in range(6):
        assert_noise(found[f"utt{seed}"][0], seed, SECONDS)
        assert found[f"utt{seed}"][1] == f"text {seed}"


def test_in_place(s3: S3Server, proxy: FaultProxy, tars: Path, address: str) -> None:
    summary = index(f"{address}/train-{{0000..0002}}.tar", storage_options=s3.options(proxy.endpoint))
    files = {path.name: path.read_bytes() for path in tars.iterdir()}
    nbytes = sum(map(len, files.values()))
    left = stored(s3, address)
    assert {name: left[name] for name in files} == files
    sidecars = {f"train-{shard:04d}.parquet" for shard in range(3)}
    assert left.keys() - files.keys() == {"dataset.json", "errors.jsonl", *sidecars}
    assert (summary.utterances, summary.refused, summary.shards, summary.bytes) == (7, 2, 3, nbytes)
    reasons = {error["source"]: error["reason"] for error in map(json.loads, left["errors.jsonl"].splitlines())}
    assert reasons["train-0001.tar:lost"].startswith("one audio member expected")
    assert reasons["train-0002.tar:utt9"].startswith("the id is there twice: in train-0000.tar and in train-0002.tar")
    assert 0 < summary.fetched_bytes < nbytes / 8
    assert proxy.body_bytes < nbytes / 4
    assert [shard.tar for shard in ShardSet.open(address, s3.options()).manifest.shards] == sorted(files)
    check(address, s3.options())
    check(address, s3.options(), num_workers=2)
    check(address, s3.options(), where=None, cache=None)
    assert len(loaded(address, storage_options=s3.options(), where='speaker == "s1"')) == 2
    assert verify(address, deep=True, storage_options=s3.options()).ok
    again = index(address, columns=(), storage_options=s3.options())
    assert (again.digest, again.utterances) == (summary.digest, 7)
    assert stored(s3, address) == left


@pytest.mark.parametrize("remote", [True, False])
def test_elsewhere(s3: S3Server, tars: Path, address: str, tmp_path: Path, remote: bool) -> None:
    out = f"{address}-out" if remote else str(tmp_path / "out")
    index(f"{address}/train-*.tar", out=out, storage_options=s3.options())
    assert stored(s3, address).keys() == {path.name for path in tars.iterdir()}
    listed = ShardSet.open(out, s3.options()).manifest.shards
    assert [shard.tar for shard in listed] == [f"{address}/train-{shard:04d}.tar" for shard in range(3)]
    check(out, s3.options())


def test_merging_into_the_store_takes_local_sidecars_along(s3: S3Server, address: str, tmp_path: Path) -> None:
    options = s3.options()
    parts = [str(tmp_path / name) for name in ("first", "second")]
    for shard, part in enumerate(parts):
        index(f"{address}/train-{shard:04d}.tar", out=part, storage_options=options)
    assert merge(parts, f"{address}-merged", storage_options=options).sidecars_written == 2
    merged = ShardSet.open(f"{address}-merged", options)
    assert [merged.sidecar_address(shard) for shard in range(2)] == [
        f"{address}-merged/shard-{shard:06d}.parquet" for shard in range(2)
    ]
    assert verify(merged.address, deep=True, storage_options=options).ok


def test_local_tars_into_a_store(s3: S3Server, tars: Path) -> None:
    out = f"s3://{BUCKET}/index/from_here"
    summary = index(str(tars), out=out, storage_options=s3.options())
    assert summary.fetched_bytes == 0
    assert len(list(tars.iterdir())) == 3
    check(out, s3.options())


def test_commands(s3: S3Server, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    store = ["--storage-option", f"endpoint_url={s3.endpoint}", "--json"]

    def run(*arguments: str) -> dict[str, Any]:
        result = CliRunner().invoke(app, [*arguments, *store])
        assert result.exit_code == 0, result.output
        return json.loads(result.output)

    summary = run("index", f"{address}/train-{{0000..0002}}.tar", "--max-errors", "25%", "--workers", "1")
    assert (summary["dataset"], summary["utterances"], summary["refused"]) == (address, 7, 2)
    assert run("info", address)["utterances"] == 7
    assert run("verify", address)["ok"]
    assert run("plan", address, "--batch-bins", "6000")["ranks"][0]["utterances"] == 7


def test_a_killed_run_is_gone_on_from(s3: S3Server, proxy: FaultProxy, tars: Path, address: str) -> None:
    proxy.faults = [Fault(match="train-0002.tar", stall_after=0)]
    reached = threading.Event()

    def watch(path: str) -> None:
        if "train-0002.tar" in path:
            reached.set()

    proxy.on_request = watch
    command = [str(Path(sys.executable).with_name("uttershard")), "index", f"{address}/train-{{0000..0002}}.tar"]
    command += ["--naming", "webdataset", "--max-errors", "2", "--workers", "1"]
    command += ["--storage-option", f"endpoint_url={proxy.endpoint}"]
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET}
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        _wait_for(s3, address, ".uttershard/done/000001.json", process)
        assert reached.wait(LIMIT_SECONDS)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert "dataset.json" not in stored(s3, address)
    proxy.faults, proxy.requests[:] = [], []
    proxy.on_request = lambda path: None
    options = s3.options(proxy.endpoint)
    summary = index(f"{address}/train-{{0000..0002}}.tar", naming="webdataset", columns=(), storage_options=options)
    assert summary.utterances == 7
    assert 0 < summary.fetched_bytes < (tars / "train-0002.tar").stat().st_size
    assert not [name for name in stored(s3, address) if name.startswith(".uttershard")]
    check(address, s3.options())


def _wait_for(s3: S3Server, address: str, name: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until an object is there; the process that makes it must not end before."""
    filesystem = s3.filesystem()
    for _ in range(LIMIT_SECONDS * 10):
        filesystem.invalidate_cache()
        if filesystem.exists(f"{address}/{name}"):
            return
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        raise AssertionError(f"it ended: status {process.returncode}")
    raise AssertionError(f"{name} never came")


def test_what_is_refused(s3: S3Server, tars: Path, address: str, tmp_path: Path) -> None:
    pattern = f"{address}/train-{{0000..0002}}.tar"
    with pytest.raises(DataError, match=r"2 of 9 utterances refused.*allows 0.*errors\.jsonl"):
        index(pattern, storage_options=s3.options(), max_errors=0.01)
    left = stored(s3, address)
    assert "dataset.json" not in left
    assert len(left["errors.jsonl"].splitlines()) == 2
    with pytest.raises(DataError, match=r"lost.*one audio member expected"):
        index(pattern, storage_options=s3.options(), on_error="raise")
    with pytest.raises(DataError, match=r"train-0003\.tar"):
        index(f"{address}/train-{{0000..0003}}.tar", storage_options=s3.options())
    reader = {**s3.options(), "key": READER, "secret": READER_SECRET}
    with pytest.raises(StorageError, match="access denied") as caught:
        index(pattern, storage_options=reader)
    assert READER_SECRET not in str(caught.value)
    write_audio(tmp_path / "corpus" / "a.wav", 0.1)
    pack(tmp_path / "corpus", f"{address}-packed", cluster=HERE, shards=1, storage_options=s3.options())
    with pytest.raises(ConfigError, match=r"lists shard-000000\.tar too"):
        index(pattern, out=f"{address}-packed", storage_options=s3.options())


def test_two_jobs_that_end_in_one_place(s3: S3Server, address: str) -> None:
    """The lock keeps them apart; where it is lost, the manifest is still put only if there is none."""

    class Other(Silent):
        def end(self) -> None:
            s3.filesystem().pipe_file(f"{address}/dataset.json", b"of another job")

    with pytest.raises(ConfigError, match="another job has finished a dataset here"):
        index(f"{address}/train-{{0000..0002}}.tar", storage_options=s3.options(), progress=Other())
    assert stored(s3, address)["dataset.json"] == b"of another job"
