"""`verify`: hold every byte of a dataset against what the manifest and the sidecars say of it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pyarrow as pa
from uttershard.pipeline.dataset.digest import UNCHECKED, FileDigest, is_of_bytes, span_checksum
from uttershard.pipeline.dataset.files import StorageOptions, local_path
from uttershard.pipeline.dataset.manifest import ShardEntry
from uttershard.pipeline.dataset.members import is_member_of, member_name
from uttershard.pipeline.dataset.shardset import ShardSet
from uttershard.pipeline.dataset.sidecar import FOREIGN, SidecarInfo
from uttershard.pipeline.dataset.tar import BLOCK, TarError, map_tar, split_name, walk_span
from uttershard.pipeline.errors import ConfigError, DataError, UttershardError
from uttershard.pipeline.reading.codecs import AudioError, decode
from uttershard.pipeline.reading.members import audio_members
from uttershard.pipeline.remote.retry import Limits
from uttershard.pipeline.remote.store import Store
from uttershard.pipeline.storage.coalesce import pieces

from .describe import read_record
from .entry import totals
from .progress import Done, Progress, Silent

_PIECE = 8 << 20
"""Bytes digested between two reports of progress."""
_REQUESTS = 4
"""Made at a time for one tar in a store."""


@dataclass(frozen=True)
class Problem:
    """Something that is not as it should be."""

    shard: str
    key: str | None
    """The utterance, or None if it is about the whole shard."""
    offset: int | None
    """Where in the tar, or None if it is about the whole shard."""
    what: str


@dataclass(frozen=True)
class VerifyReport:
    """What `verify` looked at and found."""

    dataset: str
    digest: str
    shards: int
    utterances: int
    seconds: float
    bytes: int
    """Of all tars."""
    deep: bool
    problems: tuple[Problem, ...]
    unread_bytes: int = 0
    """Bytes of tars in a store of which only the size was looked at."""

    @property
    def ok(self) -> bool:
        """Whether all is well."""
        return not self.problems


def verify(
    dataset: str,
    *,
    deep: bool = False,
    full: bool = False,
    workers: int = 4,
    progress: Progress | None = None,
    storage_options: StorageOptions | None = None,
    limits: Limits | None = None,
) -> VerifyReport:
    """Check sizes, digests and checksums of all shards, sidecars and utterances; with `deep` decode all audio too.

    Of tars in a store only the sizes are looked at, and the sidecars are read: `full` or `deep` fetch the tars too.

    Args:
        dataset: Address of the dataset.
        deep: Decode every utterance and count its samples.
        full: Read every byte, also where that means to fetch it.
        workers: Threads; checking and decoding release the GIL.
        progress: Told how far it is.
        storage_options: Keyword arguments of the dataset's fsspec file system.
        limits: How long a read from a store may take.

    Raises:
        DataError: There is no dataset, or its manifest is damaged. All else is in the report.
    """
    if workers < 1:
        raise ConfigError(f"workers is {workers}; it must be 1 or more")
    opened = ShardSet.open(dataset, storage_options, limits)
    manifest, listener = opened.manifest, progress or Silent()
    full = full or deep
    unread = [0 if full else _unread(opened, shard) for shard in range(len(manifest.shards))]
    problems: list[Problem] = []
    listener.begin("verify", utterances=manifest.utterances, seconds=manifest.seconds)
    try:
        with ThreadPoolExecutor(workers) as pool:
            for shard, found in enumerate(
                pool.map(lambda index: _check_shard(opened, index, deep, full), range(len(manifest.shards)))
            ):
                entry = manifest.shards[shard]
                problems.extend(found)
                nbytes = entry.tar_bytes - unread[shard]
                listener.advance(Done(entry.utterances, entry.seconds, nbytes, refused=len(found)))
    finally:
        listener.end()
    return VerifyReport(
        dataset=opened.address,
        digest=opened.digest,
        shards=len(manifest.shards),
        utterances=manifest.utterances,
        seconds=manifest.seconds,
        bytes=manifest.tar_bytes,
        deep=deep,
        problems=tuple(problems),
        unread_bytes=sum(unread),
    )


def _unread(dataset: ShardSet, shard: int) -> int:
    return 0 if local_path(dataset.tar_address(shard)) else dataset.manifest.shards[shard].tar_bytes


def _check_shard(dataset: ShardSet, shard: int, deep: bool, full: bool) -> list[Problem]:
    entry = dataset.manifest.shards[shard]
    try:
        dataset.check_tar_size(shard)
        rows, info = dataset.sidecar(shard)
    except UttershardError as error:
        return [Problem(entry.tar, None, None, str(error))]
    problems = _check_totals(entry, rows)
    path = local_path(dataset.tar_address(shard))
    if path is None and not full:
        return problems
    try:
        with nullcontext(Path(path)) if path is not None else _fetched(dataset, shard) as file:
            return problems + _check_tar(map_tar(file), entry, rows, info, deep)
    except UttershardError as error:
        return [*problems, Problem(entry.tar, None, None, str(error))]


@contextmanager
def _fetched(dataset: ShardSet, shard: int) -> Iterator[Path]:
    """Fetch a tar from a store into a temporary file."""
    store, address = Store(dataset.storage_options, dataset.limits), dataset.tar_address(shard)
    size = dataset.manifest.shards[shard].tar_bytes
    with NamedTemporaryFile(prefix="uttershard-verify-") as file, ThreadPoolExecutor(_REQUESTS) as pool:
        for data in pool.map(lambda piece: store.read_range(address, piece[0], piece[1], size), pieces(size)):
            file.write(data)
        file.flush()
        yield Path(file.name)


def _check_tar(tar: memoryview, entry: ShardEntry, rows: pa.Table, info: SidecarInfo, deep: bool) -> list[Problem]:
    foreign = info.naming == FOREIGN
    problems = [
        Problem(entry.tar, row["key"], row["offset"], what)
        for row, expected in _with_expected_offset(rows.to_pylist())
        # Adopted tars may hold other things between utterances.
        for what in _check_utterance(tar, row, row["offset"] if foreign else expected, deep, foreign)
    ]
    if not is_of_bytes(entry.tar_digest):
        return problems
    digest = FileDigest()
    for start in range(0, len(tar), _PIECE):
        digest.update(tar[start : start + _PIECE])
    if digest.text() != entry.tar_digest and all(problem.key is None for problem in problems):
        # No utterance is touched: the damage is in the end mark.
        problems.append(Problem(entry.tar, None, None, f"digest {digest.text()}, the manifest says {entry.tar_digest}"))
    return problems


def _check_totals(entry: ShardEntry, rows: pa.Table) -> list[Problem]:
    """Compare what the manifest says of a shard's audio with its sidecar."""
    return [
        Problem(entry.tar, None, None, f"the manifest says {name} {getattr(entry, name)}, its sidecar {value}")
        for name, value in totals(rows).items()
        if getattr(entry, name) != value
    ]


