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

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from uttershard.pipeline.errors import ConfigError

from ..corpus_path import CorpusPath, corpus_path, refused_members, root_of
from ..ids import duplicate_rows
from ..listing import PIPE, SCHEMA, Listing, Refusal, encode_metadata, printable
from ..locators import ark_uri, join_uri
from .base import LocatorError, locate, may_be_corpus, parse_seconds
from .kaldi_tables import KaldiTable, empty_table, read_table

_ARK = re.compile(r"(.+):([0-9]+)")
_BLANKS = re.compile(r"[ \t\v\f]+")

# What nearly all lines are, tested in Arrow, so that Python sees only the others.
_ANYTHING = "(?s)."
_ONE_WORD = r"^[^ \t\v\f]+$"
_PLAIN_PATH = r"^/[^ \t\v\f:|]*$"
_PLAIN_COUNT = "^[1-9][0-9]{0,17}$"
_PLAIN_SECONDS = r"^(?:[1-9][0-9]{0,14}(?:\.[0-9]*)?|0?\.[0-9]*[1-9][0-9]*)$"
_PLAIN_SEGMENT = (
    r"^(?P<recording>[^ \t\v\f]+)[ \t\v\f]+(?P<start>[0-9]+(?:\.[0-9]+)?)[ \t\v\f]+(?P<end>-1|[0-9]+(?:\.[0-9]+)?)$"
)


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
    distinct: pa.Array | None = None
    """Ids of the table read last, none twice: most tables have the same ones in the same order."""

    def list_utterances(self) -> Listing:
        recordings = self._read("wav.scp", _ANYTHING, _path_problem)
        has_segments = (self.folder / "segments").is_file()
        table = self._segments(recordings) if has_segments else self._whole_recordings(recordings)
        texts = self._read_optional("text", None, None)
        speakers = self._read_optional("utt2spk", _ONE_WORD, _speaker_problem)
        languages = self._read_optional("utt2lang", _ANYTHING, _language_problem)
        durations = self._read_optional("utt2dur", _PLAIN_SECONDS, _duration_problem)
        samples = self._read_optional("utt2num_samples", _PLAIN_COUNT, _samples_problem)
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
        seconds = pc.coalesce(table["duration"], _numbers(durations.lookup(keys)))
        if self.rate is not None:
            counted = pc.divide(_numbers(samples.lookup(keys)), float(self.rate))
            seconds = pc.coalesce(seconds, counted)
        table = table.set_column(4, SCHEMA.field("duration"), seconds)
        table = table.set_column(5, SCHEMA.field("text"), texts.lookup(keys))
        table = table.set_column(6, SCHEMA.field("metadata"), _metadata(speakers.lookup(keys), languages.lookup(keys)))
        if self.spoiled:
            spoiled = pc.is_in(keys, pa.array(sorted(self.spoiled), pa.string()))
            table = table.filter(pc.invert(spoiled))
        refused = [*refused_members(self.folder), *self.refused]
        return Listing(table.cast(SCHEMA), refused, root_of(self.folder), f"{self.folder}/wav.scp")

    def _whole_recordings(self, recordings: KaldiTable) -> pa.Table:
        uris, problems = self._locate_all(recordings)
        for row, problem in problems.items():
            self._refuse(recordings.keys[row].as_py(), recordings.source(row), problem)
        return _table(recordings.keys, uris, recordings.sources()).filter(pc.is_valid(uris))

    def _segments(self, recordings: KaldiTable) -> pa.Table:
        uris, problems = self._locate_all(recordings)
        segments = self._read("segments", _PLAIN_SEGMENT, _segment_problem)
        names, starts, ends = _split_segments(segments.values)
        for row in np.flatnonzero((ends != -1) & (ends <= starts)).tolist():
            self._refuse(
                segments.keys[row].as_py(), segments.source(row), str(_segment_problem(segments.values[row].as_py()))
            )
        rows = pc.index_in(names, recordings.keys)
        for row in np.flatnonzero(pc.is_null(uris.take(rows)).to_numpy(zero_copy_only=False)).tolist():
            at = rows[row].as_py()
            problem = f"its recording {names[row].as_py()!r} is not in wav.scp" if at is None else problems[at]
            self._refuse(segments.keys[row].as_py(), segments.source(row), problem)
        to_end = pa.array(ends == -1)
        stops = pc.if_else(to_end, None, pa.array(ends))
        table = _table(segments.keys, uris.take(rows), segments.sources(), pa.array(starts), stops)
        return table.filter(pc.is_valid(table["uri"]))

    def _locate_all(self, recordings: KaldiTable) -> tuple[pa.Array, dict[int, str]]:
        """Return where each recording is, null where it can't be had, and why not."""
        doubtful = _unusual(recordings.values, _PLAIN_PATH)
        if not doubtful.any():
            return recordings.values, {}
        uris, problems = [], {}
        rows = np.flatnonzero(doubtful).tolist()
        for row, value in zip(rows, recordings.values.filter(pa.array(doubtful)).to_pylist(), strict=True):
            uri, problem = self._locate(value)
            uris.append(uri)
            if problem is not None:
                problems[row] = problem
        return pc.replace_with_mask(recordings.values, pa.array(doubtful), pa.array(uris, pa.string())), problems

    def _locate(self, value: str) -> tuple[str | None, str | None]:
        """Return where a recording is, or why it can't be had."""
        if value.endswith("|"):
            if not self.allow_pipes:
                return None, f"a command and not a file ({value!r}); --allow-pipes runs it, for corpora you trust"
            return PIPE + value[:-1].strip(), None
        columns = _fields(value)
        try:
            # Of several columns that are not one path with blanks, each is a file.
            if len(columns) == 1 or os.path.exists(value):  # noqa: PTH110
                return self._locate_file(value), None
            if value[0] != "/" and "://" not in value:
                return self._locate_file(value), None
        except LocatorError as error:
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

    def _read_optional(self, name: str, usual: str | None, problem: Callable[[str], str | None] | None) -> KaldiTable:
        return self._read(name, usual, problem) if (self.folder / name).is_file() else empty_table(name)

    def _read(self, name: str, usual: str | None, problem: Callable[[str], str | None] | None) -> KaldiTable:
        """Read a table.

        Args:
            name: Of its file.
            usual: A pattern of values that are surely good; None takes all.
            problem: Says what is wrong with any other value.
        """
        table = read_table(self.folder / name, self._refuse)
        if usual is not None and problem is not None:
            kept = np.ones(len(table), dtype=bool)
            for row in np.flatnonzero(_unusual(table.values, usual)).tolist():
                reason = problem(table.values[row].as_py())
                if reason is not None:
                    self._refuse(table.keys[row].as_py(), table.source(row), reason)
                    kept[row] = False
            table = table.where(kept)
        return self._without_duplicates(table)

    def _without_duplicates(self, table: KaldiTable) -> KaldiTable:
        if self.distinct is not None and table.keys.equals(self.distinct):
            return replace(table, keys=self.distinct)  # one copy of the ids in memory
        kept = np.ones(len(table), dtype=bool)
        for row, first in duplicate_rows(pa.chunked_array([table.keys])):
            here = table.source(row)
            reason = f"the id is there twice: at {table.source(first)} and at {here}"
            self.refused.append(Refusal(table.keys[row].as_py(), here, reason))
            kept[row] = False
        table = table.where(kept)
        self.distinct = table.keys
        return table

    def _refuse_unknown(self, table: KaldiTable, keys: pa.Array, reason: str) -> None:
        if table.keys.equals(keys):
            return
        unknown = np.flatnonzero(pc.invert(pc.is_in(table.keys, keys)).to_numpy(zero_copy_only=False))
        for row in unknown.tolist():
            key = table.keys[row].as_py()
            if key not in self.spoiled:
                self.refused.append(Refusal(key, table.source(row), reason))

    def _refuse(self, key: str, source: str, reason: str) -> None:
        if key not in self.spoiled:
            self.refused.append(Refusal(printable(key), source, printable(reason)))
            self.spoiled.add(key)


