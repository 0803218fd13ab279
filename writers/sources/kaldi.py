"""Kaldi data directories: `wav.scp` (paths or pipes), `segments`, `text`, `utt2spk`, `utt2dur`.

    wav.scp    <recording> <path>  or  <recording> <command> |
    segments   <utterance> <recording> <start> <end>     seconds; end -1: to the end of the recording
    text       <utterance> <transcript>
    utt2spk    <utterance> <speaker>
    utt2dur    <utterance> <seconds>

Without `segments` each recording is an utterance. Fields are separated by ASCII blanks only, as in Kaldi: a
transcript may begin with any other kind of space. Source: https://kaldi-asr.org/doc/data_prep.html
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from uttershard.pipeline.dataset.files import local_path

from ..ids import duplicate_rows
from ..listing import PIPE, SCHEMA, Listing, Refusal, encode_metadata, printable
from .base import LocatorError, local_path_of, locate, parse_seconds
from .lines import Line, NotUtf8Error, decode, read_lines, show

_BLANKS = re.compile(r"[ \t\v\f]+")


@dataclass(frozen=True)
class KaldiSource:
    """A Kaldi data directory.

    Example:
        >>> KaldiSource("data/train").list_utterances()  # doctest: +SKIP
    """

    address: str
    allow_pipes: bool = False

    name: ClassVar[str] = "kaldi"

    @classmethod
    def matches(cls, address: str) -> bool:
        """Whether it is a folder with a `wav.scp`, or a `wav.scp` itself."""
        return local_path(address) is not None and _folder_of(address).joinpath("wav.scp").is_file()

    def list_utterances(self) -> Listing:
        """List the directory's utterances in the order of `segments`, else of `wav.scp`."""
        return _Directory(_folder_of(self.address), self.allow_pipes).list_utterances()


@dataclass(frozen=True)
class _Pairs:
    """A file of `<id> <rest>` lines, without those that were refused."""

    keys: pa.Array
    values: pa.Array
    sources: pa.Array

    def lookup(self, keys: pa.Array) -> pa.Array:
        """Return the value of each key, null where there is none."""
        return self.values.take(pc.index_in(keys, self.keys))


_NO_PAIRS = _Pairs(pa.array([], pa.string()), pa.array([], pa.string()), pa.array([], pa.string()))


@dataclass
class _Directory:
    """One reading of a directory: the refusals so far, and which ids they concern."""

    folder: Path
    allow_pipes: bool
    refused: list[Refusal] = field(default_factory=list)
    spoiled: set[str] = field(default_factory=set)
    """Ids with a line that can't be read in any file: they are refused once, and never as unknown again."""

    def list_utterances(self) -> Listing:
        recordings = self._read_pairs("wav.scp", _path_problem)
        has_segments = (self.folder / "segments").is_file()
        table = self._segments(recordings) if has_segments else self._whole_recordings(recordings)
        texts = self._read_optional("text", None)
        speakers = self._read_optional("utt2spk", _speaker_problem)
        durations = self._read_optional("utt2dur", _duration_problem)
        keys = table["key"].combine_chunks()
        for pairs, what in ((texts, "text"), (speakers, "a speaker"), (durations, "a duration")):
            self._refuse_unknown(
                pairs, keys, f"{what} for an id that is not in {'segments' if has_segments else 'wav.scp'}"
            )
        seconds = pc.coalesce(table["duration"], durations.lookup(keys).cast(pa.float64()))
        table = table.set_column(4, SCHEMA.field("duration"), seconds)
        table = table.set_column(5, SCHEMA.field("text"), texts.lookup(keys))
        table = table.set_column(6, SCHEMA.field("metadata"), _speaker_metadata(speakers.lookup(keys)))
        if self.spoiled:
            spoiled = pc.is_in(keys, pa.array(sorted(self.spoiled), pa.string()))
            table = table.filter(pc.invert(spoiled))
        return Listing(table.cast(SCHEMA), self.refused, str(self.folder), f"{self.folder}/wav.scp")

    def _whole_recordings(self, recordings: _Pairs) -> pa.Table:
        uris = []
        for key, value, source in _rows(recordings):
            uri, problem = self._locate(value)
            uris.append(uri)
            if problem is not None:
                self._refuse(key, source, problem)
        return _table(recordings.keys, pa.array(uris, pa.string()), recordings.sources).filter(
            pc.is_valid(pa.array(uris, pa.string()))
        )

    def _segments(self, recordings: _Pairs) -> pa.Table:
        located = {key: self._locate(value) for key, value, _ in _rows(recordings)}
        columns: dict[str, list[object]] = {name: [] for name in ("key", "uri", "start", "end", "origin")}
        segments = self._read_pairs("segments", _segment_problem)
        for key, value, source in _rows(segments):
            recording, start, end = _fields(value)
            uri, problem = located.get(recording, (None, f"its recording {recording!r} is not in wav.scp"))
            if problem is not None:
                self._refuse(key, source, problem)
                continue
            stop = float(end)
            row = (key, uri, float(start), None if stop == -1 else stop, source)
            for column, item in zip(columns.values(), row, strict=True):
                column.append(item)
        starts, ends = pa.array(columns["start"], pa.float64()), pa.array(columns["end"], pa.float64())
        keys, uris = pa.array(columns["key"], pa.string()), pa.array(columns["uri"], pa.string())
        return _table(keys, uris, pa.array(columns["origin"], pa.string()), starts, ends)

    def _locate(self, value: str) -> tuple[str | None, str | None]:
        """Return where a recording is, or why it can't be had."""
        if value.endswith("|"):
            if not self.allow_pipes:
                return None, f"a command and not a file ({value!r}); --allow-pipes runs it, for corpora you trust"
            return PIPE + value[:-1].strip(), None
        try:
            return locate(value, self.folder), None
        except LocatorError as error:
            return None, str(error)

    def _read_optional(self, name: str, problem: Callable[[str], str | None] | None) -> _Pairs:
        return self._read_pairs(name, problem) if (self.folder / name).is_file() else _NO_PAIRS

    def _read_pairs(self, name: str, problem: Callable[[str], str | None] | None) -> _Pairs:
        """Read `<id> <rest>` lines; `problem` says what is wrong with a rest, None allows any (an empty one, too)."""
        keys, values, sources = [], [], []
        for key, value, source in self._split_lines(name):
            reason = problem(value) if problem is not None else None
            if reason is not None:
                self._refuse(key, source, reason)
                continue
            keys.append(key)
            values.append(value)
            sources.append(source)
        pairs = _Pairs(pa.array(keys, pa.string()), pa.array(values, pa.string()), pa.array(sources, pa.string()))
        return self._without_duplicates(pairs)

    def _split_lines(self, name: str) -> Iterator[tuple[str, str, str]]:
        for line in read_lines(self.folder / name):
            fields = line.data.split(None, 1)
            try:
                key = decode(fields[0])
                value = decode(fields[1].rstrip()) if len(fields) > 1 else ""
            except NotUtf8Error as error:
                self._refuse(show(fields[0]), line.source, _in_line(error, line))
                continue
            yield key, value, line.source

    def _without_duplicates(self, pairs: _Pairs) -> _Pairs:
        kept = np.ones(len(pairs.keys), dtype=bool)
        for row, first in duplicate_rows(pa.chunked_array([pairs.keys])):
            here, there = pairs.sources[row].as_py(), pairs.sources[first].as_py()
            reason = f"the id is there twice: at {there} and at {here}"
            self.refused.append(Refusal(pairs.keys[row].as_py(), here, reason))
            kept[row] = False
        if kept.all():
            return pairs
        mask = pa.array(kept)
        return _Pairs(pairs.keys.filter(mask), pairs.values.filter(mask), pairs.sources.filter(mask))

    def _refuse_unknown(self, pairs: _Pairs, keys: pa.Array, reason: str) -> None:
        unknown = np.flatnonzero(pc.invert(pc.is_in(pairs.keys, keys)).to_numpy(zero_copy_only=False))
        for row in unknown.tolist():
            key = pairs.keys[row].as_py()
            if key not in self.spoiled:
                self.refused.append(Refusal(key, pairs.sources[row].as_py(), reason))

    def _refuse(self, key: str, source: str, reason: str) -> None:
        if key not in self.spoiled:
            self.refused.append(Refusal(printable(key), source, printable(reason)))
            self.spoiled.add(key)


