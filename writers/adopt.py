"""Adopting tars of other tools: sidecars and a manifest for shards that stay as they are, wherever they are.

A tar is walked by its headers. Of WAV, FLAC, AIFF and SPHERE the header (and the end) of the audio is read, of other
codecs all of it, since only decoding tells how long they are. With checksums every byte is read, so that damage is
noticed later: the default for local tars, where it costs little, and not for those in a store.
"""

import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import xxhash
from uttershard.pipeline.dataset.digest import (
    HEADERS_PREFIX,
    UNCHECKED,
    FileDigest,
    digest_bytes,
    digest_of_digests,
    span_checksum,
)
from uttershard.pipeline.dataset.files import local_path
from uttershard.pipeline.dataset.manifest import MANIFEST_NAME, Manifest, ShardEntry, encode_manifest
from uttershard.pipeline.dataset.members import key_problem, member_name
from uttershard.pipeline.dataset.sidecar import FOREIGN, FORMAT_VERSION, SidecarInfo, decode_sidecar, encode_sidecar
from uttershard.pipeline.dataset.tar import Member, TarError
from uttershard.pipeline.errors import ConfigError, DataError
from uttershard.pipeline.reading.codecs import AudioInfo, measure, probe
from uttershard.pipeline.reading.members import TEXT_ENDINGS, read_metadata, read_text
from uttershard.pipeline.reading.spans import TEXT_COLUMN

from .archives import open_file
from .byte_files import RangeFile, buffered
from .cluster import Cluster
from .columns import column_values, infer_columns
from .commit import write_atomically
from .describe import SidecarRows
from .foreign import Group, group_members, read_small
from .ids import duplicate_rows
from .job import JobFolder
from .listing import ListingBuilder, Refusal, printable
from .nemo_records import SegmentError, TarRecords, split_records
from .progress import Progress
from .quarantine import ERRORS_NAME
from .source_store import with_source
from .tar_files import walk_tar_file
from .tar_writer import Span

_EXACT_HEADERS = frozenset({"wav", "flac", "aiff", "sphere"})
"""Codecs whose length a few ranged reads tell for certain."""

_PIECE = 8 << 20


@dataclass(frozen=True)
class AdoptRules:
    """How foreign tars are taken.

    Attributes:
        naming: `webdataset`, `wenet` or `nemo`: which members are one utterance (see foreign.py).
        manifests: NeMo's manifests, which hold the texts; a pattern.
        checksums: Whether every byte is read, so that damage is noticed later.
        unique_ids: Whether the name of the tar is put before each id, for tars that all count from zero.
    """

    naming: str = "webdataset"
    manifests: str | None = None
    checksums: bool = True
    unique_ids: bool = False

    def __post_init__(self) -> None:
        if (self.naming == "nemo") != (self.manifests is not None):
            raise ConfigError("naming nemo goes with manifests: a NeMo tar holds audio and no text")


@dataclass(frozen=True)
class _Task:
    tar: str
    sidecar: str
    folder: str
    number: int
    columns: Mapping[str, str]
    rules: AdoptRules
    records: str | None
    """The lines of the manifest about this tar."""


@dataclass(frozen=True)
class Adopted:
    """What came of adopting some tars."""

    manifest: Manifest
    refused: tuple[Refusal, ...]


