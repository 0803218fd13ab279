"""Jobs of a batch system that are gone are submitted again: which ones that are."""

import asyncio
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import psutil
import pytest
from heard import Heard
from uttershard.writers.cluster import jobs
from uttershard.writers.cluster.jobs import JobWatch, SlurmQueue
from uttershard.writers.progress import Silent

LIMIT_SECONDS = 60


class Job:
    """A job of dask-jobqueue, which was submitted."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.closed = False

    async def close(self) -> None:
        self.closed = True


class Queue:
    """A cluster of two jobs of two workers each: what a watch looks at, and who is at work in it."""

    def __init__(self) -> None:
        self.loop = self
        self.workers = {"a": Job("1"), "b": Job("2")}
        self.worker_spec = {name: {"group": ["-0", "-1"]} for name in self.workers}
        self.scheduler_info: dict[str, Any] = {"workers": {}}

    def at_work(self, *names: str) -> None:
        self.scheduler_info["workers"] = {f"tcp://{name}": {"name": name} for name in names}

    def add_callback(self, function: Callable[..., Any], *arguments: Any) -> None:
        asyncio.run(function(*arguments))


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    monkeypatch.setattr(jobs, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(jobs, "_ASK_SECONDS", 0.0)
    return Queue()


def test_a_job_all_of_whose_workers_are_gone_is_dropped(queue: Queue) -> None:
    watch, lost = JobWatch(queue, Silent()), queue.workers["b"]
    queue.at_work("a-0", "a-1", "b-0", "b-1")
    watch()
    queue.at_work("a-1")
    watch()
    assert list(queue.workers) == ["a", "b"], "its workers may be started again where they were"
    watch()
    assert list(queue.workers) == ["a"]
    assert lost.closed


def test_workers_that_come_back_are_waited_for(queue: Queue) -> None:
    watch = JobWatch(queue, Silent())
    for names in (["a-0", "b-0"], ["a-0"], ["a-0", "b-1"], ["a-0"]):
        queue.at_work(*names)
        watch()
    assert list(queue.workers) == ["a", "b"]


class Answering(SlurmQueue):
    """Answers with what it holds for answers, one after the other."""

    def __init__(self, *answers: set[str]) -> None:
        super().__init__()
        self.asked: list[set[str]] = []
        self.answers = list(answers)

    def ask(self, jobs: Collection[str]) -> None:
        self.asked.append(set(jobs))

    def ended(self) -> set[str]:
        return self.answers.pop(0) if self.answers else set()


def test_a_job_that_ended_before_its_workers_came_is_dropped(queue: Queue) -> None:
    heard, slurm = Heard(), Answering(set(), {"2"})
    watch = JobWatch(queue, heard, slurm)
    queue.at_work("a-0")
    watch()
    assert slurm.asked == [{"2"}]
    assert list(queue.workers) == ["a", "b"], "there is no answer yet"
    watch()
    assert list(queue.workers) == ["a"]
    watch()
    assert heard.notes == [
        "jobs that ended before their workers came: 2. Others are submitted; the output of these says why"
    ]
    assert slurm.asked == [{"2"}], "nobody is asked about jobs that are at work or dropped"


def test_an_answer_that_comes_late_ends_no_job_whose_workers_are_there(queue: Queue) -> None:
    heard, slurm = Heard(), Answering(set(), {"1", "2"})
    watch = JobWatch(queue, heard, slurm)
    watch()
    queue.at_work("a-0", "b-1")
    watch()
    assert list(queue.workers) == ["a", "b"]
    assert heard.notes == []


def test_a_job_that_waits_keeps_its_place(queue: Queue) -> None:
    for watch in (JobWatch(queue, Silent()), JobWatch(queue, Silent(), Answering())):
        for _ in range(5):
            watch()
    assert list(queue.workers) == ["a", "b"]


def test_workers_that_come_meanwhile(queue: Queue) -> None:
    class Comes(dict[str, str]):
        def __getitem__(self, name: str) -> str:
            workers["tcp://b-0"] = {"name": "b-0"}
            return super().__getitem__(name)

    workers = queue.scheduler_info["workers"] = {"tcp://a-0": Comes(name="a-0"), "tcp://a-1": Comes(name="a-1")}
    JobWatch(queue, Silent())()
    assert list(queue.workers) == ["a", "b"]


def test_a_job_that_was_submitted_meanwhile_is_another(queue: Queue) -> None:
    class Late(Answering):
        def ended(self) -> set[str]:
            queue.workers["b"] = Job("3")
            return {"2"}

    JobWatch(queue, Silent(), Late())()
    assert queue.workers["b"].job_id == "3"


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Write what stands in for SLURM's command."""

    def write(text: str) -> None:
        path = tmp_path / "squeue"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return write


def answer_of(slurm: SlurmQueue) -> set[str]:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (ended := slurm.ended()):
        assert time.monotonic() < deadline
    return ended


def test_slurm_is_asked_and_answers_later(squeue: Callable[[str], None]) -> None:
    squeue('echo "7 RUNNING\n8 TIMEOUT\n9 CANCELLED\n10 NODE_FAIL by"; [ "$5" = --jobs=10,7,8,9 ] || exit 1')
    slurm = SlurmQueue()
    assert slurm.ended() == set()
    slurm.ask({"7", "8", "9", "10"})
    assert answer_of(slurm) == {"8", "9"}
    assert slurm.ended() == set(), "it was told"


def test_a_slurm_that_hangs_is_not_waited_for(squeue: Callable[[str], None], tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    squeue(f"echo $$ >{pid}.new && mv {pid}.new {pid}; exec sleep 1000")
    slurm, processes = SlurmQueue(), list[psutil.Process]()
    for _ in range(2):
        slurm.ask({"7"})
        assert slurm.ended() == set()
        deadline = time.monotonic() + LIMIT_SECONDS
        while not pid.exists():
            assert time.monotonic() < deadline
        processes.append(psutil.Process(int(pid.read_text())))
        pid.unlink()
    slurm.close()
    assert not any(process.is_running() for process in processes)


def test_a_command_that_cannot_be_run_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    slurm = SlurmQueue()
    slurm.ask({"7"})
    assert slurm.ended() == set()
