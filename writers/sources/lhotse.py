"""Lhotse: recordings and supervisions, cut sets, Shar directories.

    recordings.jsonl.gz + supervisions.jsonl.gz   an utterance is a supervision
    cuts.jsonl(.gz)                               an utterance is a cut; the texts of its supervisions are joined
    cuts.000000.jsonl.gz + recording.000000.tar   Shar: the same, its audio in tars

A cut may be a part of its recording in time, and some of its channels. What Lhotse would compute when it loads a cut
(mixed, padded and transformed audio) is refused: what is packed is what was recorded.
Source: https://lhotse.readthedocs.io
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from uttershard.pipeline.dataset.files import local_path
from uttershard.pipeline.errors import ConfigError, DataError

from ..archives import read_archive
from ..corpus_path import CorpusPath, corpus_path, files_below, refused_members, root_of
from ..listing import PIPE, Listing, ListingBuilder, encode_metadata
from ..locators import channels_uri, join_uri
from ..parts import each
from ..patterns import shard_number
from .base import LocatorError, is_file_called, locate
from .jsonl import parse_record, read_json_lines
from .lhotse_columns import (
    CUT,
    RECORDING,
    SUPERVISION,
    Recordings,
    add_cuts,
    flat_cuts,
    flat_recordings,
    read_columns,
)
from .lines import Line, batched
from .records import BadRecordError

_ENDINGS = (".jsonl", ".jsonl.gz")
_COMPUTED = ("MixedCut", "PaddingCut")
_SCALARS = (str, int, float, bool)


@dataclass(frozen=True)
class LhotseSource:
    """A cut set, a Shar directory, or a folder (or file) of recordings with its supervisions.

    Example:
        >>> LhotseSource("cuts_train.jsonl.gz").list_utterances()  # doctest: +SKIP
    """

    address: str
    supervisions: str | None = None
    """The supervisions, if the address is a file of recordings."""
    allow_pipes: bool = False

    name: ClassVar[str] = "lhotse"

    @classmethod
    def matches(cls, address: str) -> bool:
        """Whether it is a Shar directory, a folder with recordings and supervisions, or a file called `*cuts*`."""
        path = local_path(address)
        if path is not None and Path(path).is_dir():
            names = [entry.name for entry in Path(path).iterdir()]
            return _is_shar(names) or (_only(names, "recordings") and _only(names, "supervisions")) is not None
        return is_file_called(address, *_ENDINGS) and "cuts" in address.rpartition("/")[2]

    def list_utterances(self) -> Listing:
        """List the cuts or supervisions in their order."""
        path = corpus_path(self.address)
        folder = path if path.is_dir() else path.parent
        reader = _Reader(folder, ListingBuilder(refused_members(path)), self.allow_pipes)
        if not path.is_dir():
            if self.supervisions is None:
                reader.cuts(path)
            else:
                reader.supervisions(path, corpus_path(self.supervisions))
        else:
            names = [name for name in files_below(path) if "/" not in name]
            recordings, supervisions = _only(names, "recordings"), _only(names, "supervisions")
            if _is_shar(names):
                reader.shar(names)
            elif recordings is not None and supervisions is not None:
                reader.supervisions(path / recordings, path / supervisions)
            else:
                raise ConfigError(
                    f"{path}: neither a Shar directory nor one file of recordings and one of supervisions; give the "
                    "file of recordings, and with the option supervisions the other"
                )
        return reader.builder.finish(root_of(folder), self.address)


@dataclass
class _Reader:
    folder: CorpusPath
    builder: ListingBuilder
    allow_pipes: bool
    shar_uri: str | None = field(default=None)
    """The audio of the cut at hand, in a Shar directory."""

    def cuts(self, path: CorpusPath) -> None:
        for lines in batched(read_json_lines(path)):
            columns = read_columns(lines, CUT)
            flat = None if columns is None else flat_cuts(columns)
            if flat is None or not add_cuts(self.builder, self.folder, flat, [line.source for line in lines]):
                for origin, cut in self._parsed(lines):
                    self._guarded(cut, origin)

    def shar(self, names: list[str]) -> None:
        tars = {shard_number(name): name for name in names if name.startswith("recording.") and name.endswith(".tar")}
        pairs = []
        for name in sorted(name for name in names if name.startswith("cuts.") and name.endswith(_ENDINGS)):
            tar = tars.get(shard_number(name))
            if tar is None:
                raise DataError(f"{self.folder / name}: no recording.*.tar of its number beside it")
            pairs.append((name, tar))
        alone = sorted(set(tars.values()) - {tar for _, tar in pairs})
        if alone:
            raise DataError(f"{self.folder / alone[0]}: no cuts.*.jsonl.gz of its number beside it")
        for part in each(partial(_list_shar, str(self.folder), self.allow_pipes), pairs):
            self.builder.extend(part)

    def shar_pair(self, name: str, tar: str) -> None:
        members = self._shar_members(str(self.folder / tar))
        for origin, cut in self._parsed(read_json_lines(self.folder / name)):
            self.shar_uri = members.pop(str(cut.get("id")), None)
            self._guarded(cut, origin)
        for key in members:
            self.builder.refuse(key, tar, f"audio without a cut in {name}")

    def supervisions(self, recordings: CorpusPath, supervisions: CorpusPath) -> None:
        known = self._read_recordings(recordings)
        for lines in batched(read_json_lines(supervisions)):
            columns = read_columns(lines, SUPERVISION)
            flat = None if columns is None else known.join(columns)
            if flat is None or not add_cuts(self.builder, self.folder, flat, [line.source for line in lines]):
                for origin, supervision in self._parsed(lines):
                    self._add_supervision(supervision, origin, known, recordings.name)

    def _read_recordings(self, path: CorpusPath) -> Recordings:
        known = Recordings()
        for lines in batched(read_json_lines(path)):
            columns = read_columns(lines, RECORDING)
            flat = None if columns is None else flat_recordings(columns)
            if flat is None or not known.add_flat(flat):
                for origin, recording in self._parsed(lines):
                    problem = known.add(recording)
                    if problem is not None:
                        self.builder.refuse(_id_of(recording), origin, problem)
        return known

    def _add_supervision(self, supervision: dict[str, Any], origin: str, known: Recordings, recordings: str) -> None:
        name = supervision.get("recording_id")
        recording = known.get(name)
        if recording is None:
            self.builder.refuse(_id_of(supervision), origin, f"no recording {name!r} in {recordings}")
            return
        cut = {name: supervision.get(name) for name in ("id", "start", "duration", "channel")}
        self._guarded({**cut, "recording": recording, "supervisions": [supervision]}, origin)

    def _guarded(self, cut: dict[str, Any], origin: str) -> None:
        try:
            self._add(cut, origin)
        except BadRecordError as error:
            self.builder.refuse(_id_of(cut), origin, str(error))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self.builder.refuse(_id_of(cut), origin, f"not as Lhotse writes it ({type(error).__name__}: {error})")

    def _add(self, cut: dict[str, Any], origin: str) -> None:
        if cut.get("type") in _COMPUTED:
            raise BadRecordError(f"a {cut['type']}, which Lhotse computes; save its audio first (cuts.save_audios)")
        recording = cut.get("recording")
        if recording is None:
            raise BadRecordError(_why_no_cut(cut))
        if recording.get("transforms"):
            raise BadRecordError("its recording is transformed when it is loaded; save its audio first")
        key, start, seconds = str(cut["id"]), float(cut["start"]), float(cut["duration"])
        rate, total = int(recording["sampling_rate"]), int(recording["num_samples"])
        is_whole = round(start * rate) == 0 and round(seconds * rate) >= total
        texts = sorted(cut.get("supervisions") or (), key=lambda supervision: float(supervision["start"]))
        spoken = [text["text"] for text in texts if text.get("text") is not None]
        self.builder.add(
            key,
            self._uri(recording, cut.get("channel")),
            origin=origin,
            start=None if is_whole else start,
            end=None if is_whole else start + seconds,
            duration=seconds,
            text=" ".join(spoken) if spoken else None,
            metadata=encode_metadata(_metadata(cut, texts)),
        )

    def _uri(self, recording: Mapping[str, Any], channel: int | list[int] | None) -> str:
        sources = recording["sources"]
        present = [number for source in sources for number in source["channels"]]
        wanted = present if channel is None else [channel] if isinstance(channel, int) else list(channel)
        missing = [number for number in wanted if number not in present]
        if missing:
            raise BadRecordError(f"channel {missing[0]} is in no source of the recording {recording['id']!r}")
        if len(sources) == 1:
            uri = self._source_uri(sources[0])
            return uri if wanted == present else channels_uri(uri, [present.index(number) for number in wanted])
        uris = []
        for number in wanted:
            source = next(source for source in sources if number in source["channels"])
            uri = self._source_uri(source)
            only = len(source["channels"]) == 1
            uris.append(uri if only else channels_uri(uri, [source["channels"].index(number)]))
        return join_uri(uris)

    def _source_uri(self, source: Mapping[str, Any]) -> str:
        kind = source["type"]
        if kind == "shar":
            if self.shar_uri is None:
                raise BadRecordError("its audio is not in the Shar tar beside it")
            return self.shar_uri
        if kind in ("file", "url"):
            try:
                return locate(str(source["source"]), self.folder)
            except LocatorError as error:
                raise BadRecordError(str(error)) from error
        if kind == "command":
            if not self.allow_pipes:
                raise BadRecordError(f"a command ({source['source']!r}); --allow-pipes runs it, for corpora you trust")
            return PIPE + str(source["source"]).strip()
        raise BadRecordError(f"audio of type {kind!r}; file, url, command and shar are read")

    def _parsed(self, lines: Iterable[Line]) -> Iterator[tuple[str, dict[str, Any]]]:
        for line in lines:
            try:
                yield line.source, parse_record(line)
            except BadRecordError as error:
                self.builder.refuse(error.key, line.source, str(error))
            except ValueError as error:
                self.builder.refuse(None, line.source, str(error))

    def _shar_members(self, tar: str) -> dict[str, str]:
        """Return the audio of each cut; beside it is a `.json` of its recording, of which the cut has a copy."""
        archive = read_archive(tar)
        self.builder.refused.extend(archive.refused)
        return {
            name.rpartition(".")[0]: uri
            for name, uri in archive.uris.items()
            if not name.endswith((".json", ".nodata"))
        }


def _list_shar(folder: str, allow_pipes: bool, pair: tuple[str, str]) -> Listing:
    reader = _Reader(corpus_path(folder), ListingBuilder(), allow_pipes)
    reader.shar_pair(*pair)
    return reader.builder.finish(folder, pair[0])


def _metadata(cut: Mapping[str, Any], supervisions: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Keep what all supervisions agree on, and plain values of `custom` fields."""
    fields: dict[str, Any] = {}
    for name in ("speaker", "language", "gender"):
        values = {supervision.get(name) for supervision in supervisions} - {None}
        if len(values) == 1:
            fields[name] = values.pop()
    for custom in (cut.get("custom"), *(supervision.get("custom") for supervision in supervisions[:1])):
        fields |= {name: value for name, value in (custom or {}).items() if isinstance(value, _SCALARS)}
    return fields


def _why_no_cut(record: Mapping[str, Any]) -> str:
    if "sources" in record:
        return "a recording and no cut; give the supervisions beside it, too: --option supervisions=FILE"
    if "recording_id" in record and "type" not in record:
        return "a supervision and no cut; pack the recordings, and give this file as --option supervisions=FILE"
    return "no recording: only features"


def _id_of(record: Mapping[str, Any]) -> str | None:
    return record["id"] if isinstance(record.get("id"), str) else None


def _is_shar(names: list[str]) -> bool:
    return any(name.startswith("cuts.") for name in names) and any(
        name.startswith("recording.") and name.endswith(".tar") for name in names
    )


def _only(names: list[str], what: str) -> str | None:
    found = [name for name in names if what in name and name.endswith(_ENDINGS)]
    return found[0] if len(found) == 1 else None
