"""Fetch announced spans ahead of the decoders, in few requests, within a budget of bytes.

announce --> queue --(a group at a time, when there is room for all of it)--> requests --> take

Groups, rather than each span as soon as there is room, are what gives coalescing something to join.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from ..errors import StorageError
from ..remote.transfer import Chunks, cut
from .coalesce import Key, Request, coalesce
from .threads import FetchThreads

REQUESTS_IN_FLIGHT = 16
"""Of each process; hides 30 ms of latency at 8 MB a request (400 MB/s and more)."""


@dataclass
class _Piece:
    """One request on its way, or arrived."""

    request: Request
    data: "Future[Chunks]"
    untaken: int

    @property
    def nbytes(self) -> int:
        return self.request.stop - self.request.start


class Prefetcher:
    """Fetches spans of remote tars. Of one process.

    Args:
        fetch: Returns bytes [start, stop) of a shard's tar.
        budget: Bytes that are on their way or wait to be taken, at most; what is asked for without having been
            announced in time comes on top.
        patience: Seconds to wait for one span; `fetch` gives up earlier, so this is for a store of its own trouble.
    """

    def __init__(self, fetch: Callable[[int, int, int], Chunks], budget: int, patience: float) -> None:
        self._fetch = fetch
        self._budget = budget
        self._patience = patience
        self._threads = FetchThreads(REQUESTS_IN_FLIGHT, "uttershard-fetch")
        self._lock = threading.Lock()
        self._queue: deque[dict[Key, None]] = deque()
        self._pieces: dict[Key, _Piece] = {}
        self._held = 0

    def announce(self, keys: Sequence[Key]) -> None:
        """Fetch these spans together when there is room; they will be taken in about this order."""
        with self._lock:
            self._queue.append({key: None for key in keys if key not in self._pieces})
            self._start_groups()

    def take(self, keys: Sequence[Key]) -> list[memoryview]:
        """Return the bytes of these spans; waits for them."""
        with self._lock:
            missing = [key for key in dict.fromkeys(keys) if key not in self._pieces]
            self._unqueue(missing)
            self._start(missing)
            taken = {key: self._pieces.pop(key) for key in dict.fromkeys(keys)}
            for piece in taken.values():
                self._release(piece)
            self._start_groups()
        return [self._view(taken[key], key) for key in keys]

    def drop(self, keys: Sequence[Key]) -> None:
        """Forget these spans: they were read from elsewhere."""
        with self._lock:
            self._unqueue(keys)
            for key in keys:
                if (piece := self._pieces.pop(key, None)) is not None:
                    self._release(piece)
            self._start_groups()

    def forget(self) -> None:
        """Drop what was announced and not taken."""
        with self._lock:
            for piece in self._pieces.values():
                if piece.untaken == len(piece.request.keys):  # else somebody waits for it
                    piece.data.cancel()
            self._queue.clear()
            self._pieces.clear()
            self._held = 0

    def _release(self, piece: _Piece) -> None:
        piece.untaken -= 1
        if not piece.untaken:
            self._held -= piece.nbytes

    def _unqueue(self, keys: Sequence[Key]) -> None:
        for group in self._queue:
            for key in keys:
                group.pop(key, None)

    def _start_groups(self) -> None:
        while self._queue:
            group = self._queue[0]
            # An utterance that comes twice is in two groups, and may have been started with the other one.
            for key in [key for key in group if key in self._pieces]:
                del group[key]
            if self._held + sum(key[2] for key in group) <= self._budget:
                self._start(list(self._queue.popleft()))
                continue
            if self._held:
                return
            self._start_some(group)

    def _start_some(self, group: dict[Key, None]) -> None:
        """Start as much as there is room for, in order, and one span at least."""
        chosen, total = [], 0
        for key in group:
            if total and total + key[2] > self._budget:
                break
            total += key[2]
            chosen.append(key)
        for key in chosen:
            del group[key]
        self._start(chosen)

    def _start(self, keys: Sequence[Key]) -> None:
        for request in coalesce(keys):
            data = self._threads.submit(partial(self._fetch, request.shard, request.start, request.stop))
            piece = _Piece(request, data, len(request.keys))
            self._held += piece.nbytes
            self._pieces.update((key, piece) for key in request.keys)

    def _view(self, piece: _Piece, key: Key) -> memoryview:
        try:
            chunks = piece.data.result(self._patience)
        except TimeoutError:
            raise StorageError(
                f"bytes {piece.request.start}-{piece.request.stop - 1} of shard {piece.request.shard} did not come "
                f"within {self._patience:g} s: too many requests wait for a store that does not answer"
            ) from None
        begin = key[1] - piece.request.start
        return cut(chunks, begin, begin + key[2])
