"""What is seen of a cluster at a moment is no verdict: workers, the scheduler and the connection to it come back."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cluster_tasks
import dask
import pytest
from dask_processes import DaskProcesses, dask_processes
from distributed import get_worker
from heard import Heard
from uttershard.pipeline.errors import StorageError
from uttershard.writers.cluster import ClusterSettings, present, start_cluster, tasks
from uttershard.writers.cluster.present import present_workers
from uttershard.writers.cluster.workers import PACKAGES, check_workers, take_stock
from uttershard.writers.progress import Silent

HERE = ClusterSettings(n_workers=1, options={"processes": False})
LIMIT_SECONDS = 60


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[DaskProcesses]:
    """A scheduler and a worker."""
    with dask_processes(tmp_path, 1) as running:
        yield running


@pytest.mark.usefixtures("no_pauses")
def test_a_scheduler_that_comes_back_is_given_what_is_missing(processes: DaskProcesses) -> None:
    finished = []
    with start_cluster(ClusterSettings(processes.address), 5, Heard()) as cluster:
        for number, _ in cluster.run(abs, range(40)):
            if not finished:
                processes.stop()
                processes.start_scheduler()
                processes.start_worker()
            finished.append(number)
    assert sorted(finished) == list(range(40))


def test_a_scheduler_that_dies_while_workers_are_waited_for(tmp_path: Path) -> None:
    with dask_processes(tmp_path, 0) as running:

        class Kill(Silent):
            def note(self, message: str) -> None:
                running.stop()

        with (
            dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
            pytest.raises(StorageError, match="the scheduler is gone"),
            start_cluster(ClusterSettings(running.address), 0, Kill()),
        ):
            pass


def test_a_scheduler_that_does_not_answer_is_waited_for_with_a_limit(
    processes: DaskProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()
    with start_cluster(ClusterSettings(processes.address, start_seconds=100), 0, heard) as cluster:
        heard.notes.clear()
        monkeypatch.setattr(present, "_ANSWER_SECONDS", 0.2)
        assert processes.scheduler is not None
        os.kill(processes.scheduler.pid, signal.SIGSTOP)
        try:
            since = time.monotonic() - 50
            assert cluster.check_alive(since) == since
            assert heard.notes == ["the scheduler does not answer: waiting, for 100 s at most"]
            with pytest.raises(StorageError, match=r"has not answered for \d+ s.* kept: run the same command again"):
                cluster.check_alive(since - 100)
        finally:
            os.kill(processes.scheduler.pid, signal.SIGCONT)


def test_workers_that_come_later_have_their_fill_too(processes: DaskProcesses) -> None:
    with start_cluster(ClusterSettings(processes.address), 0, Silent()) as cluster:
        cluster.look()
        assert cluster.window == tasks.IN_FLIGHT
        processes.start_worker()
        cluster.client.wait_for_workers(2, timeout=LIMIT_SECONDS)
        cluster.look()
        assert cluster.window == 2 * tasks.IN_FLIGHT


def test_a_host_whose_worker_is_away_still_counts(processes: DaskProcesses) -> None:
    other = processes.start_worker(host="127.0.0.2")
    with start_cluster(ClusterSettings(processes.address), 0, Silent()) as cluster:
        cluster.client.wait_for_workers(2, timeout=LIMIT_SECONDS)
        here = {address for address in cluster.look() if "127.0.0.1" in address}
        other.kill()
        deadline = time.monotonic() + LIMIT_SECONDS
        while len(present_workers(cluster.client) or ()) != 1:
            assert time.monotonic() < deadline
        assert not cluster.is_alone(here)
        assert cluster.is_alone({*here, "tcp://127.0.0.2:1"})


@pytest.mark.usefixtures("no_pauses")
def test_what_a_host_lacks_is_asked_of_another_and_not_of_all_workers_there(processes: DaskProcesses) -> None:
    for host in ("127.0.0.1", "127.0.0.1", "127.0.0.2"):
        processes.start_worker(host=host)

    def find(_: int) -> str:
        address = str(get_worker().address)
        if "127.0.0.1" in address:
            raise tasks.ElsewhereError("no lexicon here")
        return address

    with start_cluster(ClusterSettings(processes.address), 1, Silent()) as cluster:
        cluster.client.wait_for_workers(4, timeout=LIMIT_SECONDS)
        for _ in range(4):  # one at a time, or Dask would give what waits there to a worker that has nothing to do
            assert "127.0.0.2" in dict(cluster.run(find, [0]))[0]


def test_a_worker_that_goes_away_while_it_is_tested_lacks_nothing() -> None:
    class Client:
        def run_on_scheduler(self, function: Any, packages: dict[str, str]) -> Any:
            return function(packages)

        def run(self, function: Any, packages: dict[str, str], on_error: str) -> Any:
            return {"tcp://here": function(packages), "tcp://gone": ConnectionResetError("in <TCP>: closed")}

    assert check_workers(Client()) == take_stock(PACKAGES)


def test_a_result_that_comes_slowly_is_given_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed, fetch = [], tasks._result

    def slow(future: Any, seconds: float) -> Any:
        allowed.append(seconds)
        return tasks._LOST if len(allowed) < 4 else fetch(future, seconds)

    monkeypatch.setattr(tasks, "_result", slow)
    with start_cluster(HERE, 0, Silent()) as cluster:
        assert dict(cluster.run(cluster_tasks.pid_of, [0])) == {0: os.getpid()}
    assert allowed == [10.0, 30.0, 90.0, 90.0]
