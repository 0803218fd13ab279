"""Ports for servers that can't be told to choose their own.

Below 32,768, from where on Linux takes those of outgoing connections: a port that is free now may else be gone a moment
later. Tests that run side by side have ports of their own, and no port is given out again soon.
"""

import itertools
import os
import random
import socket
from collections.abc import Iterator

_FIRST, _LAST = 10_000, 20_000
_SIDE_BY_SIDE = 16
"""Processes that run tests, at most; a port divided by it leaves the number of the process."""


def free_ports(count: int, *, above: int = 0) -> list[int]:
    """Return ports that are free; those so much above each are free, too."""
    free = (port for port in _candidates if _is_free(port) and (not above or _is_free(port + above)))
    return list(itertools.islice(free, count))


def _all_of_this_process() -> Iterator[int]:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _SIDE_BY_SIDE
    ports = list(range(_FIRST + worker, _LAST, _SIDE_BY_SIDE))
    begin = random.randrange(len(ports))  # other runs of the tests have the same ones
    return itertools.cycle(ports[begin:] + ports[:begin])


def _is_free(port: int) -> bool:
    with socket.socket() as each:
        try:
            each.bind(("", port))
        except OSError:
            return False
    return True


_candidates = _all_of_this_process()