def adopt(
    tars: Sequence[str], job: JobFolder, rules: AdoptRules, columns: Sequence[str], cluster: Cluster, progress: Progress
) -> Adopted:
    """Write sidecars, manifest and errors.jsonl into the job's folder.

    Raises:
        DataError: A tar is missing, cut or damaged, or ids are there twice.
    """
    refused: list[Refusal] = []
    records: list[str | None] = [None] * len(tars)
    if rules.manifests is not None:
        builder = ListingBuilder()
        records = list(split_records(builder, rules.manifests, tars, job.path))
        refused += builder.refused
    kinds = _infer(tars, rules, columns, records, cluster)
    names = _sidecar_names(tars)
    tasks = [
        _Task(tar, str(job.target / names[number]), str(job.target), number, kinds, rules, records[number])
        for number, tar in enumerate(tars)
    ]
    entries: dict[int, ShardEntry] = {}
    progress.begin("index", utterances=None, seconds=None)
    try:
        for number, (entry, found) in cluster.run(with_source(_adopt_tar), tasks, lambda number: tasks[number].tar):
            entries[number] = entry
            refused += found
            progress.advance(
                utterances=entry.utterances, seconds=entry.seconds, nbytes=entry.tar_bytes, refused=len(found)
            )
    finally:
        progress.end()
    ordered = [entries[number] for number in range(len(tars))]
    _refuse_duplicates(tasks)
    identity = {
        "format_version": FORMAT_VERSION,
        "adopted": True,
        "naming": FOREIGN,
        "rules": asdict(rules),
        "digest": digest_of_digests(entry.tar_digest for entry in ordered),
    }
    manifest = Manifest(tuple(ordered), dict(kinds), identity)
    if not manifest.utterances:
        first = f"; first: {refused[0].source}: {refused[0].reason}" if refused else ""
        raise DataError(f"no utterance in {len(tars)} tars ({len(refused)} refused{first})")
    _write_errors(job, refused)
    write_atomically(job.target / MANIFEST_NAME, job.scratch, encode_manifest(manifest))
    return Adopted(manifest, tuple(refused))


def is_ours(tar: str) -> bool:
    """Say whether a tar is one that uttershard wrote, by its first utterance."""
    with open_file(tar) as file:
        try:
            group = next(group_members(walk_tar_file(file, file.seek(0, 2)), "webdataset"), None)
            if group is None:
                return True  # an empty shard of ours; another tool's would be nothing to adopt
            if "json" not in group.members:
                return False
            metadata = read_metadata({"json": read_small(file, group.members["json"])})
        except TarError as error:
            raise DataError(f"{tar}: {error}") from error
        except DataError:
            return False
    key = metadata.get("id")
    return isinstance(key, str) and bool(key) and member_name(key) == group.key


def _adopt_tar(task: _Task) -> tuple[ShardEntry, list[Refusal]]:
    """Adopt one tar, or find that it has been."""
    job = JobFolder(Path(task.folder))
    record = job.path / "done" / f"{task.number:06d}.json"
    with open_file(task.tar) as file:
        size = file.seek(0, 2)
        key = [task.tar, size, dict(task.columns), asdict(task.rules)]
        done = _read_done(record, key, Path(task.sidecar))
        if done is not None:
            return done
        reader = _Tar(task, file, size)
        try:
            digest = reader.read()
        except TarError as error:
            raise DataError(f"{task.tar}: {error}") from error
    data = encode_sidecar(reader.rows.table(), SidecarInfo(size, digest, digest, naming=FOREIGN))
    write_atomically(Path(task.sidecar), job.scratch, data)
    seconds = reader.rows.seconds()
    entry = ShardEntry(
        tar=_address_in_manifest(task),
        sidecar=Path(task.sidecar).name,
        tar_bytes=size,
        tar_digest=digest,
        sidecar_bytes=len(data),
        sidecar_digest=digest_bytes(data),
        utterances=len(seconds),
        samples=reader.rows.samples(),
        seconds=sum(seconds),
        shortest_seconds=min(seconds, default=0.0),
        longest_seconds=max(seconds, default=0.0),
    )
    body = {"key": key, "entry": asdict(entry), "refused": [refusal._asdict() for refusal in reader.refused]}
    write_atomically(record, job.scratch, json.dumps(body, ensure_ascii=False).encode("utf-8"))
    return entry, reader.refused


