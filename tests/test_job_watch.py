"""Jobs of a batch system that are gone are submitted again: which ones that are."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from uttershard.writers.cluster import jobs
from uttershard.writers.cluster.jobs import JobWatch
from uttershard.writers.progress import Silent


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


def test_a_job_that_ended_before_its_workers_came_is_dropped(queue: Queue) -> None:
    asked = []

    def ended(of: Iterable[str]) -> set[str]:
        asked.append(set(of))
        return {"2"}

    listener, notes = Silent(), list[str]()
    listener.note = notes.append  # type: ignore[method-assign]
    watch = JobWatch(queue, listener, ended)
    queue.at_work("a-0")
    watch()
    assert asked == [{"2"}]
    assert list(queue.workers) == ["a"]
    watch()
    assert notes == ["jobs that ended before their workers came: 2. Others are submitted; the output of these says why"]
    assert asked == [{"2"}], "nobody is asked about jobs that are at work"


def test_a_job_that_waits_keeps_its_place(queue: Queue) -> None:
    for watch in (JobWatch(queue, Silent()), JobWatch(queue, Silent(), lambda _: set())):
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
    def ended(of: Iterable[str]) -> set[str]:
        queue.workers["b"] = Job("3")
        return {"2"}

    JobWatch(queue, Silent(), ended)()
    assert queue.workers["b"].job_id == "3"
