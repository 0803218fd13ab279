"""A folder of audio files, each with a transcript `.txt` beside it (or none); the id is the path without its ending."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from uttershard.pipeline.dataset.files import local_path
from uttershard.pipeline.errors import DataError, StorageError
from uttershard.pipeline.reading.codecs import AUDIO_EXTENSIONS

from ..listing import Listing, ListingBuilder
from .base import local_path_of
from .lines import NotUtf8Error, decode


@dataclass(frozen=True)
class FolderSource:
    """All audio files below a folder; hidden ones (macOS leaves `._name.wav` about) are not looked at.

    Example:
        >>> FolderSource("recordings").list_utterances()  # doctest: +SKIP
    """

    address: str

    name: ClassVar[str] = "folder"

    @classmethod
    def matches(cls, address: str) -> bool:
        """Whether it is a folder with an audio file somewhere below it."""
        path = local_path(address)
        return path is not None and Path(path).is_dir() and next(_audio_files(Path(path)), None) is not None

    def list_utterances(self) -> Listing:
        """List the audio files in the order of their paths."""
        root = local_path_of(self.address)
        if not root.is_dir():
            raise DataError(f"{root}: not a folder")
        builder = ListingBuilder()
        for path in _audio_files(root):
            relative = path.relative_to(root)
            key, origin = str(relative.with_suffix("")), str(relative)
            try:
                text = _transcript(path.with_suffix(".txt"))
            except NotUtf8Error as error:
                builder.refuse(key, str(relative.with_suffix(".txt")), str(error))
                continue
            builder.add(key, str(path), origin=origin, text=text)
        endings = ", ".join(sorted(AUDIO_EXTENSIONS))
        return builder.finish(str(root), f"{root} and the folders below it (files ending in {endings})")


def _audio_files(root: Path) -> Iterator[Path]:
    """Yield audio files, sorted; links to folders are followed, a link into a loop only once."""
    visited: set[str] = set()
    for folder, folders, files in os.walk(root, followlinks=True, onerror=_raise):
        real = os.path.realpath(folder)
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith(".") and Path(name).suffix.lower() in AUDIO_EXTENSIONS:
                yield Path(folder, name)


def _transcript(path: Path) -> str | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path}: can't be read ({error.strerror or error})") from error
    return decode(data.removeprefix(b"\xef\xbb\xbf")).strip()


def _raise(error: OSError) -> None:
    raise StorageError(f"{error.filename}: can't be read ({error.strerror or error})") from error