class _Tar:
    """One tar being read: its rows, and what is refused."""

    def __init__(self, task: _Task, file: BinaryIO, size: int) -> None:
        self._task, self._file, self._size = task, file, size
        self.rows = SidecarRows(task.columns)
        self.refused: list[Refusal] = []
        self._records = None if task.records is None else TarRecords.read(Path(task.records))
        self._bytes = _BytesDigest(file)
        self._headers = xxhash.xxh3_128()

    def read(self) -> str:
        """Go through the tar and return its digest."""
        name = posixpath.basename(self._task.tar)
        for group in group_members(self._watched(), self._task.rules.naming):
            problem = group.problem
            if problem is None:
                try:
                    self._add(group)
                except (DataError, SegmentError) as error:
                    problem = str(error)
            if problem is not None:
                self.refused.append(Refusal(printable(group.key), printable(f"{name}:{group.key}"), printable(problem)))
        if self._records is not None:
            for line, reason in self._records.rest():
                self.refused.append(Refusal(None, line, reason))
        if self._task.rules.checksums:
            self._bytes.read_to(self._size)
            return self._bytes.digest.text()
        return f"{HEADERS_PREFIX}{self._headers.hexdigest()}"

    def _watched(self) -> Iterator[Member]:
        self._headers.update(f"{self._size}\n".encode())
        for member in walk_tar_file(self._file, self._size):
            self._headers.update(
                f"{member.header} {member.start} {member.size} {member.kind} {member.name}\n".encode(
                    "utf-8", "surrogateescape"
                )
            )
            yield member

    def _add(self, group: Group) -> None:
        span = None
        if self._task.rules.checksums:
            span = self._bytes.read_span(group.begin, group.end)
        small = read_texts(self._file, group)
        metadata = read_metadata(small)
        text = read_text(small, metadata)
        key = metadata.get("id")
        # Our own shards say in their `.json` what the id was; another tool's "id" may be anything.
        key = key if isinstance(key, str) and member_name(key) == group.key else group.key
        problem = key_problem(key)
        if problem is not None:
            raise DataError(problem)
        info = self._facts(group, span)
        if self._records is not None:
            fields = self._records.take(group.key, info.num_samples / info.sample_rate)
            text = fields.get("text")
            metadata = {**metadata, **fields}
        if self._task.rules.unique_ids:
            key = f"{posixpath.basename(self._task.tar).removesuffix('.tar')}/{key}"
        row = {
            "key": key,
            "num_samples": info.num_samples,
            "sample_rate": info.sample_rate,
            "channels": info.channels,
            "codec": info.codec,
            "text_chars": len(text or ""),
            **column_values(metadata, self._task.columns),
        }
        checksum = UNCHECKED if span is None else span_checksum(span)
        self.rows.add(row, Span(group.begin, group.end - group.begin, checksum))

    def _facts(self, group: Group, span: bytes | None) -> AudioInfo:
        audio = group.audio
        if span is not None:
            return measure(memoryview(span)[audio.start - group.begin :][: audio.size])
        file = buffered(RangeFile(self._file, audio.start, audio.size))
        info = probe(file)
        if info.codec in _EXACT_HEADERS:
            return info
        file.seek(0)
        return measure(file.read())


