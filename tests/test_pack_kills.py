"""Packing on a cluster while workers, the scheduler and the client are killed, disks fill and sources go away."""

import contextlib
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import typer
from corpora import files_of, jsonl_corpus, read_errors
from dask_processes import DaskProcesses, dask_processes
from distributed import Client, LocalCluster
from held_corpus import held_corpus
from uttershard.pipeline.dataset.manifest import ShardEntry
from uttershard.pipeline.errors import ConfigError, DataError, StorageError
from uttershard.scripts.cli.cluster import stoppable
from uttershard.writers import pack
from uttershard.writers.cluster import ClusterSettings, TasksFailedError
from uttershard.writers.cluster import tasks as cluster_module
from uttershard.writers.commit import NoSpaceError
from uttershard.writers.lock import hold_lock
from uttershard.writers.progress import Done, Silent
from uttershard.writers.records import FinishedShard, JobRecords
from uttershard.writers.targets.local import LocalTarget

SHARDS = 12
SETTINGS: dict[str, Any] = {"codec": "opus", "shards": SHARDS}
HERE = ClusterSettings(n_workers=2, options={"processes": False})
LIMIT_SECONDS = 240


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return jsonl_corpus(tmp_path_factory.mktemp("corpus"), 36, seconds=3.0)


@pytest.fixture(scope="module")
def undisturbed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    target = tmp_path_factory.mktemp("undisturbed") / "out"
    pack(corpus, target, workers=2, **SETTINGS)
    return files_of(target)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, as a corpus that can be held."""
    return held_corpus(tmp_path_factory.mktemp("held"), 36, seconds=3.0)


@pytest.fixture(scope="module")
def held_undisturbed(held: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    target = tmp_path_factory.mktemp("held-undisturbed") / "out"
    pack(held, target, workers=2, allow_pipes=True, **SETTINGS)
    return files_of(target)


@pytest.fixture
def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hold the job that packs to `out`, until this file is there."""
    monkeypatch.setenv("HOLD", str(tmp_path / "out"))
    return tmp_path / "out.open"


@pytest.fixture
def dask(hold: Path, tmp_path: Path) -> Iterator[DaskProcesses]:
    with dask_processes(tmp_path, 2) as processes:
        yield processes


