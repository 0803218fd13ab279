"""A file on its way into a store, in parts while it is written; no more than a few parts are in memory."""

import contextlib
import hashlib
import io
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from uttershard.pipeline.errors import ConfigError, StorageError

from .attempts import Asking
from .objects import FileObjects, GoneUploadError, Objects, PartsObjects, UploadId

PART_BYTES = 8 << 20
"""Equal for all parts, which some stores want; 10,000 of them are the most that S3 has, so 84 GB the largest shard."""

IN_FLIGHT = 3
_MOST_PARTS = 10_000


class PartsUpload(io.RawIOBase):
    """Sends what is written; `finish` makes it an object, `abort` leaves nothing.

    Args:
        asking: Makes the requests.
        objects: The store.
        path: Of the object.
        shown: Its address, for messages.
    """

    def __init__(self, asking: Asking, objects: PartsObjects, path: str, shown: str) -> None:
        super().__init__()
        self._asking, self._objects, self._path, self._shown = asking, objects, path, shown
        self._buffer = bytearray()
        self._nbytes = 0
        self._upload: UploadId | None = None
        self._parts: list[Future[str]] = []
        self._digests: list[bytes] = []
        self._pool = ThreadPoolExecutor(IN_FLIGHT)
        self._is_over = False

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return how much was written."""
        return self._nbytes

    def write(self, data: "bytes | bytearray | memoryview") -> int:  # type: ignore[override]
        """Take bytes; waits while too many parts are on their way.

        Raises:
            StorageError: A part could not be sent.
        """
        view = memoryview(data).cast("B")
        count = len(view)
        while len(view):
            room = PART_BYTES - len(self._buffer)
            self._buffer += view[:room]
            view = view[room:]
            if len(self._buffer) == PART_BYTES:
                self._send()
        self._nbytes += count
        return count

    def finish(self) -> str | None:
        """Make the object, wait until it is there, and return its ETag."""
        if self._upload is None:
            data = bytes(self._buffer)
            return self._asking.ask(
                f"{self._shown}: writing",
                lambda seconds: self._objects.put(self._path, data, seconds),
                nbytes=len(data),
            )
        if self._buffer:
            self._send()
        upload, etags = self._upload, [part.result() for part in self._parts]
        try:
            return self._asking.ask(
                f"{self._shown}: completing the upload",
                lambda seconds: self._objects.complete(upload, etags, seconds),
            )
        except GoneUploadError as error:
            return self._look_whether_completed(error)

    def abort(self) -> None:
        """Give it up; what can't be removed now is found by the next run of the job."""
        self._is_over = True
        # A part that came behind the abort would stay.
        self._pool.shutdown(cancel_futures=True)
        if (upload := self._upload) is not None:
            with contextlib.suppress(StorageError, ConfigError, GoneUploadError):
                self._asking.ask(
                    f"{self._shown}: aborting the upload",
                    lambda seconds: self._objects.abort(upload, seconds),
                    is_over=lambda: True,
                )

    def close(self) -> None:
        """Let go of the threads."""
        self._pool.shutdown()
        super().close()

    def _send(self) -> None:
        """Send the buffer as the next part."""
        if self._upload is None:
            self._upload = self._asking.ask(
                f"{self._shown}: beginning the upload", lambda seconds: self._objects.begin(self._path, seconds)
            )
        number, upload, data = len(self._parts) + 1, self._upload, bytes(self._buffer)
        if number > _MOST_PARTS:
            most = _MOST_PARTS * PART_BYTES
            raise ConfigError(f"{self._shown}: a shard has {most:,} bytes at most: pack into more of them")
        self._buffer.clear()
        self._digests.append(hashlib.md5(data, usedforsecurity=False).digest())
        if number > IN_FLIGHT:
            self._parts[number - IN_FLIGHT - 1].result()
        self._parts.append(self._pool.submit(self._send_part, upload, number, data))

    def _send_part(self, upload: UploadId, number: int, data: bytes) -> str:
        what = f"{self._shown}: sending part {number}"
        try:
            return self._asking.ask(
                what,
                lambda seconds: self._objects.send(upload, number, data, seconds),
                nbytes=len(data),
                is_over=lambda: self._is_over,
            )
        except GoneUploadError as error:
            raise StorageError(f"{what}: the upload was aborted by somebody else ({error})") from error

    def _look_whether_completed(self, error: GoneUploadError) -> str:
        """The answer to an earlier attempt may have been lost: then the object has the ETag of these parts."""
        whole = hashlib.md5(b"".join(self._digests), usedforsecurity=False).hexdigest()
        expected = f'"{whole}-{len(self._digests)}"'
        with contextlib.suppress(ConfigError):
            found = self._asking.ask(
                f"{self._shown}: looking it up", lambda seconds: self._objects.head(self._path, seconds)
            )
            if found.etag == expected:
                return expected
        raise StorageError(f"{self._shown}: the upload was aborted by somebody else ({error})") from error


class FileUpload:
    """Writes to a temporary file, which `finish` puts into the store; methods as of PartsUpload."""

    def __init__(self, asking: Asking, objects: FileObjects, path: str, shown: str) -> None:
        self._asking, self._objects, self._path, self._shown = asking, objects, path, shown
        self._file = tempfile.NamedTemporaryFile(prefix="uttershard-")  # noqa: SIM115 (closed by `close`)
        self.write, self.tell = self._file.write, self._file.tell
        self.closed = False

    def flush(self) -> None:
        """Write what is buffered."""
        self._file.flush()

    def finish(self) -> None:
        """Put the file."""
        self.flush()
        self._asking.ask(
            f"{self._shown}: writing",
            lambda seconds: self._objects.put_file(self._path, self._file.name, seconds),
            nbytes=self.tell(),
        )

    def abort(self) -> None:
        """Do nothing: nothing has reached the store."""

    def close(self) -> None:
        """Remove the file."""
        self._file.close()


@contextlib.contextmanager
def open_upload(asking: Asking, objects: Objects, path: str, shown: str) -> Iterator[PartsUpload | FileUpload]:
    """Open an upload that has to be finished in the block; if it is not, it leaves nothing."""
    upload: PartsUpload | FileUpload
    if isinstance(objects, PartsObjects):
        upload = PartsUpload(asking, objects, path, shown)
    elif isinstance(objects, FileObjects):
        upload = FileUpload(asking, objects, path, shown)
    else:
        raise TypeError(f"{type(objects).__name__} takes neither files nor parts")
    try:
        yield upload
    except BaseException:
        upload.abort()
        raise
    finally:
        upload.close()