def _folder_of(address: str) -> Path:
    path = local_path_of(address)
    return path.parent if path.name == "wav.scp" else path


def _rows(pairs: _Pairs) -> Iterator[tuple[str, str, str]]:
    return zip(pairs.keys.to_pylist(), pairs.values.to_pylist(), pairs.sources.to_pylist(), strict=True)


def _table(
    keys: pa.Array, uris: pa.Array, origins: pa.Array, starts: pa.Array | None = None, ends: pa.Array | None = None
) -> pa.Table:
    """Make the table of a listing with text, metadata and stated durations still to come."""
    seconds = pa.nulls(len(keys), pa.float64())
    strings = pa.nulls(len(keys), pa.string())
    columns = [keys, uris, seconds if starts is None else starts, seconds if ends is None else ends]
    # Nullable until the rows without a uri are gone.
    names = SCHEMA.names
    return pa.table([*columns, seconds, strings, strings, origins], names=names)


def _speaker_metadata(speakers: pa.Array) -> pa.Array:
    """Return the metadata of each row; speakers repeat, so each is encoded once."""
    encoded = speakers.dictionary_encode()
    values = [encode_metadata({"speaker": name}) for name in encoded.dictionary.to_pylist()]
    return pa.array(values, pa.string()).take(encoded.indices)


def _fields(value: str) -> list[str]:
    return _BLANKS.split(value)


def _path_problem(value: str) -> str | None:
    return None if value else "no audio after the id"


def _speaker_problem(value: str) -> str | None:
    if not value:
        return "no speaker after the id"
    return f"one speaker expected after the id, found {value!r}" if len(_fields(value)) > 1 else None


def _duration_problem(value: str) -> str | None:
    seconds = parse_seconds(value)
    if seconds is None or seconds <= 0:
        return f"a duration in seconds expected after the id, found {value!r}"
    return None


def _segment_problem(value: str) -> str | None:
    fields = _fields(value)
    if len(fields) != 3:
        return f"expected <utterance> <recording> <start> <end>, found {1 + len(fields)} fields"
    start, end = parse_seconds(fields[1]), parse_seconds(fields[2])
    if start is None or end is None:
        return f"start and end must be seconds, found {fields[1]!r} and {fields[2]!r}"
    if start < 0:
        return f"the segment starts before the recording, at {fields[1]} s"
    if end != -1 and end <= start:
        return f"the segment ends at {fields[2]} s, not after its start at {fields[1]} s"
    return None


def _in_line(error: NotUtf8Error, line: Line) -> str:
    return f"{error} of the {line.source.rpartition(':')[0]} line {show(line.data[:80])!r}"
