"""Writing a large file that is forced to disk while it is written."""

import io
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_SYNC_BYTES = 16 << 20
"""Forced to disk at a time: some hundredths of a second for a disk, and few enough that the last sync is short."""


class SyncedFile(io.FileIO):
    """A new file whose bytes go to disk behind its writer's back.

    The kernel would begin with that seconds later, so that `fsync` at the end of a shard waited for all of it while the
    processor idled: half of the time of packing files as they are.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "xb")
        self._thread = ThreadPoolExecutor(1, "sync")
        self._syncing: Future[None] | None = None
        self._written = 0

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write, and begin to force to disk what has come together.

        Raises:
            OSError: It could not be written; or the disk refused what was written before.
        """
        count = super().write(data)
        self._written += count
        if self._written >= _SYNC_BYTES and (self._syncing is None or self._syncing.done()):
            self._wait()
            self._written = 0
            self._syncing = self._thread.submit(os.fdatasync, self.fileno())
        return count

    def sync(self) -> None:
        """Force all to disk.

        Raises:
            OSError: The disk refused it, now or earlier: the kernel tells each failure only once.
        """
        self._wait()
        os.fsync(self.fileno())

    def close(self) -> None:
        """Close the file, once nobody uses its descriptor any more."""
        self._thread.shutdown()
        super().close()

    def _wait(self) -> None:
        if self._syncing is not None:
            self._syncing.result()
