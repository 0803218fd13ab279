"""What is asked of a store, one attempt at a time; all raise nothing but AttemptErrors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from uttershard.pipeline.remote.faults import AttemptError
from uttershard.pipeline.remote.transfer import ObjectInfo

from .base import Stored


class ConditionError(AttemptError):
    """The object is not what it had to be for the put."""


class GoneUploadError(AttemptError):
    """The store knows no such upload: it was completed or aborted."""


class UnsupportedError(AttemptError):
    """The store can't do this at all."""


class FullError(AttemptError):
    """There is no room, or the quota is used up."""


ABSENT = ""
"""In place of an ETag: there must be no object."""


@dataclass(frozen=True)
class UploadId:
    """An upload in parts that has begun."""

    path: str
    number: str


class Objects(Protocol):
    """Writes, lists and removes objects by path (`bucket/prefix/name`), each call within so many seconds."""

    filesystem: Any
    """The file system of fsspec that it uses."""
    contacted: bool
    """Whether the store has ever answered."""
    credentials_hint: str
    """Where credentials are looked for, for the message of a refused request."""

    async def put(self, path: str, data: bytes, seconds: float, before: str | None = None) -> str | None:
        """Put an object and return its ETag.

        Args:
            path: The object.
            data: All of it.
            seconds: Limit.
            before: The ETag that it must have now, or ABSENT; None for whatever is there.
        """

    async def head(self, path: str, stall: float) -> ObjectInfo:
        """Ask for size and ETag of an object."""

    async def delete(self, path: str, seconds: float) -> None:
        """Remove an object, if it is there."""

    async def list(self, folder: str, seconds: float) -> Mapping[str, Stored]:
        """Return all objects below a folder, by path."""


@runtime_checkable
class FileObjects(Objects, Protocol):
    """A store that takes whole files in one call."""

    async def put_file(self, path: str, file: str, seconds: float) -> None:
        """Put an object from a local file."""


@runtime_checkable
class PartsObjects(Objects, Protocol):
    """A store that takes objects in parts."""

    async def begin(self, path: str, seconds: float) -> UploadId:
        """Begin an upload in parts."""

    async def send(self, upload: UploadId, part: int, data: bytes, seconds: float) -> str:
        """Send a part (numbered from 1) and return its ETag."""

    async def complete(self, upload: UploadId, etags: Sequence[str], seconds: float) -> str | None:
        """Make the object of the parts and return its ETag."""

    async def abort(self, upload: UploadId, seconds: float) -> None:
        """Give an upload up."""

    async def uploads(self, folder: str, seconds: float) -> Sequence[UploadId]:
        """Return the uploads below a folder that were neither completed nor aborted."""
