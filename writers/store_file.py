"""An object of a store as a seekable file: each read is a ranged request with the store's deadlines and retries."""

from collections import deque
from typing import Any

from uttershard.pipeline.reading.codecs.read_only import ReadOnlyFile
from uttershard.pipeline.remote.store import Store

_KEPT = 4


class StoreFile(ReadOnlyFile):
    """Reads ranges of an object, and keeps the last few: who walks a tar goes on to the next header and comes back.

    Args:
        store: Where it is.
        address: Of the object.
        size: Its bytes.
        ahead: How much is asked for at least, from where a read begins.
    """

    def __init__(self, store: Store, address: str, size: int, ahead: int = 0) -> None:
        super().__init__(size)
        self._store, self._address, self._size, self._ahead = store, address, size, ahead
        self._kept: deque[tuple[int, bytes | bytearray]] = deque(maxlen=_KEPT)

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, but for what is behind the end."""
        view, begin = memoryview(buffer).cast("B"), self._position
        while super().readinto(view[self._position - begin :]):
            pass
        return self._position - begin

    def _piece(self, position: int, count: int) -> memoryview:
        stop = min(self._size, position + count)
        if position >= stop:
            return memoryview(b"")
        start, data = self._range_at(position, stop)
        return memoryview(data)[position - start : stop - start]

    def _range_at(self, position: int, stop: int) -> tuple[int, bytes | bytearray]:
        """Return a range that holds a place, and its start; what is asked for ends where a kept one begins."""
        for start, data in self._kept:
            if start <= position < start + len(data):
                return start, data
        wanted = min(self._size, max(stop, position + self._ahead))
        end = min((start for start, _ in self._kept if position < start), default=wanted)
        self._kept.append((position, self._store.read_range(self._address, position, min(end, wanted), self._size)))
        return self._kept[-1]
