"""Files that are only read, whatever their bytes come from."""

from __future__ import annotations

import io
from abc import abstractmethod
from typing import Any


class ReadOnlyFile(io.RawIOBase):
    """A file that knows its place; a subclass knows what is there.

    Args:
        nbytes: How large it is; None if that shows at its end only, so that no place is counted from there.
    """

    def __init__(self, nbytes: int | None) -> None:
        super().__init__()
        self._nbytes, self._position = nbytes, 0

    @abstractmethod
    def _piece(self, position: int, count: int) -> bytes | bytearray | memoryview:
        """Some bytes from a place on, no more than `count`; none at the end."""

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The place in the file."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place in the file; nothing is read."""
        if whence == io.SEEK_END and self._nbytes is None:
            raise io.UnsupportedOperation("seek from an end that is not known")
        self._position = max(0, offset + (0, self._position, self._nbytes or 0)[whence])
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer."""
        view = memoryview(buffer).cast("B")
        data = self._piece(self._position, len(view))
        view[: len(data)] = data
        self._position += len(data)
        return len(data)
