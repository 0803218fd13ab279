"""Preloaded by local workers: Ctrl-C in a terminal reaches them too, but it is the client that ends them, in order."""

import signal
from typing import Any


def dask_setup(worker: Any) -> None:
    """Ignore SIGINT (called by Dask when a worker starts)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
