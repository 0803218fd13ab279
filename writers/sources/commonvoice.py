"""Common Voice: a table (`validated.tsv`, `train.tsv`, …) beside a folder `clips/`; the columns of any release.

`path` and `sentence` have always been there. `client_id`, `locale` and `accents` (once `accent`) are kept under the
names `client`, `language` and `accent`; what else a release has (`age`, `gender`, `up_votes`, …), under its own. An
empty field is a missing one. `clip_durations.tsv`, where there is one, states the lengths.
Source: https://github.com/common-voice/cv-dataset
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import ClassVar

from uttershard.pipeline.errors import DataError

from ..corpus_path import CorpusPath, corpus_path, refused_members, root_of
from ..listing import Listing, ListingBuilder, encode_metadata
from .base import LocatorError, locate, may_be_corpus
from .lines import NotUtf8Error, decode, read_lines

_RENAMED = {"client_id": "client", "locale": "language", "accents": "accent"}
_DURATIONS = "clip_durations.tsv"


@dataclass(frozen=True)
class CommonvoiceSource:
    """A release of Common Voice in one language: its folder, or one of its tables.

    Example:
        >>> CommonvoiceSource("cv-corpus/de", split="train").list_utterances()  # doctest: +SKIP
    """

    address: str
    split: str = "validated"
    """Which table, if the address is a folder."""

    name: ClassVar[str] = "commonvoice"

    @classmethod
    def matches(cls, address: str) -> bool:
        """Whether it is a folder with `validated.tsv`, or a `.tsv`, beside which there is a folder `clips`."""
        if not may_be_corpus(address):
            return False
        path = corpus_path(address)
        table = path if path.suffix == ".tsv" else path / "validated.tsv"
        return table.is_file() and (table.parent / "clips").is_dir()

    def list_utterances(self) -> Listing:
        """List the table in its order."""
        path = corpus_path(self.address)
        table = path if path.suffix == ".tsv" else path / f"{self.split}.tsv"
        if not table.is_file():
            raise DataError(f"{table}: does not exist; say which table with the option split")
        builder = ListingBuilder(refused_members(path))
        durations = _read_durations(table.parent, builder)
        for source, row in _rows(table, builder, ("path", "sentence")):
            _add(builder, table.parent, source, row, durations)
        return builder.finish(root_of(table.parent), str(table))


def _add(
    builder: ListingBuilder, folder: CorpusPath, source: str, row: dict[str, str], durations: dict[str, float]
) -> None:
    name = row.pop("path")
    key = PurePosixPath(name).stem
    # The first releases leave the ending out.
    clip = name if PurePosixPath(name).suffix else f"{name}.mp3"
    text = row.pop("sentence")
    try:
        uri = locate(f"clips/{clip}", folder)
    except LocatorError as error:
        builder.refuse(key, source, str(error))
        return
    fields = {_RENAMED.get(field, field): value for field, value in row.items() if value}
    builder.add(key, uri, origin=source, duration=durations.get(clip), text=text, metadata=encode_metadata(fields))


def _read_durations(folder: CorpusPath, builder: ListingBuilder) -> dict[str, float]:
    """Return the seconds of each clip; a column is called `duration[ms]`."""
    path = folder / _DURATIONS
    if not path.is_file():
        return {}
    durations = {}
    for _, row in _rows(path, builder, ("clip",)):
        value = next((value for name, value in row.items() if name.startswith("duration")), "")
        if value.isdecimal() and int(value):  # else the clip is measured
            durations[row["clip"]] = int(value) / 1000
    return durations


def _rows(path: CorpusPath, builder: ListingBuilder, needed: tuple[str, ...]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield place and fields of each line; there are no quotes in these tables, so a quote is part of the text."""
    header: list[str] | None = None
    for line in read_lines(path):
        try:
            values = decode(line.data).split("\t")
        except NotUtf8Error as error:
            builder.refuse(None, line.source, str(error))
            continue
        if header is None:
            header = values
            missing = [name for name in needed if name not in header]
            if missing:
                raise DataError(f"{path}: no column {missing[0]!r}; it has {', '.join(header)}")
        elif len(values) != len(header):
            builder.refuse(None, line.source, f"{len(values)} fields, the header has {len(header)}")
        else:
            yield line.source, dict(zip(header, values, strict=True))
