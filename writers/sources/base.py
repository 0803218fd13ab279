"""What a source of utterances is, and what all sources share: finding audio files, reading numbers."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Protocol

from uttershard.pipeline.dataset.files import local_path
from uttershard.pipeline.errors import DataError

from ..corpus_path import CorpusPath, VirtualPath, is_within_archive
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


def is_file_called(address: str, *endings: str) -> bool:
    """Say whether the address is a file with one of these endings (lower case); a remote one is judged by its name."""
    if not address.lower().endswith(endings):
        return False
    path = local_path(address)
    return path is None or Path(path).is_file() or is_within_archive(address)


def may_be_corpus(address: str) -> bool:
    """Say whether an address is there to be looked into: a local folder, file or archive, which costs little."""
    path = local_path(address)
    return path is not None and (os.path.exists(path) or is_within_archive(address))  # noqa: PTH110


class LocatorError(DataError):
    """An audio file that a corpus names is nowhere to be found; the message says where it was looked for."""


def locate(path: str, folder: CorpusPath, *, also: Sequence[str] = ()) -> str:
    """Turn an audio file's name, as a corpus writes it, into a path or an address that opens anywhere.

    A relative name is looked for in the corpus' own folder first, so that a corpus can be moved, then in the
    working directory, which is what Kaldi does, then in the folders of `also`.

    Raises:
        LocatorError: It is in none of them.
    """
    local = local_path(path)
    if local is None or local.startswith("/"):
        return path if local is None else local
    if isinstance(folder, VirtualPath):
        uri = folder.files.uri((folder / local).inner)
        if uri is None:
            raise LocatorError(f"the audio file does not exist (looked for {folder / local})")
        return uri
    # Strings, since a million Path objects take ten times as long as what is asked of them.
    name = local.removeprefix("./")
    candidates = [f"{place}/{name}" for place in (folder, os.getcwd(), *also)]  # noqa: PTH109
    for candidate in candidates:
        if os.path.exists(candidate):  # noqa: PTH110
            return candidate
    looked = " and ".join(dict.fromkeys(candidates))
    raise LocatorError(f"the audio file does not exist (looked for {looked})")


def parse_seconds(text: str) -> float | None:
    """Read a finite number of seconds, or return None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