def _with_expected_offset(rows: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], int]]:
    """Pair each row with the end of the row before it: utterances follow one another without a gap."""
    expected = 0
    for row in rows:
        yield row, expected
        expected = row["offset"] + row["nbytes"]


def _check_utterance(
    tar: memoryview, row: dict[str, Any], expected_offset: int, deep: bool, foreign: bool
) -> list[str]:
    span = tar[row["offset"] : row["offset"] + row["nbytes"]]
    if row["offset"] != expected_offset or len(span) != row["nbytes"] or len(span) % BLOCK:
        return [
            f"the sidecar places it at {row['offset']} with {row['nbytes']} bytes, which does not follow from its rows"
        ]
    if row["xxh3"] != UNCHECKED and span_checksum(span) != row["xxh3"]:
        return ["its bytes are damaged: the checksum does not match the sidecar's"]
    try:
        members = {member.name: span[member.start : member.start + member.size] for member in walk_span(span)}
    except TarError as error:
        return [str(error)]
    belongs = is_member_of if foreign else _is_named_by
    problems = [f"member {name} belongs to another id" for name in members if not belongs(name, row["key"])]
    parts = {split_name(name)[1]: data for name, data in members.items()}
    try:
        if not foreign and read_record(parts.get("json", b"null"))["id"] != row["key"]:
            problems.append("its .json member holds another id")
    except DataError as error:
        problems.append(str(error))
    audio = [parts[ending] for ending in audio_members(parts)]
    if len(audio) != 1:
        problems.append(f"{len(audio)} audio members")
    elif deep:
        problems.extend(_check_audio(audio[0], row))
    return problems


def _is_named_by(name: str, key: str) -> bool:
    return split_name(name)[0] == member_name(key)


def _check_audio(audio: memoryview, row: dict[str, Any]) -> list[str]:
    try:
        decode(row["codec"], audio, row["num_samples"], row["channels"])
    except AudioError as error:
        return [f"its audio does not decode: {error}"]
    return []
