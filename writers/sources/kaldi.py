"""Kaldi data directories: `wav.scp` and what may be beside it.

    wav.scp          <recording> <path>               a file
                     <recording> <path.ark>:<offset>  an entry of an ark, as Kaldi's wav-copy and kaldiio write them
                     <recording> <path> <path> …      the channels of several files (ESPnet)
                     <recording> <command> |          only if pipes are allowed
    segments         <utterance> <recording> <start> <end>     seconds; end -1: to the end of the recording
    text             <utterance> <transcript>
    utt2spk          <utterance> <speaker>
    utt2lang         <utterance> <language>
    utt2dur          <utterance> <seconds>
    utt2num_samples  <utterance> <samples>            of use if the option sample_rate says how many make a second

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
from uttershard.pipeline.errors import ConfigError

from ..corpus_path import CorpusPath, corpus_path, refused_members, root_of
from ..ids import duplicate_rows
from ..listing import PIPE, SCHEMA, Listing, Refusal, encode_metadata, printable
from ..locators import ark_uri, join_uri
from .base import LocatorError, locate, may_be_corpus, parse_seconds
from .lines import Line, NotUtf8Error, decode, read_lines, show

_ARK = re.compile(r"(.+):([0-9]+)")
_BLANKS = re.compile(r"[ \t\v\f]+")


@dataclass(frozen=True)
class KaldiSource:
    """A Kaldi data directory.

    Example:
        >>> KaldiSource("data/train").list_utterances()  # doctest: +SKIP
    """

    address: str
    allow_pipes: bool = False
    sample_rate: str | None = None
    """Of all recordings, in Hz, where they are only stated in samples."""

    name: ClassVar[str] = "kaldi"

    @classmethod
    def matches(cls, address: str) -> bool:
        """Whether it is a folder with a `wav.scp`, or a `wav.scp` itself; also within an archive."""
        return may_be_corpus(address) and (_folder_of(address) / "wav.scp").is_file()

    def list_utterances(self) -> Listing:
        """List the directory's utterances in the order of `segments`, else of `wav.scp`."""
        folder = _folder_of(self.address)
        return _Directory(folder, self.allow_pipes, self._rate(), self._also(folder)).list_utterances()

    def _also(self, folder: CorpusPath) -> tuple[str, ...]:
        """Return more folders in which relative paths are looked for."""
        return ()

    def _rate(self) -> int | None:
        if self.sample_rate is None:
            return None
        if not self.sample_rate.isdecimal() or not int(self.sample_rate):
            raise ConfigError(f"the option sample_rate must be a number of Hz, found {self.sample_rate!r}")
        return int(self.sample_rate)


@dataclass(frozen=True)
class EspnetSource(KaldiSource):
    """An ESPnet dump directory: a Kaldi directory whose paths count from the recipe, some folders above it.

    Example:
        >>> EspnetSource("dump/raw/train").list_utterances()  # doctest: +SKIP
    """

    name: ClassVar[str] = "espnet"

    @classmethod
    def matches(cls, address: str) -> bool:
        """Whether it is a folder with a `wav.scp` and ESPnet's `feats_type`."""
        return super().matches(address) and (_folder_of(address) / "feats_type").is_file()

    def _also(self, folder: CorpusPath) -> tuple[str, ...]:
        return tuple(map(str, folder.parents)) if isinstance(folder, Path) else ()


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

    folder: CorpusPath
    allow_pipes: bool
    rate: int | None
    also: tuple[str, ...]
    refused: list[Refusal] = field(default_factory=list)
    spoiled: set[str] = field(default_factory=set)
    """Ids with a line that can't be read in any file: they are refused once, and never as unknown again."""

    def list_utterances(self) -> Listing:
        recordings = self._read_pairs("wav.scp", _path_problem)
        has_segments = (self.folder / "segments").is_file()
        table = self._segments(recordings) if has_segments else self._whole_recordings(recordings)
        texts = self._read_optional("text", None)
        speakers = self._read_optional("utt2spk", _speaker_problem)
        languages = self._read_optional("utt2lang", _language_problem)
        durations = self._read_optional("utt2dur", _duration_problem)
        samples = self._read_optional("utt2num_samples", _samples_problem)
        keys = table["key"].combine_chunks()
        described = (
            (texts, "text"),
            (speakers, "a speaker"),
            (languages, "a language"),
            (durations, "a duration"),
            (samples, "a number of samples"),
        )
        for pairs, what in described:
            self._refuse_unknown(
                pairs, keys, f"{what} for an id that is not in {'segments' if has_segments else 'wav.scp'}"
            )
        seconds = pc.coalesce(table["duration"], durations.lookup(keys).cast(pa.float64()))
        if self.rate is not None:
            counted = pc.divide(samples.lookup(keys).cast(pa.float64()), float(self.rate))
            seconds = pc.coalesce(seconds, counted)
        table = table.set_column(4, SCHEMA.field("duration"), seconds)
        table = table.set_column(5, SCHEMA.field("text"), texts.lookup(keys))
        table = table.set_column(6, SCHEMA.field("metadata"), _metadata(speakers.lookup(keys), languages.lookup(keys)))
        if self.spoiled:
            spoiled = pc.is_in(keys, pa.array(sorted(self.spoiled), pa.string()))
            table = table.filter(pc.invert(spoiled))
        refused = [*refused_members(self.folder), *self.refused]
        return Listing(table.cast(SCHEMA), refused, root_of(self.folder), f"{self.folder}/wav.scp")

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
            return self._locate_file(value), None
        except LocatorError as error:
            columns = _fields(value)
            if len(columns) == 1:
                return None, str(error)
        try:
            return join_uri([self._locate_file(column) for column in columns]), None
        except LocatorError as error:
            return None, f"{error}; or {value!r} is one path with blanks, and that does not exist either"

    def _locate_file(self, value: str) -> str:
        ark = _ARK.fullmatch(value)
        if ark is None:
            return locate(value, self.folder, also=self.also)
        return ark_uri(locate(ark[1], self.folder, also=self.also), int(ark[2]))

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


def _folder_of(address: str) -> CorpusPath:
    path = corpus_path(address)
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


def _metadata(speakers: pa.Array, languages: pa.Array) -> pa.Array:
    """Return the metadata of each row; it repeats, so each is encoded once."""
    encoded: dict[tuple[str | None, str | None], str | None] = {}
    values = []
    for pair in zip(speakers.to_pylist(), languages.to_pylist(), strict=True):
        if pair not in encoded:
            fields = dict(zip(("speaker", "language"), pair, strict=True))
            encoded[pair] = encode_metadata({name: value for name, value in fields.items() if value is not None})
        values.append(encoded[pair])
    return pa.array(values, pa.string())


def _fields(value: str) -> list[str]:
    return _BLANKS.split(value)


def _path_problem(value: str) -> str | None:
    return None if value else "no audio after the id"


def _speaker_problem(value: str) -> str | None:
    if not value:
        return "no speaker after the id"
    return f"one speaker expected after the id, found {value!r}" if len(_fields(value)) > 1 else None


def _language_problem(value: str) -> str | None:
    return None if value else "no language after the id"


def _samples_problem(value: str) -> str | None:
    if not value.isdecimal() or not int(value):
        return f"a number of samples expected after the id, found {value!r}"
    return None


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