def _folder_of(address: str) -> CorpusPath:
    path = corpus_path(address)
    return path.parent if path.name == "wav.scp" else path


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
    columns = {"speaker": speakers.dictionary_encode(), "language": languages.dictionary_encode()}
    names = {name: [*column.dictionary.to_pylist(), None] for name, column in columns.items()}
    codes = {
        name: pc.fill_null(column.indices, len(column.dictionary)).to_numpy(zero_copy_only=False).astype(np.int64)
        for name, column in columns.items()
    }
    several = len(names["language"])
    pairs, pair_of_row = np.unique(codes["speaker"] * several + codes["language"], return_inverse=True)
    encoded = []
    for pair in pairs.tolist():
        fields = {"speaker": names["speaker"][pair // several], "language": names["language"][pair % several]}
        encoded.append(encode_metadata({name: value for name, value in fields.items() if value is not None}))
    return pa.array(encoded, pa.string()).take(pa.array(pair_of_row))


def _split_segments(values: pa.Array) -> tuple[pa.Array, NDArray[np.float64], NDArray[np.float64]]:
    """Return recording, start and end of each segment, all of which are known to have them."""
    fields = pc.extract_regex(values, _PLAIN_SEGMENT)
    if not fields.null_count:
        starts, ends = (fields.field(name).cast(pa.float64()).to_numpy() for name in ("start", "end"))
        return fields.field("recording"), starts, ends
    names, begins, stops = zip(*(_fields(value) for value in values.to_pylist()), strict=True)
    return pa.array(names, pa.string()), np.array(begins, np.float64), np.array(stops, np.float64)


def _numbers(values: pa.Array) -> pa.Array:
    try:
        return values.cast(pa.float64())
    except pa.ArrowInvalid:  # spelt in ways that only Python reads: +1.5
        return pa.array([None if value is None else float(value) for value in values.to_pylist()], pa.float64())


def _unusual(values: pa.Array, usual: str) -> NDArray[np.bool_]:
    return ~np.asarray(pc.match_substring_regex(values, usual).to_numpy(zero_copy_only=False))


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
