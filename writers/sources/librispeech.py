"""LibriSpeech trees and those of its kind.

    LibriSpeech   <speaker>/<chapter>/<speaker>-<chapter>.trans.txt    lines `<id> <TEXT>`
                  <speaker>/<chapter>/<id>.flac
    MLS           transcripts.txt                                      lines `<id>\\t<text>`
                  audio/<speaker>/<book>/<id>.flac (or .opus)

Ids are `<speaker>-<chapter>-<number>`, in MLS with `_`. Sources: https://www.openslr.org/12, https://www.openslr.org/94
"""

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from uttershard.pipeline.errors import DataError
from uttershard.pipeline.reading.codecs import AUDIO_EXTENSIONS

from ..corpus_path import CorpusPath, VirtualPath, corpus_path, files_below, refused_members, root_of, uri_of
from ..listing import Listing, ListingBuilder, encode_metadata
from .base import may_be_corpus
from .lines import NotUtf8Error, decode, read_lines, show

_ID = re.compile(r"([^-_]+)[-_]([^-_]+)[-_].+")
_TREE = ".trans.txt"
_MLS = "transcripts.txt"
_DEPTHS = (
    "*/*/*.trans.txt",
    "*/*/*/*.trans.txt",
    "*/*/*/*/*.trans.txt",
    "*.trans.txt",
    "*/*.trans.txt",
    "transcripts.txt",
    "*/transcripts.txt",
    "*/*/transcripts.txt",
)


@dataclass(frozen=True)
class LibrispeechSource:
    """An extracted LibriSpeech, one of its parts, or a part of Multilingual LibriSpeech.

    Example:
        >>> LibrispeechSource("LibriSpeech/train-clean-100").list_utterances()  # doctest: +SKIP
    """

    address: str

    name: ClassVar[str] = "librispeech"

    @classmethod
    def matches(cls, address: str) -> bool:
        """Whether it is a folder or an archive with `*.trans.txt` or `transcripts.txt` where they should be."""
        if not may_be_corpus(address):
            return False
        path = corpus_path(address)
        if isinstance(path, Path):
            return path.is_dir() and any(next(path.glob(pattern), None) is not None for pattern in _DEPTHS)
        return any(map(_is_transcript, files_below(path)))

    def list_utterances(self) -> Listing:
        """List what the transcripts list, and refuse audio that none lists."""
        root = corpus_path(self.address)
        if not root.is_dir():
            raise DataError(f"{root}: not a folder")
        return _Tree(root, ListingBuilder(refused_members(root))).list_utterances()


@dataclass
class _Tree:
    root: CorpusPath
    builder: ListingBuilder
    audio: dict[str, str] = field(default_factory=dict)
    """Files that no transcript has listed yet, by their paths without ending."""

    def list_utterances(self) -> Listing:
        transcripts, audio = [], self.audio
        for name in files_below(self.root):
            stem, ending = posixpath.splitext(name)
            if _is_transcript(name):
                transcripts.append(name)
            elif ending.lower() in AUDIO_EXTENSIONS:
                if stem in audio:
                    self.builder.refuse(posixpath.basename(stem), name, f"{audio[stem]} is there, too")
                else:
                    audio[stem] = name
        for transcript in transcripts:
            for key, stem, text, source in self._lines(transcript):
                if stem in audio:
                    self._add(key, audio.pop(stem), text, source)
                else:
                    self.builder.refuse(key, source, f"no audio file {stem}.*, or it is listed twice")
        for stem, name in audio.items():
            self.builder.refuse(posixpath.basename(stem), name, "no line for it in any transcript")
        return self.builder.finish(root_of(self.root), f"{self.root} (*{_TREE}, {_MLS})")

    def _add(self, key: str, name: str, text: str, source: str) -> None:
        parts = _ID.fullmatch(key)
        chapter = "book" if source.rpartition(":")[0].endswith(_MLS) else "chapter"
        fields = {} if parts is None else {"speaker": parts[1], chapter: parts[2]}
        uri = uri_of(self.root / name) if isinstance(self.root, VirtualPath) else f"{self.root}/{name}"
        self.builder.add(key, uri, origin=source, text=text, metadata=encode_metadata(fields))

    def _lines(self, transcript: str) -> Iterator[tuple[str, str, str, str]]:
        """Yield id, path of the audio without its ending, text and place of each line."""
        folder = posixpath.dirname(transcript)
        is_mls = posixpath.basename(transcript) == _MLS
        for line in read_lines(self.root / transcript):
            source = f"{transcript}:{line.source.rpartition(':')[2]}"
            try:
                key, _, text = decode(line.data).partition("\t" if is_mls else " ")
            except NotUtf8Error as error:
                key = show(line.data.split()[0])
                self.audio.pop(_stem(folder, key, is_mls=is_mls), None)  # refused here, and not once more as unlisted
                self.builder.refuse(key, source, str(error))
                continue
            yield key, _stem(folder, key, is_mls=is_mls), text.strip(), source


def _stem(folder: str, key: str, *, is_mls: bool) -> str:
    """Path of an utterance's audio without its ending."""
    if not is_mls:
        return posixpath.join(folder, key)
    speaker, _, rest = key.partition("_")
    return posixpath.join(folder, "audio", speaker, rest.partition("_")[0], key)


def _is_transcript(name: str) -> bool:
    return name.endswith(_TREE) or posixpath.basename(name) == _MLS
