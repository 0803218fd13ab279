"""Threads that fetch: daemons, so that a store that does not answer never keeps a process from ending."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class FetchThreads:
    """Calls functions in threads, in the order given; threads are started as they are needed.

    Args:
        most: Number of threads.
        name: What they are called.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._started = 0
        self._lock = threading.Lock()

    def submit(self, call: Callable[[], Any]) -> "Future[Any]":
        """Call it soon; the future has what it returns or raises."""
        future: Future[Any] = Future()
        self._tasks.put((future, call))
        with self._lock:
            if self._started < self._most:
                self._started += 1
                threading.Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            future, call = self._tasks.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - belongs to whoever waits for the future
                future.set_exception(error)
            else:
                future.set_result(result)
            # Else the thread would hold the last result, megabytes of it, until the next task comes.
            del future, call
            result = None
