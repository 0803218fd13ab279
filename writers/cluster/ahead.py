"""Starting a cluster before it is needed, or when it is."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from functools import lru_cache
from threading import Event

from .interrupts import kept_interrupts
from .tasks import Cluster

Start = Callable[[], contextlib.AbstractContextManager[Cluster]]

_HEAD_SECONDS = 0.02
"""What the block does first has so much of a start: a corpus that is empty is found out in a few milliseconds, and is
not to wait for workers that start, and end again, for over a second."""


@contextlib.contextmanager
def started_ahead(start: Start) -> Iterator[Callable[[], Cluster]]:
    """Start a cluster beside what the block does; yields what waits for it, and raises why there is none.

    A block that ends before it is there waits, too, so that it can be ended; one that ends at once has none started.
    """
    asked, over = Event(), Event()

    with kept_interrupts(), contextlib.ExitStack() as stack, ThreadPoolExecutor(1, "start-cluster") as thread:

        def begin() -> Cluster:
            asked.wait(_HEAD_SECONDS)
            if over.is_set():
                raise CancelledError
            return stack.enter_context(start())

        starting = thread.submit(begin)

        def cluster() -> Cluster:
            asked.set()
            return starting.result()

        try:
            yield cluster
        finally:
            over.set()
            asked.set()
            # Before its thread is joined: Python (up to 3.12) takes one whose `join` was interrupted for one that has
            # ended, so that Ctrl-C again would leave the cluster behind.
            wait([starting])


@contextlib.contextmanager
def started_when_needed(start: Start) -> Iterator[Callable[[], Cluster]]:
    """Yield what starts a cluster when it is first called."""
    with kept_interrupts(), contextlib.ExitStack() as stack:
        yield lru_cache(maxsize=1)(lambda: stack.enter_context(start()))
