"""CSV and TSV tables with a header: named columns, one row an utterance; columns that have no role are metadata.

Between commas a field may be quoted (RFC 4180). Between tabs or `|`, as Common Voice and LJSpeech write, a quote is
part of the text. An empty field is a missing one, except for the text.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from uttershard.pipeline.errors import ConfigError, DataError

from ..corpus_path import CorpusPath, corpus_path, refused_members, root_of
from ..listing import Listing, ListingBuilder
from .base import is_file_called, parse_seconds
from .lines import NotUtf8Error, batched, decode, read_lines
from .records import ID_FIELDS, BadRecordError, FieldNames, add_columns, add_record

_UNQUOTED = "\t|"
_DELIMITERS = "|\t;,"
_COLUMN_IN_PATTERN = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class CsvSource:
    """A table with a header; the options name its columns.

    Example:
        >>> CsvSource("metadata.csv", audio="file", id="clip").list_utterances()  # doctest: +SKIP
    """

    address: str
    audio: str = "audio_filepath"
    """A column, or a pattern with columns in braces: `wavs/{id}.wav`, for tables that name no file."""
    text: str = "text"
    duration: str = "duration"
    offset: str = "offset"
    id: str | None = None
    """None: the first of `id`, `utt_id`, `key` that the row has, else the stem of the file."""
    delimiter: str | None = None
    """None: a tab in a `.tsv`, a comma elsewhere."""
    header: str | None = None
    """Names of the columns, separated by commas, for a table that has no header."""

    name: ClassVar[str] = "csv"

    @classmethod
    def matches(cls, address: str) -> bool:
        """Whether it is a file called `.csv` or `.tsv`."""
        return is_file_called(address, ".csv", ".tsv")

    def list_utterances(self) -> Listing:
        """List the table in its order."""
        path = corpus_path(self.address)
        builder = ListingBuilder(refused_members(path))
        names = FieldNames(self.audio, self.text, self.duration, self.offset, self.id)
        rows = self._rows(path, builder)
        header = self._header(path, rows, builder)
        folder = path.parent
        for batch in batched(rows):
            origins = [f"{path.name}:{number}" for number, _ in batch]
            if not self._add_columns(names, builder, folder, header, [values for _, values in batch], origins):
                for origin, (_, values) in zip(origins, batch, strict=True):
                    try:
                        add_record(names, builder, folder, self._record(header, values), origin)
                    except BadRecordError as error:
                        builder.refuse(error.key, origin, str(error))
        return builder.finish(root_of(path.parent), str(path))

    def _header(self, path: CorpusPath, rows: Iterator[tuple[int, list[str]]], builder: ListingBuilder) -> list[str]:
        if self.header is not None:
            header = [name.strip() for name in self.header.split(",")]
        else:
            first = next(rows, None)
            if first is None:
                unread = f"no line can be read; first: {builder.refused[0].reason}" if builder.refused else None
                raise DataError(f"{path}: {unread or 'empty, not even a header'}")
            header = [name.strip() for name in first[1]]
        repeated = [name for name in header if header.count(name) > 1]
        if repeated:
            raise ConfigError(f"{path}: the header has the column {repeated[0]!r} twice")
        wanted = [("audio", column) for column in self._audio_columns or (self.audio,)]
        for option, column in (*wanted, ("id", self.id)):
            if column is not None and column not in header:
                raise ConfigError(f"{path}: no column {column!r}; {self._advice(option, header)}")
        return header

    @property
    def _audio_columns(self) -> tuple[str, ...]:
        return tuple(_COLUMN_IN_PATTERN.findall(self.audio))

    def _advice(self, option: str, header: list[str]) -> str:
        if self.header is not None:
            pattern = ", or a pattern such as --option 'audio={id}.wav'" if option == "audio" else ""
            return f"the option header names {', '.join(header)}. Give --option {option}=COLUMN{pattern}"
        if len(header) == 1 and (other := next((mark for mark in _DELIMITERS if mark in header[0]), None)):
            separator = "TAB" if other == "\t" else other
            return (
                f"the first line is one column, {_short(header[0])}. If {separator} separates columns, say so with "
                f"--option 'delimiter={other}'"
            )
        return (
            f"the first line names {', '.join(map(_short, header))}. Name the right one with --option {option}=COLUMN; "
            "if that line is no header, name all columns with --option header=id,text,…"
        )

    def _rows(self, path: CorpusPath, builder: ListingBuilder) -> Iterator[tuple[int, list[str]]]:
        delimiter = self.delimiter or ("\t" if path.suffix.lower() == ".tsv" else ",")
        if len(delimiter) != 1:
            raise ConfigError(f"the delimiter must be one character, found {delimiter!r}")
        lines = _Lines(path, builder)
        reader = (
            csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE)
            if delimiter in _UNQUOTED
            else csv.reader(lines, delimiter=delimiter, strict=True)
        )
        while True:
            first = lines.number + 1
            try:
                values = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                # A quote that is not closed takes in all lines up to the next one.
                taken = f" (lines {first} to {lines.number})" if lines.number > first else ""
                builder.refuse(None, f"{path.name}:{first}", f"not a row of the table: {error}{taken}")
                continue
            if values:
                yield lines.number, values

    def _add_columns(
        self,
        names: FieldNames,
        builder: ListingBuilder,
        folder: CorpusPath,
        header: list[str],
        rows: list[list[str]],
        origins: list[str],
    ) -> bool:
        """Add some rows if all are as most are, or none, and say whether they were added (see `add_columns`)."""
        if set(map(len, rows)) != {len(header)}:
            return False
        columns: dict[str, Sequence[Any]] = dict(zip(header, zip(*rows, strict=True), strict=True))
        for name, values in columns.items():
            if name != self.text and "" in values:
                columns[name] = [value or None for value in values]
        if "{" in self.audio:
            if any(None in columns[name] for name in self._audio_columns):
                return False
            pieces = enumerate(_COLUMN_IN_PATTERN.split(self.audio))
            columns[self.audio] = list(
                map(
                    "".join,
                    zip(*(columns[piece] if at % 2 else [piece] * len(rows) for at, piece in pieces), strict=True),
                )
            )
        for name in {self.duration, self.offset} & columns.keys():
            try:
                columns[name] = [None if value is None else float(value) for value in columns[name]]
            except ValueError:
                return False
        known = [name for name in ID_FIELDS if name in columns and columns[name].count(None) < len(rows)]
        id_field = self.id or (known[0] if known else None)
        if id_field is not None and None in columns[id_field]:
            return False
        missing = [None] * len(rows)
        roles = {name: columns.pop(name, missing) for name in names.roles(id_field)}
        rest = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        if any(None in values for values in columns.values()):
            rest = [{name: value for name, value in record.items() if value is not None} for record in rest]
        return add_columns(names, builder, folder, roles, id_field, rest or [{}] * len(rows), origins)

    def _record(self, header: list[str], values: list[str]) -> dict[str, Any]:
        if len(values) != len(header):
            raise BadRecordError(f"{len(values)} fields, the header has {len(header)}")
        record: dict[str, Any] = dict(zip(header, values, strict=True))
        if "" in values:
            record = {name: value for name, value in record.items() if value or name == self.text}
        for name in (self.duration, self.offset):
            value = record.get(name)
            # A field that is no number goes on as a string, which add_record refuses by name.
            seconds = parse_seconds(value) if value else None
            if seconds is not None:
                record[name] = seconds
        if "{" in self.audio and all(column in record for column in self._audio_columns):
            record[self.audio] = _COLUMN_IN_PATTERN.sub(lambda column: record[column[1]], self.audio)
        return record


def _short(name: str) -> str:
    """A line that is no header may be a whole transcript."""
    return repr(name if len(name) <= 40 else f"{name[:39]}…")


class _Lines:
    """Decoded lines for csv.reader; `number` is of the line read last, which is the end of a quoted field of many."""

    def __init__(self, path: CorpusPath, builder: ListingBuilder) -> None:
        self._path = path
        self._builder = builder
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        for line in read_lines(self._path, blank=True):
            self.number = line.number
            try:
                yield decode(line.data) + "\n"
            except NotUtf8Error as error:
                self._builder.refuse(None, line.source, str(error))
