"""Few large requests out of many small spans: pure functions.

wanted    |--a--|    |--b--|                        |-c-|
requests  |------------------|                      |---|      one read covers a, b and the small gap between them
"""

from collections.abc import Sequence
from dataclasses import dataclass

Key = tuple[int, int, int]
"""A span: shard, offset, number of bytes."""

MAX_GAP = 256 << 10
"""Bytes not wanted that are cheaper to read than another request is to make: one costs about a millisecond of one core
with s3fs, in which a store delivers about as much."""
MAX_REQUEST = 8 << 20
"""Requests of 4 to 8 MB reach the full rate of every client that was measured."""


@dataclass(frozen=True)
class Request:
    """Bytes [start, stop) of a shard's tar, for these spans."""

    shard: int
    start: int
    stop: int
    keys: tuple[Key, ...]


def coalesce(wanted: Sequence[Key], max_gap: int = MAX_GAP, max_request: int = MAX_REQUEST) -> list[Request]:
    """Return the requests that read these spans, that of the span wanted first first.

    Args:
        wanted: Different spans, in the order in which they will be read.
        max_gap: Largest gap to read over.
        max_request: Largest request, unless a single span is larger.

    Example:
        >>> [(r.start, r.stop) for r in coalesce([(0, 900, 100), (0, 0, 100), (0, 120, 80)], max_gap=50)]
        [(900, 1000), (0, 200)]
    """
    requests: list[Request] = []
    run: list[Key] = []
    stop = 0
    for key in sorted(wanted):
        shard, offset, nbytes = key
        if run and (shard != run[0][0] or offset > stop + max_gap or offset + nbytes - run[0][1] > max_request):
            requests.append(_request(run, stop))
            run = []
        stop = max(stop, offset + nbytes) if run else offset + nbytes
        run.append(key)
    if run:
        requests.append(_request(run, stop))
    place = {key: index for index, key in enumerate(wanted)}
    return sorted(requests, key=lambda request: min(place[key] for key in request.keys))


def _request(run: list[Key], stop: int) -> Request:
    return Request(run[0][0], run[0][1], stop, tuple(run))


def pieces(size: int, piece: int = MAX_REQUEST) -> list[tuple[int, int]]:
    """Cut a whole file into ranges to fetch side by side.

    Example:
        >>> pieces(20, 8)
        [(0, 8), (8, 16), (16, 20)]
    """
    return [(start, min(start + piece, size)) for start in range(0, size, piece)]
