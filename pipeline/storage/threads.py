"""Threads that fetch: daemons, so that a store that does not answer never keeps a process from ending."""

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeAlias

_Tasks: TypeAlias = "queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]"


class FetchThreads:
    """Calls functions in threads, in the order given; they start as they are needed, and end when this is dropped.

    Args:
        most: Number of threads.
        name: What they are called.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._tasks: _Tasks = queue.SimpleQueue()
        self._started = 0
        self._lock = threading.Lock()
        # The threads hold the queue and nothing of this object, else it would never be dropped.
        weakref.finalize(self, _end, self._tasks, most).atexit = False

    def submit(self, call: Callable[[], Any]) -> "Future[Any]":
        """Call it soon; the future has what it returns or raises."""
        future: Future[Any] = Future()
        self._tasks.put((future, call))
        with self._lock:
            if self._started < self._most:
                self._started += 1
                name = f"{self._name}-{self._started}"
                threading.Thread(target=_work, args=(self._tasks,), name=name, daemon=True).start()
        return future


def _end(tasks: _Tasks, threads: int) -> None:
    for _ in range(threads):
        tasks.put(None)


def _work(tasks: _Tasks) -> None:
    while (task := tasks.get()) is not None:
        future, call = task
        if not future.set_running_or_notify_cancel():
            continue
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - belongs to whoever waits for the future
            future.set_exception(error)
        else:
            future.set_result(result)
        # Else the thread would hold the last result, megabytes of it, until the next task comes.
        del future, call, task
        result = None
