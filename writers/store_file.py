"""An object of a store as a seekable file: each read is a ranged request with the store's deadlines and retries."""

import io

from uttershard.pipeline.remote.store import Store


class StoreFile(io.RawIOBase):
    """Reads ranges of an object.

    Args:
        store: Where it is.
        address: Of the object.
        size: Its bytes.
    """

    def __init__(self, store: Store, address: str, size: int) -> None:
        super().__init__()
        self._store, self._address, self._size, self._position = store, address, size, 0

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
        """Read into a buffer with one request."""
        view = memoryview(buffer).cast("B")
        stop = min(self._size, self._position + len(view))
        count = max(0, stop - self._position)
        if count:
            view[:count] = self._store.read_range(self._address, self._position, stop, self._size)
        self._position += count
        return count
