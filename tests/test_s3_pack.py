"""Packing to S3: the bytes of a local pack, whatever dies or fails on the way; one job at a time; no secrets left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from corpora import files_of, jsonl_corpus
from fault_proxy import Fault, FaultProxy
from packed import run
from s3_cases import large_corpus, place_of, stored, uploads
from s3_server import ACCESS, BUCKET, READER, READER_SECRET, SECRET, S3Server
from uttershard.pipeline import ShardLoader
from uttershard.pipeline.errors import AccessError, ConfigError, StorageError
from uttershard.pipeline.remote.faults import TransientError
from uttershard.scripts.cli import main
from uttershard.writers import pack, verify
from uttershard.writers.cluster import ClusterSettings
from uttershard.writers.pack_shard import ShardTask
from uttershard.writers.progress import Silent
from uttershard.writers.settings import PackSettings
from uttershard.writers.targets.base import TakenError
from uttershard.writers.targets.limits import WriteLimits
from uttershard.writers.targets.remote import RemoteTarget
from uttershard.writers.targets.s3 import S3Objects
from uttershard.writers.targets.store_lock import hold_store_lock
from uttershard.writers.targets.upload import PART_BYTES

HERE = ClusterSettings(n_workers=2, options={"processes": False})
SHARDS = 4
LIMIT_SECONDS = 120


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return jsonl_corpus(tmp_path_factory.mktemp("corpus"), 16)


@pytest.fixture(scope="module")
def local(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("local") / "out"
    pack(corpus, target, shards=SHARDS, cluster=HERE)
    return target


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards of it have several parts each."""
    return large_corpus(tmp_path_factory.mktemp("large"), 20)