def start_client(corpus: Path, target: Path, address: str) -> "subprocess.Popen[str]":
    command = [
        str(Path(sys.executable).with_name("uttershard")),
        "pack",
        str(corpus),
        str(target),
        "--cluster",
        address,
    ]
    command += ["--codec", "opus", "--shards", str(SHARDS), "--allow-pipes"]
    environment = {**os.environ, "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "5s"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def count_done(target: Path) -> int:
    return len(list((target / ".uttershard" / "done").glob("*.json")))


@pytest.mark.parametrize("seed", [0, 1])
def test_killed_again_and_again(
    held: Path, held_undisturbed: dict[str, bytes], dask: DaskProcesses, hold: Path, tmp_path: Path, seed: int
) -> None:
    """Workers, the scheduler and the client are killed by turns; whoever is dead is started again, until it is done."""
    chance, target, killed = random.Random(seed), tmp_path / "out", []
    deadline = time.monotonic() + LIMIT_SECONDS
    client = start_client(held, target, dask.address)
    victims = ["worker", "client", "scheduler", "worker"]
    chance.shuffle(victims)
    finished = 0
    while client.poll() is None or client.returncode != 0:
        assert time.monotonic() < deadline, dask.log()
        if client.poll() is not None:
            client = start_client(held, target, dask.address)
        done = count_done(target)
        if not victims:
            hold.touch()
        elif done > finished or done >= SHARDS - 2:  # all but the held one, and one that may wait behind it
            finished = done
            killed.append(victims.pop())
            if killed[-1] == "worker":
                worker = dask.workers.pop(chance.randrange(len(dask.workers)))
                worker.kill()
                worker.wait()
                dask.start_worker()
            elif killed[-1] == "client":
                client.kill()
            else:
                assert dask.scheduler is not None
                dask.scheduler.kill()
                dask.scheduler.wait()
                dask.start_scheduler()
                for worker in dask.workers:
                    worker.kill()
                    worker.wait()
                dask.workers = []
                dask.start_worker()
                dask.start_worker()
        time.sleep(0.01)
    client.communicate()
    assert len(killed) == 4
    assert files_of(target) == held_undisturbed


@pytest.mark.parametrize(
    ("send", "status"),
    [
        (lambda pid: os.killpg(pid, signal.SIGINT), 130),  # as a terminal does: to the workers, too
        (lambda pid: os.kill(pid, signal.SIGTERM), 143),
    ],
    ids=["ctrl-c", "sigterm"],
)
def test_ctrl_c_once(
    send: Callable[[int], None],
    status: int,
    held: Path,
    held_undisturbed: dict[str, bytes],
    hold: Path,
    tmp_path: Path,
) -> None:
    target = tmp_path / "out"
    command = [str(Path(sys.executable).with_name("uttershard")), "pack", str(held), str(target), "--workers", "2"]
    command += ["--codec", "opus", "--shards", str(SHARDS), "--allow-pipes"]
    client = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + LIMIT_SECONDS
    while not count_done(target):
        assert client.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    send(client.pid)
    _, errors = client.communicate(timeout=LIMIT_SECONDS)
    assert client.returncode == status
    assert f"of {SHARDS} shards are done and kept. Run the same command again to go on" in errors
    assert "Traceback" not in errors
    kept = count_done(target)
    assert 1 <= kept < SHARDS
    assert not list((target / ".uttershard" / "tmp").iterdir())
    hold.touch()
    summary = pack(held, target, workers=2, allow_pipes=True, **SETTINGS)
    assert kept <= summary.kept_shards < SHARDS
    assert files_of(target) == held_undisturbed


def test_ctrl_c_while_workers_start(corpus: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    target = tmp_path / "out"
    command = [str(Path(sys.executable).with_name("uttershard")), "pack", str(corpus), str(target), "--workers", "2"]
    command += ["--codec", "opus", "--shards", str(SHARDS)]
    client = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (starting := _workers_of(client.pid)):
        assert client.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.001)
    held = re.search(r"SigBlk:\s*(\w+)", Path(f"/proc/{starting[0].pid}/status").read_text())
    assert held is not None
    assert int(held[1], 16) & 1 << signal.SIGINT - 1, "from its first moment on"
    os.killpg(client.pid, signal.SIGINT)
    _, errors = client.communicate(timeout=LIMIT_SECONDS)
    assert client.returncode == 130
    assert "Run the same command again to go on" in errors
    assert "Traceback" not in errors
    _, alive = psutil.wait_procs(starting, timeout=LIMIT_SECONDS)
    assert not alive
    pack(corpus, target, workers=2, **SETTINGS)
    assert files_of(target) == undisturbed


def _workers_of(pid: int) -> list[psutil.Process]:
    workers = []
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if any("spawn_main" in argument for argument in child.cmdline()):
                workers.append(child)
    return workers


def test_ctrl_c_before_there_is_anything_to_count(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, stoppable():
        raise KeyboardInterrupt
    assert ended.value.exit_code == 130
    assert "Run the same command again to go on" in capsys.readouterr().err


def test_ctrl_c_again_while_the_cluster_ends(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stop(Silent):
        def advance(self, done: Done) -> None:
            if done.nbytes:
                raise KeyboardInterrupt

    def close(cluster: LocalCluster, timeout: float | None = None) -> None:
        closing(cluster, timeout)
        raise KeyboardInterrupt

    closing = LocalCluster.close
    monkeypatch.setattr(LocalCluster, "close", close)
    with pytest.raises(typer.Exit) as ended, stoppable():
        pack(corpus, tmp_path / "out", cluster=HERE, progress=Stop(), **SETTINGS)
    assert ended.value.exit_code == 130
    assert f"1 of {SHARDS} shards are done and kept. Run the same command again to go on" in capsys.readouterr().err


def _small_files(limit: int) -> tuple[str, ...]:
    """Return a command that runs a worker which can't write larger files: its disk is full."""
    code = (
        "import os, resource, sys\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    return sys.executable, "-c", code


@pytest.mark.usefixtures("no_pauses")
def test_a_full_disk_on_one_worker(corpus: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    smallest = min(len(data) for name, data in undisturbed.items() if name.endswith(".tar"))
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    with dask_processes(tmp_path, 1) as dask:
        dask.start_worker(host="127.0.0.2", prefix=_small_files(smallest // 2))
        dask.wait_for_workers()  # one that has no room and is alone ends the job
        pack(corpus, tmp_path / "out", cluster=dask.address, **SETTINGS)
        assert all(worker.poll() is None for worker in dask.workers)
    assert files_of(tmp_path / "out") == undisturbed


def test_a_full_disk_everywhere_is_told_at_once(corpus: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    smallest = min(len(data) for name, data in undisturbed.items() if name.endswith(".tar"))
    with dask_processes(tmp_path, 0) as dask:
        dask.start_worker(prefix=_small_files(smallest // 2))
        with pytest.raises(NoSpaceError, match=f": 0 of {SHARDS} shards are done and kept. Free space"):
            pack(corpus, tmp_path / "out", cluster=dask.address, **SETTINGS)
        # Of an earlier run, and looked at in this one when it has failed already.
        entry = ShardEntry("shard-000011.tar", "shard-000011.parquet", 0, "", 0, "", 1, 1, 1.0, 1.0, 1.0)
        JobRecords(LocalTarget(tmp_path / "out")).write_done(11, FinishedShard(entry, ()))
        with pytest.raises(NoSpaceError, match=f": 1 of {SHARDS} shards are done and kept. Free space"):
            pack(corpus, tmp_path / "out", cluster=dask.address, **SETTINGS)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"refused": []}', '{"refused": [{"id": 1}], "entry": {}}'])
def test_a_damaged_record_is_none(tmp_path: Path, text: str) -> None:
    done = tmp_path / ".uttershard" / "done"
    done.mkdir(parents=True)
    (done / "000003.json").write_text(text)
    records = JobRecords(LocalTarget(tmp_path))
    assert records.read_done(3) is None
    assert records.finished() == {}


@pytest.mark.parametrize("name", ["job.json", "plan.parquet", "refused.jsonl"])
def test_damaged_records_of_a_job_are_named_and_overwritten(tmp_path: Path, name: str) -> None:
    corpus, target = jsonl_corpus(tmp_path / "corpus", 6), tmp_path / "out"
    (tmp_path / "corpus" / "audio" / "utt003.flac").write_bytes(b"no audio")
    settings: dict[str, Any] = {"shards": 2, "max_errors": 1, "cluster": HERE}
    pack(corpus, tmp_path / "expected", **settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uttershard.writers.run.pack_shard", fail)
        with pytest.raises(TasksFailedError):
            pack(corpus, target, **settings, retries=0)
    record = target / ".uttershard" / name
    record.write_bytes(record.read_bytes()[:-20])
    with pytest.raises(DataError, match=rf"{name}: damaged .*; pack again with overwrite"):
        pack(corpus, target, **settings)
    pack(corpus, target, **settings, overwrite=True)
    assert files_of(target) == files_of(tmp_path / "expected")


def fail(task: Any) -> None:
    """Stand in for a task whose target is away."""
    raise OSError(5, "Input/output error")


def test_a_source_that_is_away_for_a_while(
    corpus: Path, undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "PAUSES_SECONDS", (0.2,))
    audio, away = corpus.parent / "audio", corpus.parent / "away"
    target = tmp_path / "out"
    over = threading.Event()

    def take_away() -> None:
        """Hide the audio once the first shard is done, and bring it back when tasks have failed for it."""
        while not over.is_set() and count_done(target) < 1:
            time.sleep(0.001)
        audio.rename(away)
        over.wait(1.5)
        away.rename(audio)

    thief = threading.Thread(target=take_away)
    thief.start()
    try:
        pack(corpus, target, cluster=HERE, retries=100, **SETTINGS)
    finally:
        over.set()
        thief.join()
    assert files_of(target) == undisturbed
    assert not read_errors(target)


@pytest.mark.usefixtures("no_pauses")
def test_a_source_that_stays_away_costs_its_shards_only(
    corpus: Path, undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from uttershard.writers import segments

    fetch = segments.fetch

    def broken(uri: str, *arguments: Any) -> Any:
        if uri.endswith("utt017.flac"):
            raise OSError(5, "Input/output error", uri)
        return fetch(uri, *arguments)

    target = tmp_path / "out"
    monkeypatch.setattr(segments, "fetch", broken)
    with pytest.raises(
        TasksFailedError, match=r"1 given up after all retries: shard-\d{6}\.tar: .*utt017\.flac.*Input/output"
    ):
        pack(corpus, target, cluster=HERE, retries=2, **SETTINGS)
    assert count_done(target) == SHARDS - 1
    assert not (target / "dataset.json").exists()
    times = {path.name: path.stat().st_mtime_ns for path in target.glob("*.tar")}
    monkeypatch.setattr(segments, "fetch", fetch)
    pack(corpus, target, cluster=HERE, **SETTINGS)
    assert files_of(target) == undisturbed
    assert {name: (target / name).stat().st_mtime_ns for name in times} == times, "only what was missing is made"


@pytest.mark.usefixtures("no_pauses")
def test_refusals_that_ended_a_run_are_tried_again(
    corpus: Path, undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from uttershard.pipeline.reading.codecs import AudioError
    from uttershard.writers import segments

    fetch = segments.fetch

    def forbidden(uri: str, *arguments: Any) -> Any:
        if "utt01" in uri:
            raise AudioError("Permission denied")
        return fetch(uri, *arguments)

    monkeypatch.setattr(segments, "fetch", forbidden)
    with pytest.raises(DataError, match="utterances refused"):
        pack(corpus, tmp_path / "out", cluster=HERE, max_errors=1, **SETTINGS)
    monkeypatch.setattr(segments, "fetch", fetch)
    pack(corpus, tmp_path / "out", cluster=HERE, max_errors=1, **SETTINGS)
    assert {name: data for name, data in files_of(tmp_path / "out").items() if name != "errors.jsonl"} == undisturbed


@pytest.mark.usefixtures("hold")
def test_a_worker_lost_for_good_and_no_other(held: Path, tmp_path: Path) -> None:
    with dask_processes(tmp_path, 1) as dask:

        def kill_soon() -> None:
            deadline = time.monotonic() + LIMIT_SECONDS
            while count_done(tmp_path / "out") < 1 and time.monotonic() < deadline:
                time.sleep(0.01)
            dask.workers[0].kill()

        killer = threading.Thread(target=kill_soon)
        killer.start()
        # It may be slow to come; those seconds are for others that never do.
        with Client(dask.address) as watching:
            watching.wait_for_workers(1, timeout=LIMIT_SECONDS)
        settings = ClusterSettings(dask.address, start_seconds=3)
        with pytest.raises(StorageError, match=r"there has been no worker for|workers died over it"):
            pack(held, tmp_path / "out", cluster=settings, allow_pipes=True, **SETTINGS)
        killer.join()
    assert count_done(tmp_path / "out") >= 1


def foreign_holder(path: Path, beats: bool) -> "subprocess.Popen[bytes]":
    """Hold a lock as a process on another host would, whose kernel shares no locks with this one."""
    code = (
        "import os, sys, time\n"
        "count, file = 0, os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)\n"
        "while True:\n"
        "    os.pwrite(file, f'host elsewhere pid 77 beat {count:012d}\\n'.encode(), 0)\n"
        f"    count += {int(beats)}\n"
        "    print(count, flush=True)\n"
        "    time.sleep(0.1)\n"
    )
    path.parent.mkdir(parents=True)
    holder = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    return holder


def test_a_job_that_runs_on_another_host_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out" / ".uttershard" / "lock"
    holder = foreign_holder(path, beats=True)
    try:
        with pytest.raises(ConfigError, match="out is being written by host elsewhere pid 77: wait"), hold_lock(path):
            pass
    finally:
        holder.kill()
        holder.wait()


def test_the_lock_of_a_dead_job_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "out" / ".uttershard" / "lock"
    holder = foreign_holder(path, beats=False)
    holder.kill()
    holder.wait()
    assert "elsewhere" in path.read_text()
    with hold_lock(path, dead_seconds=1.0):
        assert f"pid {os.getpid()}" in path.read_text()
    assert path.read_text() == "", "nobody has to be watched after a good end"


@pytest.mark.parametrize("hours", [-1000, 1000])
def test_a_clock_that_jumped(tmp_path: Path, hours: int) -> None:
    """The time that a file system gives the lock says nothing: not of a dead job's, nor of one that is held."""
    path = tmp_path / "out" / ".uttershard" / "lock"
    path.parent.mkdir(parents=True)
    then = path.parent.stat().st_mtime + 3600 * hours
    path.write_text(f"host {socket.gethostname()} pid 1 beat 000000000007\n")
    os.utime(path, (then, then))
    with hold_lock(path):
        os.utime(path, (then, then))
        with pytest.raises(ConfigError, match=f"pid {os.getpid()}"), hold_lock(path):
            pass


def test_a_holder_counts_up(tmp_path: Path) -> None:
    path = tmp_path / "out" / ".uttershard" / "lock"
    with hold_lock(path, beat_seconds=0.01):
        first, deadline = path.read_text(), time.monotonic() + LIMIT_SECONDS
        while path.read_text() == first:
            assert time.monotonic() < deadline


def test_no_clock_that_can_jump_is_asked(repository: Path) -> None:
    asked = [
        f"{path.name}:{number}"
        for path in sorted((repository / "writers").rglob("*.py"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if re.search(r"\btime\.time\(|\bdatetime\b|\bfrom time import time\b", line)
        and '"since"' not in line  # of a lock, told to people and compared with nothing
        and path.name != "steady_clock.py"  # asks once, so that Dask need not
    ]
    assert asked == [], "time.monotonic() does not jump"
