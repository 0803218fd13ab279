"""A folder of audio files, each with a transcript `.txt` beside it (or none); the id is the path without its ending.

A `.txt` without audio is refused, for it may be what is left of an utterance; readmes and licenses are passed by.
"""

import posixpath
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from uttershard.pipeline.dataset.files import local_path
from uttershard.pipeline.errors import ConfigError, DataError
from uttershard.pipeline.reading.codecs import AUDIO_EXTENSIONS

from ..archives import is_archive
from ..corpus_path import CorpusPath, VirtualPath, corpus_path, files_below, read_path, refused_members, root_of, uri_of
from ..listing import Listing, ListingBuilder
from .lines import NotUtf8Error, decode

_TABLES = (".csv", ".tsv", ".jsonl", ".jsonl.gz", ".parquet", ".trans.txt", "wav.scp", "transcripts.txt")
"""Endings of what may hold the transcripts. A corpus packed without them is noticed when it is trained on.

They are looked for in all folders: what was unpacked into a folder of its own (`data/LibriSpeech/train-clean-100`) may
be too deep to be told for what it is.
"""

_NOTES = ("readme", "license", "licence", "copying", "changelog")
"""What a `.txt` that is no transcript begins with."""


@dataclass(frozen=True)
class FolderSource:
    """All audio files below a folder, or in an archive; hidden ones (macOS leaves `._name.wav`) are not looked at.

    Example:
        >>> FolderSource("recordings").list_utterances()  # doctest: +SKIP
    """

    address: str
    tables: str | None = None
    """"ignore": a table or manifest among the audio files is none of their transcripts."""

    name: ClassVar[str] = "folder"

    @classmethod
    def matches(cls, address: str) -> bool:
        """Whether it is a local folder, or an archive, with an audio file somewhere below it."""
        path = local_path(address)
        if path is None or not (Path(path).is_dir() or (is_archive(path) and Path(path).is_file())):
            return False
        root = corpus_path(address)
        # An archive of nothing but refused members is told so, rather than that it is of no known kind.
        return any(map(_is_audio, files_below(root))) or bool(refused_members(root))

    def list_utterances(self) -> Listing:
        """List the audio files in the order of their paths."""
        if self.tables not in (None, "ignore"):
            raise ConfigError(f"tables is {self.tables!r}; it can be left out, or ignore")
        root = corpus_path(self.address)
        if not root.is_dir() and not refused_members(root):
            raise DataError(f"{root}: not a folder")
        builder = ListingBuilder(refused_members(root))
        names = list(files_below(root))
        audio = {name: posixpath.splitext(name)[0] for name in names if _is_audio(name)}
        transcripts = {name[:-4]: name for name in names if name.lower().endswith(".txt")}
        alone = transcripts.keys() - set(audio.values())
        if len(alone) == len(transcripts) and self.tables != "ignore":
            _refuse_tables(root, names, set(audio.values()))
        passed_by = _TABLES if self.tables == "ignore" else ()
        for key in sorted(alone):
            if not (posixpath.basename(key).lower().startswith(_NOTES) or transcripts[key].lower().endswith(passed_by)):
                builder.refuse(key, transcripts[key], "no audio file beside it")
        for relative, key in audio.items():
            try:
                text = _read_text(root / transcripts[key]) if key in transcripts else None
            except NotUtf8Error as error:
                builder.refuse(key, transcripts[key], str(error))
                continue
            # A string, since a million Path objects take their time.
            uri = uri_of(root / relative) if isinstance(root, VirtualPath) else f"{root}/{relative}"
            builder.add(key, uri, origin=relative, text=text)
        endings = ", ".join(sorted(AUDIO_EXTENSIONS))
        return builder.finish(root_of(root), f"{root} and the folders below it (files ending in {endings})")


def _refuse_tables(root: CorpusPath, names: list[str], stems: set[str]) -> None:
    """Refuse a folder with something like a list of transcripts; a table about one audio file is none."""
    tables = [name for name in names if name.lower().endswith(_TABLES) and posixpath.splitext(name)[0] not in stems]
    if not tables:
        return
    table = min(tables, key=lambda name: (name.count("/"), name))
    folder = f", or its folder {(root / table).parent}" if "/" in table else ""
    raise ConfigError(
        f"{root}: no audio file has a .txt beside it, but there is {table}. If it has the transcripts, "
        f"pack {root / table}{folder}; if not, say --option tables=ignore"
    )


def _is_audio(name: str) -> bool:
    return posixpath.splitext(name)[1].lower() in AUDIO_EXTENSIONS


def _read_text(path: CorpusPath) -> str:
    return decode(read_path(path).removeprefix(b"\xef\xbb\xbf")).strip()
