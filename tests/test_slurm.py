"""Packing through `sbatch`ed workers on a real SLURM of two nodes, while nodes and jobs go away."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from corpora import files_of, write_audio, write_lines
from held_corpus import held_corpus
from slurm import NODES, Slurm, running_slurm
from uttershard.writers import StatsSettings, collect_stats, index_tars, pack
from uttershard.writers.cluster import ClusterSettings
from uttershard.writers.cluster.jobs import SlurmQueue

SHARDS = 12
SETTINGS: dict[str, Any] = {"codec": "opus", "shards": SHARDS, "allow_pipes": True}

LIMIT_SECONDS = 240


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with running_slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return held_corpus(tmp_path_factory.mktemp("corpus"), 36, seconds=3.0)


@pytest.fixture(scope="module")
def local(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset as local workers pack it."""
    target = tmp_path_factory.mktemp("local") / "out"
    pack(corpus, target, **SETTINGS)
    return target


def cluster(slurm: Slurm, **options: Any) -> ClusterSettings:
    """Two jobs of a worker each, a node each where there are two."""
    return ClusterSettings("slurm", 2, options={**_options(slurm), **options})


def _options(slurm: Slurm) -> dict[str, Any]:
    return {
        "interface": "lo",
        "scheduler_options": {"host": "127.0.0.1"},
        # More than half of a node's memory: a job a node.
        "memory": "11GB",
        "walltime": "00:10:00",
        "log_directory": str(slurm.folder),
        "python": sys.executable,
    }


