"""Packing to S3 when it is stopped, when the store is full, forgets conditions, or loses answers; in bounded memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from corpora import files_of
from fault_proxy import Fault, FaultProxy
from s3_cases import large_corpus, place_of, stored, uploads
from s3_server import S3Server
from uttershard.pipeline.errors import ConfigError
from uttershard.writers import pack
from uttershard.writers.cluster import ClusterSettings
from uttershard.writers.commit import NoSpaceError
from uttershard.writers.progress import Silent
from uttershard.writers.targets import remote
from uttershard.writers.targets.base import TakenError
from uttershard.writers.targets.limits import WriteLimits
from uttershard.writers.targets.remote import RemoteTarget
from uttershard.writers.targets.s3 import S3Objects
from uttershard.writers.targets.upload import IN_FLIGHT, PART_BYTES

HERE = ClusterSettings(n_workers=2, options={"processes": False})
ONE = ClusterSettings(n_workers=1, options={"processes": False})
LIMIT_SECONDS = 300


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards of it have several parts each."""
    return large_corpus(tmp_path_factory.mktemp("large"), 16)


@pytest.fixture(scope="module")
def files(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a local pack makes of it."""
    target = tmp_path_factory.mktemp("local") / "out"
    pack(corpus, target, shards=2, cluster=HERE)
    return files_of(target)


@pytest.fixture
def address(request: pytest.FixtureRequest) -> str:
    """A place of the test's own."""
    return place_of(request, "trouble")


def listings(proxy: FaultProxy) -> int:
    """How often objects were listed."""
    return sum("list-type=2" in path for path in proxy.requests)


def test_ctrl_c(s3: S3Server, proxy: FaultProxy, corpus: Path, files: dict[str, bytes], address: str) -> None:
    is_sending = threading.Event()
    proxy.on_request = lambda path: is_sending.set() if "shard-000001.tar" in path and "partNumber=2" in path else None
    proxy.faults = [Fault(match="partNumber=2", delay=3600)]
    options = s3.options(proxy.endpoint)
    pairs = [f"{name}={json.dumps(value) if isinstance(value, dict) else value}" for name, value in options.items()]
    command = [str(Path(sys.executable).with_name("uttershard")), "pack", str(corpus), address, "--shards", "2"]
    command += ["--workers", "2", *(part for pair in pairs for part in ("--storage-option", pair))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert is_sending.wait(LIMIT_SECONDS)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 130, told
    assert "of 2 shards are done and kept. Run the same command again to go on" in told
    assert "Traceback" not in told
    assert not psutil.wait_procs(workers, timeout=LIMIT_SECONDS)[1]
    assert not uploads(s3, address)
    left = stored(s3, address)
    assert "dataset.json" not in left and ".uttershard/job.json" in left and ".uttershard/lock" not in left
    proxy.faults = []
    pack(corpus, address, shards=2, cluster=HERE, storage_options=options)
    assert stored(s3, address) == files


def test_a_full_store(s3: S3Server, proxy: FaultProxy, corpus: Path, files: dict[str, bytes], address: str) -> None:
    settings: dict[str, Any] = {"shards": 2, "cluster": ONE, "storage_options": s3.options(proxy.endpoint)}
    proxy.faults = [Fault(match="shard-000001.tar", status=507, code="XMinioStorageFull")]
    said = r"shard-000001\.tar.*the store is full \(HTTP 507 .*1 of 2 shards are done and kept\. Free space"
    with pytest.raises(NoSpaceError, match=said):
        pack(corpus, address, **settings)
    assert not uploads(s3, address)
    proxy.faults, proxy.requests[:] = [], []
    pack(corpus, address, **settings)
    assert stored(s3, address) == files
    assert not [path for path in proxy.requests if "shard-000000.tar" in path]
    assert listings(proxy) == 3  # before the lock is held, when it is, and of what is to be removed


LOST = ("partNumber=2", ".tar?uploads", ".tar?uploadId=", ".parquet", "dataset.json", "/lock", "/job.json", "/done/")


def test_answers_that_get_lost(
    s3: S3Server, proxy: FaultProxy, corpus: Path, files: dict[str, bytes], address: str
) -> None:
    """The store has done what it was asked each time; whoever asks again has to find that out."""
    proxy.faults = [Fault(match=match, times=1, lose=True) for match in LOST]
    pack(corpus, address, shards=2, cluster=HERE, storage_options=s3.options(proxy.endpoint))
    assert not any(fault.times for fault in proxy.faults)
    assert stored(s3, address) == files
    assert not uploads(s3, address)


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that takes conditions and forgets them (done in the client: a proxy can't take signed headers away)."""
    put = S3Objects.put

    async def forget(self: S3Objects, path: str, data: bytes, seconds: float, before: str | None = None) -> str | None:
        return await put(self, path, data, seconds)

    monkeypatch.setattr(S3Objects, "put", forget)


@pytest.mark.usefixtures("forgetful")
def test_a_store_that_forgets_conditions(
    s3: S3Server, corpus: Path, files: dict[str, bytes], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []

    class Listening(Silent):
        def note(self, message: str) -> None:
            notes.append(message)

    settings: dict[str, Any] = {"shards": 2, "cluster": ONE, "storage_options": s3.options()}
    target = RemoteTarget(address, s3.options(), WriteLimits())
    with target.hold(lambda: True, Listening()):
        with pytest.raises(ConfigError, match="is being written by host"):
            pack(corpus, address, **settings)
        assert target.read_lock() is not None
    assert any("no conditional put" in note and "until one notices the other" in note for note in notes)
    target.put("dataset.json", b"{}")
    with pytest.raises(TakenError):
        target.put("dataset.json", b"other", only_new=True)
    target.delete("dataset.json")
    pack(corpus, address, **settings)
    assert stored(s3, address) == files


def test_a_job_that_has_lost_its_lock_stops(
    s3: S3Server, proxy: FaultProxy, corpus: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filesystem = s3.filesystem()

    def take_over(path: str) -> None:
        if "shard-000000.tar" in path:
            filesystem.pipe_file(f"{address}/.uttershard/lock", b'{"host": "elsewhere", "pid": 7}')

    proxy.on_request = take_over
    monkeypatch.setattr(remote, "hold_store_lock", partial(remote.hold_store_lock, beat_seconds=0.01))
    with pytest.raises(ConfigError, match="another process has taken this job over"):
        pack(corpus, address, shards=2, cluster=ONE, storage_options=s3.options(proxy.endpoint))
    assert "dataset.json" not in stored(s3, address)


def test_a_large_shard_is_written_in_bounded_memory(s3: S3Server, address: str) -> None:
    target, piece, count = RemoteTarget(address, s3.options(), WriteLimits()), os.urandom(1 << 20), 192
    target.put("warm-up", b"")
    tracemalloc.start()
    try:
        with target.create("shard-000000.tar") as file:
            for _ in range(count):
                file.write(piece)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert target.size("shard-000000.tar") == count * len(piece)
    # The part that fills, those on their way, and what the client copies of one or two of them.
    assert peak < (2 * IN_FLIGHT + 2) * PART_BYTES
    target.delete("shard-000000.tar")
