"""A clock for Dask that does not jump. Also preloaded by local workers.

Dask's senders and Tornado's timers wait for a time of day: a clock that is set back an hour stops them for one.
"""

import time
from typing import Any

from distributed import batched
from tornado.ioloop import IOLoop

_SINCE = time.time() - time.monotonic()


def steady_time(*_: Any) -> float:
    """Return the time of day, as it has gone on since this was imported, whatever was done to the clock."""
    return _SINCE + time.monotonic()


def use_steady_clock() -> None:
    """Have Dask go by it in this process; it gives what `time.time` does, so what waits already need not know."""
    IOLoop.time = steady_time  # type: ignore[method-assign, assignment]
    batched.time = steady_time  # type: ignore[attr-defined]


def dask_setup(worker: Any) -> None:
    """Use it on a worker (called by Dask when a worker starts)."""
    use_steady_clock()
