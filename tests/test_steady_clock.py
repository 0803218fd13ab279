"""A clock that is set back while tasks run: Dask's senders would stand still until it is as late as it was."""

import time
from typing import Any

import pytest
from tornado.ioloop import IOLoop
from uttershard.writers.cluster import ClusterSettings, start_cluster
from uttershard.writers.cluster.steady_clock import steady_time
from uttershard.writers.progress import Silent

HERE = ClusterSettings(n_workers=2, options={"processes": False})


def test_tasks_go_on_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = time.time
    with start_cluster(HERE, 0, Silent()) as cluster:
        assert dict(cluster.run(abs, range(100))) == {number: number for number in range(100)}
        monkeypatch.setattr(time, "time", lambda: clock() - 3600)
        assert len(dict(cluster.run(abs, range(100)))) == 100


def test_it_is_the_time_of_day_until_that_jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[Any] = [steady_time(), time.time(), IOLoop.time(IOLoop(make_current=False))]
    assert max(times) - min(times) < 60
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert steady_time() >= times[0]