@pytest.fixture(scope="module")
def large_files(large: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    target = tmp_path_factory.mktemp("large-local") / "out"
    pack(large, target, shards=2, cluster=HERE)
    return files_of(target)


@pytest.fixture
def address(request: pytest.FixtureRequest) -> str:
    """A place of the test's own."""
    return place_of(request, "packed")


def target_at(address: str, options: Mapping[str, Any], **limits: float) -> RemoteTarget:
    return RemoteTarget(address, options, WriteLimits(**limits))


def test_a_pack_to_s3_is_a_local_pack(s3: S3Server, corpus: Path, local: Path, address: str) -> None:
    options = s3.options()
    summary = pack(corpus, address, shards=SHARDS, cluster=HERE, storage_options=options)
    assert stored(s3, address) == files_of(local)
    assert summary.sent_bytes > summary.bytes and summary.requests >= 2 * SHARDS
    assert verify(address, storage_options=options).ok
    settings: dict[str, Any] = {"rank": 0, "world_size": 1, "batch_bins": 1000}
    remote = ShardLoader(address, storage_options=options, **settings)
    assert list(run(remote, 0)) == list(run(ShardLoader(str(local), **settings), 0))
    assert pack(corpus, address, shards=SHARDS, cluster=HERE, storage_options=options).already_complete
    with pytest.raises(ConfigError, match=r"Changed since: shards: 4 -> 2\. .*overwrite"):
        pack(corpus, address, shards=2, cluster=HERE, storage_options=options)
    pack(corpus, address, shards=2, cluster=HERE, storage_options=options, overwrite=True)
    assert len(stored(s3, address)) == 5


def test_the_command_line(
    s3: S3Server, demo: Path, address: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    endpoint = ["--storage-option", f"endpoint_url={s3.endpoint}", "--json"]

    def run_command(*arguments: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["uttershard", *arguments, *endpoint])
        try:
            main()
        except SystemExit as ended:
            assert not ended.code, capfd.readouterr().err
        return json.loads(capfd.readouterr().out)

    packed = run_command("pack", str(demo / "manifest.jsonl"), address, "--shards", "2", "--workers", "1")
    assert packed["shards"] == 2 and packed["sent_bytes"] > packed["bytes"]
    assert run_command("info", address)["utterances"] == packed["utterances"]
    assert run_command("verify", address)["ok"]
    assert run_command("plan", address)["steps"] > 0


def test_large_shards_go_in_parts(
    s3: S3Server, proxy: FaultProxy, large: Path, large_files: dict[str, bytes], address: str
) -> None:
    proxy.faults = [Fault(match="partNumber=2", times=1, status=503), Fault(match="uploadId", times=1, reset_after=0)]
    summary = pack(large, address, shards=2, cluster=HERE, storage_options=s3.options(proxy.endpoint))
    assert stored(s3, address) == large_files
    sizes = [len(data) for name, data in large_files.items() if name.endswith(".tar")]
    parts = {path for path in proxy.requests if "partNumber=" in path}
    assert len(parts) == sum(-(-size // PART_BYTES) for size in sizes) >= 4
    assert summary.retries >= 1
    assert not uploads(s3, address)


class Packing:
    """`pack` of the large corpus in a process of its own, stopped by the proxy in the midst of an upload."""

    def __init__(self, large: Path, address: str, s3: S3Server, proxy: FaultProxy) -> None:
        self.is_sending = threading.Event()
        proxy.on_request = lambda path: self.is_sending.set() if "partNumber=2" in path else None
        proxy.faults = [Fault(match="partNumber=2", delay=3600)]
        arguments = json.dumps({"shards": 2, "workers": 2, "storage_options": s3.options(proxy.endpoint)})
        code = (
            "import json, sys\nfrom uttershard.writers import pack\n"
            "pack(sys.argv[1], sys.argv[2], **json.loads(sys.stdin.read()))"
        )
        command = [sys.executable, "-c", code, str(large), address]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdin is not None
        self.process.stdin.write(arguments)
        self.process.stdin.close()
        assert self.is_sending.wait(LIMIT_SECONDS)

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def finish(self) -> str:
        assert self.process.stderr is not None
        said = self.process.stderr.read()
        self.process.wait(LIMIT_SECONDS)
        return said


def test_a_job_killed_in_an_upload(
    s3: S3Server, proxy: FaultProxy, large: Path, large_files: dict[str, bytes], address: str
) -> None:
    packing = Packing(large, address, s3, proxy)
    workers = packing.children()
    packing.process.send_signal(signal.SIGKILL)
    packing.finish()
    _, alive = psutil.wait_procs(workers, timeout=LIMIT_SECONDS)
    assert not alive
    left = stored(s3, address)
    assert uploads(s3, address)
    assert not any(name.endswith((".tar", "dataset.json")) for name in left)
    assert ".uttershard/lock" in left and ".uttershard/job.json" in left
    proxy.faults = []
    pack(large, address, shards=2, cluster=HERE, storage_options=s3.options())
    assert stored(s3, address) == large_files
    assert not uploads(s3, address)


def test_a_worker_killed_in_an_upload(
    s3: S3Server, proxy: FaultProxy, large: Path, large_files: dict[str, bytes], address: str
) -> None:
    packing = Packing(large, address, s3, proxy)
    proxy.faults = []
    workers = [child for child in packing.children() if "spawn_main" in " ".join(child.cmdline())]
    for worker in workers:
        worker.kill()
    said = packing.finish()
    assert packing.process.returncode == 0, said
    assert stored(s3, address) == large_files
    assert not uploads(s3, address)


def test_what_is_finished_is_kept_and_what_was_replaced_is_made_again(
    s3: S3Server, proxy: FaultProxy, corpus: Path, local: Path, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {"shards": SHARDS, "cluster": HERE, "storage_options": s3.options(proxy.endpoint)}
    proxy.faults = [Fault(match="shard-000003.tar", status=403)]
    with pytest.raises(AccessError, match=r"shard-000003\.tar: writing: access denied.*key of storage_opt") as caught:
        pack(corpus, address, **{**settings, "cluster": ClusterSettings(n_workers=1, options={"processes": False})})
    assert len([path for path in proxy.requests if "shard-000003.tar" in path]) == 1
    left = stored(s3, address)
    assert {name for name in left if "done" in name} == {f".uttershard/done/00000{shard}.json" for shard in range(3)}
    assert "dataset.json" not in left and ".uttershard/lock" not in left
    task = ShardTask("target", 0, {}, "", PackSettings(), storage_options=settings["storage_options"])
    told = f"{caught.value}\n{caplog.text}\n{task}"
    for secret in (SECRET, ACCESS):
        assert secret not in told
        assert not [name for name, data in left.items() if secret.encode() in data]
    other = bytes(len(left["shard-000001.tar"]))
    s3.filesystem().pipe_file(f"{address}/shard-000001.tar", other)
    proxy.faults, proxy.requests[:] = [], []
    pack(corpus, address, **settings)
    assert stored(s3, address) == files_of(local)
    assert not [path for path in proxy.requests if "shard-000000" in path or "shard-000002" in path]
    assert [path for path in proxy.requests if "shard-000001.tar" in path]
    listings = [path for path in proxy.requests if "list-type=2" in path]
    assert len(listings) == 3  # before the lock is held, when it is, and of what is to be removed


def test_a_second_job_is_refused_by_name(s3: S3Server, corpus: Path, address: str) -> None:
    options = s3.options()
    said = rf"is being written by host \S+ pid {os.getpid()}: wait"
    with target_at(address, options).hold(lambda: False, Silent()), pytest.raises(ConfigError, match=said):
        pack(corpus, address, shards=2, cluster=HERE, storage_options=options)
    assert stored(s3, address) == {}


def test_the_lock_of_a_dead_process_is_taken_over(s3: S3Server, address: str) -> None:
    target = target_at(address, s3.options())
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid in (gone.pid, os.getpid()):  # the second: a pid that has come again
        lock = {"host": socket.gethostname(), "pid": pid, "since": 0, "token": "other"}
        s3.filesystem().pipe_file(f"{address}/.uttershard/lock", json.dumps(lock).encode())
        with target.hold(lambda: False, Silent()):
            assert b"other" not in (target.read_lock() or b"other")
    assert target.read_lock() is None


def test_the_lock_of_another_host_is_watched(s3: S3Server, address: str) -> None:
    target, filesystem = target_at(address, s3.options()), s3.filesystem()
    where = f"{address}/.uttershard/lock"

    def beat(count: int) -> None:
        filesystem.pipe_file(where, json.dumps({"host": "elsewhere", "pid": 7, "beat": count}).encode())

    class Watching(Silent):
        def note(self, message: str) -> None:
            assert "elsewhere pid 7" in message
            beat(2)

    beat(1)
    watching = hold_store_lock(target, Watching(), dead_seconds=LIMIT_SECONDS)
    with pytest.raises(ConfigError, match="being written by host elsewhere pid 7"), watching:
        pass
    with hold_store_lock(target, Silent(), dead_seconds=0.1):
        assert b"elsewhere" not in (target.read_lock() or b"elsewhere")


def test_a_holder_that_was_taken_over_stops(s3: S3Server, address: str) -> None:
    target = target_at(address, s3.options())
    with hold_store_lock(target, Silent(), beat_seconds=0.01) as lock:
        s3.filesystem().pipe_file(f"{address}/.uttershard/lock", b'{"host": "elsewhere", "pid": 7}')
        lock._beats.join(LIMIT_SECONDS)
        with pytest.raises(ConfigError, match="another process has taken this job over"):
            lock.check()
    assert target.read_lock() == b'{"host": "elsewhere", "pid": 7}'


def test_only_one_of_two_manifests_wins(s3: S3Server, proxy: FaultProxy, corpus: Path, address: str) -> None:
    filesystem, where = s3.filesystem(), f"{address}/dataset.json"

    def win(path: str) -> None:
        if "dataset.json" in path and any("/done/" in earlier for earlier in proxy.requests):
            filesystem.pipe_file(where, b"another")

    proxy.on_request = win
    with pytest.raises(ConfigError, match=r"dataset\.json: another job has finished a dataset here"):
        pack(corpus, address, shards=2, cluster=HERE, storage_options=s3.options(proxy.endpoint))
    assert filesystem.cat_file(where) == b"another"
    target = target_at(address, s3.options())
    with pytest.raises(TakenError):
        target.put("dataset.json", b"mine", only_new=True)
    target.put("dataset.json", b"another", only_new=True)  # what an attempt finds whose answer was lost


def test_a_read_only_identity_and_a_wrong_bucket(s3: S3Server, corpus: Path, address: str) -> None:
    reader = s3.options() | {"key": READER, "secret": READER_SECRET}
    with pytest.raises(
        StorageError, match=r"access denied \(HTTP 403 .*storage_options was used.*s3:PutObject"
    ) as caught:
        pack(corpus, address, shards=2, cluster=HERE, storage_options=reader)
    assert READER_SECRET not in str(caught.value) and READER not in str(caught.value)
    assert stored(s3, address) == {}
    with pytest.raises(ConfigError, match="s3://nowhere/train: listing: there is no such bucket"):
        pack(corpus, "s3://nowhere/train", shards=2, cluster=HERE, storage_options=s3.options())
    with pytest.raises(ConfigError, match="can only be read"):
        pack(corpus, "https://host/train", shards=2, cluster=HERE)


PASSING = {
    "503": Fault(times=4, status=503),
    "429": Fault(times=4, status=429),
    "reset": Fault(times=4, reset_after=0),
    "stall": Fault(match="shard-", times=2, delay=3600),
}


@pytest.mark.parametrize("name", PASSING)
def test_faults_that_pass_change_nothing(
    s3: S3Server, proxy: FaultProxy, corpus: Path, local: Path, address: str, name: str
) -> None:
    fault = replace(PASSING[name])
    proxy.faults = [fault]
    options = s3.options(proxy.endpoint)
    pack(corpus, address, shards=SHARDS, cluster=HERE, storage_options=options, write_timeout=3.0)
    assert fault.times == 0
    assert stored(s3, address) == files_of(local)


@pytest.mark.usefixtures("instant_pauses")
def test_faults_that_stay_are_explained(s3: S3Server, proxy: FaultProxy, address: str) -> None:
    for fault, why, limits in (
        (Fault(status=503), "HTTP 503", {}),
        (Fault(delay=3600), "no answer within|no complete answer", {"write_timeout": 1.5, "write_deadline": 4.0}),
    ):
        target = target_at(address, s3.options(proxy.endpoint), **limits)
        proxy.faults = [fault]
        with pytest.raises(StorageError, match=rf"job\.json: writing: gave up after \d+ attempts in .* s: .*({why})"):
            target.put(".uttershard/job.json", b"{}")
        with pytest.raises(StorageError, match="gave up after"), target.create("shard-000000.tar") as file:
            file.write(bytes(PART_BYTES * 2))
    assert stored(s3, address) == {}


def test_a_failing_block_leaves_nothing(s3: S3Server, address: str) -> None:
    with pytest.raises(KeyboardInterrupt), target_at(address, s3.options()).create("shard-000000.tar") as file:
        file.write(bytes(PART_BYTES * 2))
        raise KeyboardInterrupt
    assert stored(s3, address) == {}
    assert not uploads(s3, address)


@pytest.fixture
def lost_answer(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The answer to the first completion of an upload gets lost."""
    lost: list[str] = []
    complete = S3Objects.complete

    async def lose(self: S3Objects, upload: Any, *rest: Any) -> str | None:
        tag = await complete(self, upload, *rest)
        if not lost:
            lost.append(upload.path)
            raise TransientError("reset")
        return tag

    monkeypatch.setattr(S3Objects, "complete", lose)
    yield lost
    assert lost


def test_a_completion_whose_answer_was_lost(s3: S3Server, address: str, lost_answer: list[str]) -> None:
    data = os.urandom(PART_BYTES + 5)
    target = target_at(address, s3.options())
    with target.create("shard-000000.tar") as file:
        file.write(data)
    assert stored(s3, address) == {"shard-000000.tar": data}
    assert target.tag("shard-000000.tar") == target_at(address, s3.options()).listing()["shard-000000.tar"].tag


def test_stores_without_conditions_or_parts(corpus: Path, local: Path, tmp_path: Path) -> None:
    notes: list[str] = []

    class Listening(Silent):
        def note(self, message: str) -> None:
            notes.append(message)

    pack(corpus, f"local://{tmp_path}/out", shards=SHARDS, cluster=HERE, progress=Listening())
    assert files_of(tmp_path / "out") == files_of(local)
    assert [note for note in notes if "no conditional put" in note] == notes[:1]


def test_a_corpus_in_s3(s3: S3Server, corpus: Path, local: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ACCESS_KEY_ID", ACCESS), ("SECRET_ACCESS_KEY", SECRET), ("ENDPOINT_URL", s3.endpoint)):
        monkeypatch.setenv(f"AWS_{name}", value)
    filesystem, where = s3.filesystem(), f"{BUCKET}/sources"
    filesystem.put(str(corpus.parent), where, recursive=True)
    pack(f"s3://{where}/train.jsonl", address, shards=SHARDS, cluster=HERE)
    found, expected = stored(s3, address), files_of(local)
    assert {name: found[name] for name in expected if name.endswith(".tar")} == {
        name: data for name, data in expected.items() if name.endswith(".tar")
    }
