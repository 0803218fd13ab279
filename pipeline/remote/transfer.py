"""A byte range on its way: what has arrived, and where the next attempt goes on."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from .faults import ReplacedError, TransientError

OTHER_ETAG = "the object was replaced while it was being read (its ETag changed)"


Chunks = list[memoryview]
"""Consecutive bytes as they came. Never put together as a whole: that copy costs as much as a third of the transfer."""


@dataclass
class Transfer:
    """One range of an object; attempts append to `chunks` until it is complete.

    Attributes:
        path: The object, as the client's file system names it.
        start: First byte.
        stop: End, exclusive; None for the end of the object.
        etag: What the object must be (pinned by an earlier answer); None for whatever it is.
        size: Size of the whole object; None until an answer says it.
        chunks: What has arrived.
        received: Bytes of it.
    """

    path: str
    start: int = 0
    stop: int | None = None
    etag: str | None = None
    size: int | None = None
    chunks: Chunks = field(default_factory=list)
    received: int = 0

    @property
    def position(self) -> int:
        """The next byte that is wanted."""
        return self.start + self.received

    @property
    def range_header(self) -> str | None:
        """Value of the `Range` header for what is missing; None for a whole object."""
        if self.position == 0 and self.stop is None:
            return None
        return f"bytes={self.position}-{'' if self.stop is None else self.stop - 1}"

    def answered(self, *, size: int | None, etag: str | None) -> None:
        """Take note of an answer's headers, before its body is read.

        Raises:
            ReplacedError: It is about another object than the one pinned.
        """
        if etag is not None:
            if self.etag is not None and etag != self.etag:
                raise ReplacedError(OTHER_ETAG)
            self.etag = etag
        if size is not None:
            if self.size is not None and size != self.size:
                what = "it has been cut" if size < self.size else "it was replaced or appended to"
                raise ReplacedError(f"{size} bytes, the manifest says {self.size}: {what}")
            self.size = size

    def add(self, chunk: bytes | memoryview) -> None:
        """Append the next bytes of the body."""
        view = memoryview(chunk)
        self.chunks.append(view)
        self.received += len(view)

    def check_complete(self) -> None:
        """Raise TransientError if the body ended early."""
        stop = self.size if self.stop is None else self.stop
        if stop is not None and self.position < stop:
            raise TransientError(f"the body ended {stop - self.position} bytes early")
        if stop is not None and self.position > stop:
            raise ReplacedError(f"{self.position - stop} bytes more than asked for")


def cut(chunks: Sequence[memoryview], start: int, stop: int) -> memoryview:
    """Return bytes [start, stop) of chunks; a view where they lie in one, else a copy.

    Example:
        >>> chunks = [memoryview(b"abc"), memoryview(b"def")]
        >>> bytes(cut(chunks, 1, 3)), bytes(cut(chunks, 2, 5)), bytes(cut(chunks, 0, 6))
        (b'bc', b'cde', b'abcdef')
    """
    found, begin = [], 0
    for chunk in chunks:
        end = begin + len(chunk)
        if end > start and begin < stop:
            found.append(chunk[max(0, start - begin) : stop - begin])
        begin = end
    return found[0].toreadonly() if len(found) == 1 else memoryview(b"".join(found))


@dataclass(frozen=True)
class ObjectInfo:
    """What a store says of an object."""

    size: int
    etag: str | None


def size_in_content_range(value: str | None) -> int | None:
    """Return the size of the whole object out of a `Content-Range` header.

    Example:
        >>> size_in_content_range("bytes 0-99/1234"), size_in_content_range("bytes 0-99/*"), size_in_content_range(None)
        (1234, None, None)
    """
    size = (value or "").rpartition("/")[2]
    return int(size) if size.isdecimal() else None
