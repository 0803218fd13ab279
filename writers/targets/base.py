"""What a pack job asks of the place that it writes to."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from uttershard.pipeline.errors import ConfigError

from ..progress import Progress

JOB_FOLDER = ".uttershard"
PROBED_FOLDER = f"{JOB_FOLDER}/probed"
"""What is known of audio files before there is a job to go on with; it outlives a job that is forgotten."""


class TakenError(ConfigError):
    """Something is there already that was to be put only if it was not."""


@dataclass(frozen=True)
class Stored:
    """A file that is there."""

    size: int
    tag: str | None = None
    """What the store calls these bytes (ETag); None where there is no such thing."""


@dataclass
class Traffic:
    """What was sent to a store, and how often it was asked."""

    sent_bytes: int = 0
    requests: int = 0
    retries: int = 0

    def add(self, other: "Traffic") -> None:
        """Add what another process has sent."""
        self.sent_bytes += other.sent_bytes
        self.requests += other.requests
        self.retries += other.retries


class Target(Protocol):
    """The files of a dataset in the making, by name; those of the job are below `.uttershard/`.

    Whatever is put is there whole or not at all, and replaces what was there.
    """

    @property
    def address(self) -> str:
        """How workers open it."""
        ...

    @property
    def traffic(self) -> Traffic:
        """What this object has sent; a local folder counts nothing."""
        ...

    def __str__(self) -> str:
        """Return the address, without what may be a credential."""
        ...

    def where(self, name: str) -> str:
        """Return the address of a file, for messages."""
        ...

    def hold(self, has_plan: Callable[[], bool], progress: Progress) -> AbstractContextManager[None]:
        """Hold the job alone; remove what killed processes left unfinished, before and after.

        Args:
            has_plan: Whether there is a job to go on with; a job that never got that far leaves nothing behind.
            progress: Told, by `note`, of what the place can't do.

        Raises:
            ConfigError: Another process drives the job; the message names its host and pid.
        """
        ...

    def check_held(self) -> None:
        """Look whether the job is still held alone.

        Raises:
            ConfigError: Another process has taken it over.
        """
        ...

    def listing(self) -> Mapping[str, Stored] | None:
        """List what is there; None where workers look for themselves at no cost."""
        ...

    def create(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Open a file that becomes `name` when the block ends, and vanishes if it fails."""
        ...

    def put(self, name: str, data: bytes, *, only_new: bool = False) -> None:
        """Put a small file.

        Raises:
            TakenError: `only_new`, and another file is there; not all stores can tell.
        """
        ...

    def read(self, name: str) -> bytes | None:
        """Return a small file, None if it is not there."""
        ...

    def open(self, name: str, stored: Stored | None) -> BinaryIO:
        """Open a file for reading parts of it; `stored` is its entry of the listing."""
        ...

    def names(self) -> Sequence[str]:
        """Return the names of all files but the lock, folders by their own name."""
        ...

    def size(self, name: str) -> int | None:
        """Return the size of a file, None if it is not there."""
        ...

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""
        ...

    def tag(self, name: str) -> str | None:
        """Return the tag of a file that this object has put there."""
        ...

    def is_intact(self, name: str, nbytes: int, digest: str, tag: str | None, stored: Stored | None) -> bool:
        """Say whether a file has the bytes it had when it was finished.

        Args:
            name: The file.
            nbytes: Its size.
            digest: Its digest.
            tag: What `tag` said then.
            stored: Its entry of the listing, where there is a listing.
        """
        ...

    def forget_job(self) -> None:
        """Remove all that is known of the job but the lock and PROBED_FOLDER, what makes it resumable first."""
        ...

    def remove_job(self) -> None:
        """Remove all that is known of the job; the lock too, where it is a file of the job's."""
        ...