class _BytesDigest:
    """A digest over all bytes of a file, of which some are looked at on the way."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = FileDigest()

    def read_to(self, end: int) -> None:
        """Read on, and forget."""
        while self.digest.nbytes < end:
            self._read(min(_PIECE, end - self.digest.nbytes))

    def read_span(self, begin: int, end: int) -> bytes:
        """Read on to `begin`, and return what is from there to `end`."""
        self.read_to(begin)
        return self._read(end - begin)

    def _read(self, count: int) -> bytes:
        self._file.seek(self.digest.nbytes)
        data = self._file.read(count)
        if len(data) != count:
            raise TarError(f"the tar ends before byte {self.digest.nbytes + count}: it has been cut")
        self.digest.update(data)
        return data


def read_texts(file: BinaryIO, group: Group) -> dict[str, bytes]:
    """Read those members of a group that are text or metadata."""
    return {
        ending: read_small(file, member)
        for ending, member in group.members.items()
        if ending.rpartition(".")[2] in ("json", *TEXT_ENDINGS)
    }


def _infer(
    tars: Sequence[str], rules: AdoptRules, columns: Sequence[str], records: Sequence[str | None], cluster: Cluster
) -> dict[str, str]:
    """Find the types of metadata columns over all tars."""
    text = {TEXT_COLUMN: "string"} if rules.manifests is not None else {}
    wanted = [name for name in columns if name not in text]
    if not wanted:
        return text
    tasks = [(tar, tuple(wanted), rules.naming, records[number]) for number, tar in enumerate(tars)]
    found = [value for _, values in cluster.run(with_source(_metadata), tasks) for value in values]
    return {**infer_columns(pa.chunked_array([pa.array(found, pa.string())]), wanted), **text}


def _metadata(task: tuple[str, tuple[str, ...], str, str | None]) -> list[str]:
    """Return the distinct values of some metadata fields in a tar, as JSON objects."""
    tar, columns, naming, records = task
    found: dict[str, None] = {}

    def note(metadata: Mapping[str, Any]) -> None:
        found[json.dumps({name: metadata[name] for name in columns if name in metadata}, sort_keys=True)] = None

    for fields in TarRecords.read(Path(records)).fields() if records is not None else ():
        note(fields)
    with open_file(tar) as file:
        try:
            for group in group_members(walk_tar_file(file, file.seek(0, 2)), naming):
                try:
                    note(read_metadata(read_texts(file, group)))
                except DataError:
                    continue  # refused, with its reason, when the tar is adopted
        except TarError as error:
            raise DataError(f"{tar}: {error}") from error
    return list(found)


def _sidecar_names(tars: Sequence[str]) -> list[str]:
    stems = [posixpath.basename(tar).removesuffix(".tar") for tar in tars]
    if len(set(stems)) == len(stems):
        return [f"{stem}.parquet" for stem in stems]
    return [f"{number:06d}-{stem}.parquet" for number, stem in enumerate(stems)]


def _address_in_manifest(task: _Task) -> str:
    path = local_path(task.tar)
    if path is None:
        return task.tar
    beside = Path(path).parent.resolve() == Path(task.sidecar).parent.resolve()
    return Path(path).name if beside else str(Path(path).resolve())


def _read_done(record: Path, key: list[Any], sidecar: Path) -> tuple[ShardEntry, list[Refusal]] | None:
    try:
        body = json.loads(record.read_bytes())
        entry = ShardEntry(**body["entry"])
        if body["key"] != key or digest_bytes(sidecar.read_bytes()) != entry.sidecar_digest:
            return None
        return entry, [Refusal(**refusal) for refusal in body["refused"]]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None  # not there, cut, or of something else: adopted again


def _refuse_duplicates(tasks: Sequence[_Task]) -> None:
    tables = [decode_sidecar(Path(task.sidecar).read_bytes(), ["key"], task.sidecar)[0] for task in tasks]
    for row, first in duplicate_rows(pa.concat_tables(tables)["key"]):
        places = []
        for ordinal in (row, first):
            number = 0
            while ordinal >= tables[number].num_rows:
                ordinal -= tables[number].num_rows
                number += 1
            places.append((tables[number]["key"][ordinal].as_py(), tasks[number].tar))
        raise DataError(
            f"the id {places[0][0]!r} is in {places[1][1]} and in {places[0][1]}: with unique_ids (--unique-ids) the "
            "name of the tar goes before each id"
        )


def _write_errors(job: JobFolder, refused: list[Refusal]) -> None:
    path = job.target / ERRORS_NAME
    if not refused:
        path.unlink(missing_ok=True)
        return
    ordered = sorted(refused, key=lambda refusal: (refusal.source, refusal.key or "", refusal.reason))
    lines = "".join(f"{refusal.as_json()}\n" for refusal in ordered)
    write_atomically(path, job.scratch, lines.encode("utf-8"))
