"""One task of `index`: the sidecar of one tar and a record of it, or finding that both are there already."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from uttershard.pipeline.dataset.digest import digest_bytes
from uttershard.pipeline.dataset.files import StorageOptions
from uttershard.pipeline.dataset.manifest import ShardEntry
from uttershard.pipeline.dataset.sidecar import SidecarInfo, encode_sidecar
from uttershard.pipeline.dataset.tar import TarError
from uttershard.pipeline.errors import DataError

from .adopt import AdoptRules, read_foreign
from .entry import make_entry
from .index_records import DONE, read_record, record_key, write_record
from .listing import Refusal
from .nemo_records import TarRecords
from .own_tar import read_own
from .tar_input import TarInput, open_tar
from .tar_rows import TarRows
from .targets.base import Target
from .targets.limits import WriteLimits
from .targets.opening import open_target


@dataclass(frozen=True)
class IndexTask:
    """All that a worker needs to know."""

    target: str
    number: int
    tar: str
    """Its address."""
    listed: str
    """The same as the manifest lists it."""
    sidecar: str
    """Its name."""
    written_as: str
    """The name of a new one until the end of the job: its own, or one in the job's folder if a manifest lists it."""
    columns: Mapping[str, str]
    rules: AdoptRules | None
    """None for a tar of ours."""
    fingerprint: str | None
    """None: of the tar itself."""
    records: str | None = None
    """The name of what NeMo's manifest says of this tar, in the job's folder."""
    stop: bool = False
    """Whether the first sample that is no utterance is an error."""
    storage_options: StorageOptions | None = field(default=None, repr=False)
    """Never shown, since they may hold credentials."""


@dataclass(frozen=True)
class IndexedTar:
    """What a task returns."""

    entry: ShardEntry
    refused: tuple[Refusal, ...]
    is_new: bool
    """Whether the sidecar was not there before, or not with these bytes."""
    notes: tuple[str, ...] = ()
    fetched_bytes: int = 0
    """Read of a tar in a store, by this run."""

    def found_as(self, task: IndexTask) -> str:
        """Return the name that its sidecar has until the end of the job."""
        return task.written_as if self.is_new else task.sidecar


def index_tar(task: IndexTask) -> IndexedTar:
    """Index one tar.

    Raises:
        DataError: It is cut or damaged.
    """
    target = open_target(task.target, task.storage_options, WriteLimits())
    records = None if task.records is None else target.read(task.records) or b""
    with open_tar(task.tar, task.storage_options, whole=task.rules is None or task.rules.checksums) as tar:
        rules = None if task.rules is None else asdict(task.rules)
        key = record_key(tar, records, task.sidecar, dict(task.columns), task.fingerprint, rules)
        done = _read_done(target, task, key)
        if done is not None:
            return done
        rows = _read(task, tar, records)
        indexed = _write(target, task, tar, rows)
        refused = [refusal._asdict() for refusal in indexed.refused]
        write_record(target, _record_name(task), key, {**asdict(indexed), "refused": refused})
        return replace(indexed, fetched_bytes=tar.fetched_bytes())


def write_sidecar(target: Target, task: IndexTask, data: bytes) -> bool:
    """Put a sidecar where it is until the end of the job, unless it is in its place already; say whether it is not."""
    is_new = target.read(task.sidecar) != data
    if is_new:
        target.put(task.written_as, data)
    return is_new


def read_sidecar(target: Target, name: str) -> bytes:
    """Read a sidecar of this job."""
    data = target.read(name)
    if data is None:
        raise DataError(f"{target.where(name)}: was removed while indexing; run the same command again")
    return data


def _read(task: IndexTask, tar: TarInput, records: bytes | None) -> TarRows:
    try:
        if task.rules is None:
            return read_own(tar, task.columns)
        parsed = None if records is None else TarRecords.parse(records)
        return read_foreign(tar, task.rules, task.columns, parsed, stop=task.stop)
    except TarError as error:
        raise DataError(f"{task.tar}: {error}") from error


def _write(target: Target, task: IndexTask, tar: TarInput, rows: TarRows) -> IndexedTar:
    info = SidecarInfo(tar.size, rows.digest, task.fingerprint or rows.digest, naming=rows.naming)
    data = encode_sidecar(rows.table, info)
    entry = make_entry(task.listed, task.sidecar, info, data, rows.table)
    notes = tuple(f"{task.tar}: {note}" for note in rows.notes)
    return IndexedTar(entry, rows.refused, write_sidecar(target, task, data), notes)


def _record_name(task: IndexTask) -> str:
    return f"{DONE}{task.number:06d}.json"


def _read_done(target: Target, task: IndexTask, key: list[Any]) -> IndexedTar | None:
    body = read_record(target, _record_name(task), key)
    if body is None:
        return None
    try:
        entry = ShardEntry(**body.pop("entry"))
        refused = tuple(Refusal(**refusal) for refusal in body.pop("refused"))
        done = IndexedTar(entry, refused, bool(body["is_new"]), tuple(body["notes"]))
    except (KeyError, TypeError):
        return None  # of something else: indexed again
    return done if digest_bytes(target.read(done.found_as(task)) or b"") == entry.sidecar_digest else None
