"""An object of a store as a seekable file: each read is a ranged request with the store's deadlines and retries."""

import io
from collections import deque

from uttershard.pipeline.remote.store import Store

_KEPT = 4


class StoreFile(io.RawIOBase):
    """Reads ranges of an object, and keeps the last few: who walks a tar goes on to the next header and comes back.

    Args:
        store: Where it is.
        address: Of the object.
        size: Its bytes.
        ahead: How much is asked for at least, from where a read begins.
    """

    def __init__(self, store: Store, address: str, size: int, ahead: int = 0) -> None:
        super().__init__()
        self._store, self._address, self._size, self._ahead, self._position = store, address, size, ahead, 0
        self._kept: deque[tuple[int, bytes | bytearray]] = deque(maxlen=_KEPT)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place; nothing is read."""
        self._position = max(0, offset + (0, self._position, self._size)[whence])
        return self._position

    def tell(self) -> int:
        """Return the place."""
        return self._position

    def readinto(self, buffer: "memoryview | bytearray") -> int:  # type: ignore[override]
        """Fill a buffer, but for what is behind the end."""
        view = memoryview(buffer).cast("B")
        begin, stop = self._position, max(self._position, min(self._size, self._position + len(view)))
        while self._position < stop:
            start, data = self._range_at(self._position, stop)
            at = self._position - start
            count = min(len(data) - at, stop - self._position)
            view[self._position - begin :][:count] = data[at : at + count]
            self._position += count
        return stop - begin

    def _range_at(self, position: int, stop: int) -> tuple[int, bytes | bytearray]:
        """Return a range that holds a place, and its start; what is asked for ends where a kept one begins."""
        for start, data in self._kept:
            if start <= position < start + len(data):
                return start, data
        wanted = min(self._size, max(stop, position + self._ahead))
        end = min((start for start, _ in self._kept if position < start), default=wanted)
        self._kept.append((position, self._store.read_range(self._address, position, min(end, wanted), self._size)))
        return self._kept[-1]