class Packing:
    """`uttershard pack` in a process of its own, which does not end before it is released."""

    def __init__(self, slurm: Slurm, corpus: Path, target: Path, *, codec: str = "opus", **options: Any) -> None:
        self.target, self.done = target, target / ".uttershard" / "done"
        config = target.with_suffix(".yaml")
        block = {"env": "slurm", "n_workers": 2, "options": {**_options(slurm), **options}}
        config.write_text(json.dumps({"parallel": block}))  # JSON is YAML
        command = [str(Path(sys.executable).with_name("uttershard")), "pack", str(corpus), str(target)]
        command += ["--codec", codec, "--shards", str(SHARDS), "--cluster-config", str(config), "--allow-pipes"]
        self.process = subprocess.Popen(
            command,
            env={**slurm.environment, "HOLD": str(target)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for_shards(self, count: int) -> None:
        """Wait until so many are finished."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while len(list(self.done.glob("*.json"))) < count:
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline, "no shards"
            time.sleep(0.01)

    def finish(self) -> str:
        """Let it go on to the end, which must be a good one; return what was written to standard error."""
        self.target.with_name(f"{self.target.name}.open").touch()
        _, errors = self.process.communicate(timeout=LIMIT_SECONDS)
        assert self.process.returncode == 0, errors
        return errors


Start = Callable[..., Packing]


@pytest.fixture
def start(slurm: Slurm, corpus: Path) -> Iterator[Start]:
    """Start a Packing; one that a failed test leaves behind is killed."""
    started: list[Packing] = []

    def start_one(target: Path, **options: Any) -> Packing:
        started.append(Packing(slurm, corpus, target, **options))
        return started[-1]

    yield start_one
    for packing in started:
        packing.process.kill()
        packing.process.communicate()


def test_pack_index_and_stats(
    slurm: Slurm, corpus: Path, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    target = tmp_path / "out"
    pack(corpus, target, cluster=cluster(slurm), **SETTINGS)
    assert files_of(target) == files_of(local)
    (target / "shard-000003.parquet").unlink()
    index_tars([str(target)], cluster=cluster(slurm))
    assert files_of(target) == files_of(local)
    settings = StatsSettings(features="none")
    collect_stats(str(target), settings, out=str(tmp_path / "there"), cluster=cluster(slurm))
    collect_stats(str(target), settings, out=str(tmp_path / "here"), workers=1)
    assert files_of(tmp_path / "there") == files_of(tmp_path / "here")
    slurm.wait_for_no_jobs()


def test_a_node_drained_and_its_job_cancelled(slurm: Slurm, start: Start, local: Path, tmp_path: Path) -> None:
    packing = start(tmp_path / "out")
    packing.wait_for_shards(1)
    jobs = slurm.wait_for_jobs(2)
    assert set(jobs.values()) == set(NODES)
    slurm.call("scontrol", "update", f"nodename={NODES[0]}", "state=drain", "reason=test")
    try:
        (lost,) = (job for job, node in jobs.items() if node == NODES[0])
        slurm.call("scancel", lost)
        packing.finish()
    finally:
        slurm.call("scontrol", "update", f"nodename={NODES[0]}", "state=resume")
    assert files_of(tmp_path / "out") == files_of(local)


def ended_in_slurm(slurm: Slurm, *jobs: str) -> set[str]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in slurm.environment.items():
            patch.setenv(name, value)
        queue = SlurmQueue()
        queue.ask(jobs)
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (ended := queue.ended()):
        assert time.monotonic() < deadline
    return ended


def test_a_job_requeued(slurm: Slurm, start: Start, local: Path, tmp_path: Path) -> None:
    packing = start(tmp_path / "out")
    packing.wait_for_shards(1)
    job = next(iter(slurm.wait_for_jobs(1)))
    slurm.call("scontrol", "requeue", job)
    packing.finish()
    assert files_of(tmp_path / "out") == files_of(local)


def test_all_jobs_cancelled_are_replaced(slurm: Slurm, start: Start, local: Path, tmp_path: Path) -> None:
    packing = start(tmp_path / "out", cores=2)  # a job of two workers
    packing.wait_for_shards(1)
    before = slurm.wait_for_jobs(1)
    slurm.call("scancel", *before)
    packing.finish()
    assert ended_in_slurm(slurm, *before, "1000000") == set(before)
    assert files_of(tmp_path / "out") == files_of(local)


def test_the_client_killed(slurm: Slurm, start: Start, local: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    packing = start(target)
    packing.wait_for_shards(1)
    packing.process.kill()
    packing.process.wait()
    tars = [target / f"shard-{path.stem}.tar" for path in packing.done.glob("*.json")]
    kept = {tar: tar.stat().st_mtime_ns for tar in tars}
    start(target).finish()
    assert {tar: tar.stat().st_mtime_ns for tar in tars} == kept, "finished shards are kept"
    assert files_of(target) == files_of(local)


def test_walltime_reached(slurm: Slurm, tmp_path: Path) -> None:
    # A minute is the shortest that SLURM has, and it looks every 30 s: until then the audio is slow to come.
    audio, seen = write_audio(tmp_path / "a.flac"), tmp_path / "seen"
    commands = (f"utt{number:02d} [ -e {seen} ] || sleep 9; cat {audio} |" for number in range(36))
    slow = write_lines(tmp_path / "slow" / "wav.scp", *commands).parent
    seen.touch()
    pack(slow, tmp_path / "local", shards=SHARDS, allow_pipes=True, workers=1)
    seen.unlink()
    packing = Packing(slurm, slow, tmp_path / "out", codec="keep", walltime="00:01:00")
    packing.wait_for_shards(1)
    deadline = time.monotonic() + LIMIT_SECONDS
    while not slurm.jobs("TIMEOUT"):
        assert packing.process.poll() is None, packing.process.communicate()[1]
        assert time.monotonic() < deadline, slurm.call("squeue", "--states=all")
        time.sleep(0.2)
    seen.touch()
    packing.finish()
    assert files_of(tmp_path / "out") == files_of(tmp_path / "local")


def test_a_submission_that_fails_is_told_at_once(start: Start, tmp_path: Path) -> None:
    packing = start(tmp_path / "out", queue="nowhere")
    _, errors = packing.process.communicate(timeout=LIMIT_SECONDS)
    assert packing.process.returncode == 1
    assert "invalid partition specified: nowhere" in errors
