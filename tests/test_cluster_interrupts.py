"""Ctrl-C again, while a cluster starts or ends: it is ended all the same."""

import asyncio
import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import wait
from threading import Condition, Event, get_ident
from typing import Any

import pytest
from distributed import LocalCluster, Status
from uttershard.pipeline.errors import DataError
from uttershard.writers.cluster import ClusterSettings, ahead, start_cluster, started_ahead
from uttershard.writers.progress import Silent

HERE = ClusterSettings(n_workers=1, options={"processes": False})


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """Have Ctrl-C raise in this thread, whatever runs the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_while_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is pressed, or Dask would go on closing as the process exits, and print what interrupts that."""
    close, here, pressed = LocalCluster._close, get_ident(), list[int]()

    def press(number: int, _: object) -> None:
        pressed.append(number)
        raise KeyboardInterrupt

    def is_waiting() -> bool:
        # Where it stands still: interrupted while it takes the lock of a future, it would keep that for ever.
        codes = [frame.f_code for frame, _ in traceback.walk_stack(sys._current_frames()[here])]
        return codes[0] is Condition.wait.__code__ and wait.__code__ in codes

    async def interrupted(cluster: LocalCluster) -> None:
        for times in range(3):
            while not (is_waiting() and len(pressed) == times):
                await asyncio.sleep(0)
            os.kill(os.getpid(), signal.SIGINT)
        await close(cluster)

    monkeypatch.setattr(LocalCluster, "_close", interrupted)
    signal.signal(signal.SIGINT, press)
    with pytest.raises(KeyboardInterrupt), start_cluster(HERE, 0, Silent()) as running:
        cluster = running.client.cluster
    assert cluster.status is Status.closed
    assert len(pressed) == 3


def test_while_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    began, may_start, ended = Event(), Event(), []

    @contextlib.contextmanager
    def start() -> Iterator[Any]:
        began.set()
        may_start.wait()
        try:
            yield
        finally:
            ended.append("cluster")

    def interrupted(_: object) -> None:
        may_start.set()
        raise KeyboardInterrupt

    monkeypatch.setattr(ahead, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt), started_ahead(start):
        began.wait()
    assert ended == ["cluster"]


def test_a_block_that_fails_at_once_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_HEAD_SECONDS", 3600.0)
    started = []
    with pytest.raises(DataError, match="empty"), started_ahead(lambda: started.append("cluster")):  # type: ignore[func-returns-value,arg-type]
        raise DataError("empty")
    assert started == []


def test_a_block_that_asks_waits_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_HEAD_SECONDS", 3600.0)
    there: Any = object()
    with started_ahead(lambda: contextlib.nullcontext(there)) as cluster:
        assert cluster() is there
