"""Starting a cluster before it is needed, or when it is."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache

from .tasks import Cluster

Start = Callable[[], contextlib.AbstractContextManager[Cluster]]


@contextlib.contextmanager
def started_ahead(start: Start) -> Iterator[Callable[[], Cluster]]:
    """Start a cluster beside what the block does; yields what waits for it, and raises why there is none.

    A block that ends before it is there waits, too, so that it can be ended.
    """
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(1, "start-cluster") as thread:
        starting = thread.submit(lambda: stack.enter_context(start()))
        try:
            yield starting.result
        finally:
            # Before its thread is joined: Python (up to 3.12) takes one whose `join` was interrupted for one that has
            # ended, so that Ctrl-C again would leave the cluster behind.
            wait([starting])


@contextlib.contextmanager
def started_when_needed(start: Start) -> Iterator[Callable[[], Cluster]]:
    """Yield what starts a cluster when it is first called."""
    with contextlib.ExitStack() as stack:
        yield lru_cache(maxsize=1)(lambda: stack.enter_context(start()))
