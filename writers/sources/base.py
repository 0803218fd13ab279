"""What a source of utterances is, and what all sources share: finding audio files, reading numbers."""

import math
from pathlib import Path
from typing import ClassVar, Protocol

from uttershard.pipeline.dataset.files import local_path
from uttershard.pipeline.errors import ConfigError, DataError

from ..listing import Listing


class Source(Protocol):
    """Lists the utterances of a corpus. Listing opens text files only, never audio.

    An implementation is a frozen dataclass whose first field is the `address`; its other fields are its options,
    given by name (`source_options`), all strings or booleans. It registers itself under `name` with `register`.
    """

    name: ClassVar[str]

    @classmethod
    def matches(cls, address: str) -> bool:
        """Say whether the address is surely a corpus of this kind, judged by names and not by reading it."""
        ...

    def list_utterances(self) -> Listing:
        """List the corpus.

        Raises:
            ConfigError: An option does not fit the corpus.
            DataError: The corpus is not there or can't be read at all. A bad line is not that: it is a Refusal.
        """
        ...


def local_path_of(address: str) -> Path:
    """Return the absolute path of a corpus.

    Raises:
        ConfigError: It is not on a local file system.
    """
    path = local_path(address)
    if path is None:
        raise ConfigError(
            f"{address}: a corpus is listed from a local file system; copy its manifest here "
            "(the audio that it names may be anywhere)"
        )
    return Path(path).absolute()


def is_file_called(address: str, *endings: str) -> bool:
    """Say whether the address is a local file with one of these endings (lower case)."""
    path = local_path(address)
    return path is not None and path.lower().endswith(endings) and Path(path).is_file()


class LocatorError(DataError):
    """An audio file that a corpus names is nowhere to be found; the message says where it was looked for."""


def locate(path: str, folder: Path) -> str:
    """Turn an audio file's name, as a corpus writes it, into a path or an address that opens anywhere.

    A relative name is looked for in the corpus' own folder first, so that a corpus can be moved, then in the
    working directory, which is what Kaldi does.

    Raises:
        LocatorError: It is in neither.
    """
    local = local_path(path)
    if local is None or local.startswith("/"):
        return path if local is None else local
    candidates = (folder / local, Path.cwd() / local)
    for candidate in candidates:
        if candidate.exists():
            return str(candidate)
    looked = " and ".join(dict.fromkeys(map(str, candidates)))
    raise LocatorError(f"the audio file does not exist (looked for {looked})")


def parse_seconds(text: str) -> float | None:
    """Read a finite number of seconds, or return None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
