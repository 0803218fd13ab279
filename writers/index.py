"""`index_tars`: make sidecars and manifest again from the tars; not a byte of a tar is changed.

The rows come from the same functions that packing uses, so the sidecars are the ones that packing wrote.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from uttershard.pipeline.dataset.digest import digest_bytes, digest_of_digests, span_checksum
from uttershard.pipeline.dataset.files import StorageOptions, join, local_path
from uttershard.pipeline.dataset.manifest import MANIFEST_NAME, Manifest, ShardEntry, decode_manifest, encode_manifest
from uttershard.pipeline.dataset.members import member_name
from uttershard.pipeline.dataset.sidecar import (
    FOREIGN,
    FORMAT_VERSION,
    SidecarInfo,
    decode_sidecar,
    encode_sidecar,
    metadata_columns,
)
from uttershard.pipeline.dataset.tar import Member, TarError, map_tar, split_name, walk_tar
from uttershard.pipeline.errors import ConfigError, DataError
from uttershard.pipeline.reading.codecs import AudioError

from .adopt import AdoptRules, adopt, is_ours
from .cluster import Cluster, ClusterSettings, cluster_settings, start_cluster
from .columns import infer_columns
from .commit import write_atomically
from .describe import SidecarRows, describe, read_record
from .job import JobFolder, lock
from .patterns import expand
from .progress import Progress, Silent
from .source_store import source_storage
from .tar_writer import Span

_RETRIES = 5


@dataclass(frozen=True)
class IndexSummary:
    """What `index_tars` has written."""

    dataset: str
    """Its address."""
    digest: str
    shards: int
    utterances: int
    hours: float
    changed: tuple[str, ...]
    """Sidecars that were not there before, or not with these bytes."""
    refused: int = 0
    """Samples of another tool's tars that are no utterances; errors.jsonl lists them."""


@dataclass(frozen=True)
class _TarTask:
    tar: str
    sidecar: str
    folder: str
    number: int
    columns: Mapping[str, str]
    fingerprint: str | None
    """None: of the tar itself."""


@dataclass(frozen=True)
class _Known:
    """What the manifest beside the tars says, or else a sidecar that is still there."""

    columns: dict[str, str]
    fingerprint: str | None
    identity: dict[str, Any] | None
    """The manifest's fingerprint, whole."""
    tar_digests: dict[str, str]


def index_tars(
    tars: Sequence[str],
    *,
    out: str | None = None,
    columns: Sequence[str] = (),
    naming: str | None = None,
    manifests: str | None = None,
    checksums: bool | None = None,
    unique_ids: bool = False,
    cluster: ClusterSettings | str | None = None,
    workers: int | None = None,
    retries: int = _RETRIES,
    progress: Progress | None = None,
    storage_options: StorageOptions | None = None,
) -> IndexSummary:
    """Write the sidecars and the manifest of shards that uttershard packed, or adopt those of another tool.

    A run that was stopped is continued by calling this again: tars that were done are not read again.

    Args:
        tars: Tars in the order of the dataset, or one folder: its `dataset.json` says which, else all that are in it.
            Addresses may be patterns (`train-{0000..0999}.tar`); tars of another tool may be in a store.
        out: Folder for sidecars and manifest; None for the folder of the tars.
        columns: Metadata fields that become columns; known already where there is a `dataset.json`.
        naming: Whose the tars are: `webdataset`, `wenet` or `nemo`; None for ours, else webdataset.
        manifests: NeMo's manifests, a pattern: a tar of NeMo holds no text.
        checksums: Whether all bytes of another tool's tars are read, so that damage is noticed when they are used;
            None for those on local disks.
        unique_ids: Put the tar's name before each id, for another tool's tars that all count from zero.
        cluster: Where tasks run (see `pack`).
        workers: Dask worker processes; None for one a CPU core.
        retries: How often a task is given to another worker.
        progress: Told how far it is.
        storage_options: Keyword arguments of the fsspec file system that holds another tool's tars.

    Raises:
        ConfigError: No tars, or columns that contradict the manifest.
        DataError: A tar is damaged, is not the one its manifest lists, or has members that are not of one utterance.
    """
    with source_storage(storage_options):
        foreign = _find_foreign(tars, naming, manifests, checksums, unique_ids)
        if foreign is not None:
            return _adopt(*foreign, out, columns, cluster_settings(cluster, workers), retries, progress or Silent())
    paths, home = _find_tars(tars)
    if out is None and home is None:
        raise ConfigError("the tars are in several folders: say with out= where sidecars and manifest go")
    known = (home and _read_manifest(home)) or _read_sidecars(paths)
    folder = Path(out or home or "")
    _check_request(paths, columns, known, in_place=folder == home)
    listener, where = progress or Silent(), cluster_settings(cluster, workers)
    with _job(folder) as job, start_cluster(where, retries, listener) as running:
        kinds = known.columns if known is not None else _infer(paths, columns, running)
        fingerprint = None if known is None else known.fingerprint
        tasks = [
            _TarTask(
                str(path.absolute()), str(job.target / _sidecar_name(path)), str(job.target), number, kinds, fingerprint
            )
            for number, path in enumerate(paths)
        ]
        entries, changed = _run(tasks, running, listener, {} if known is None else known.tar_digests)
        identity = (known and known.identity) or _adopted([entry.tar_digest for entry in entries], fingerprint)
        manifest = Manifest(tuple(entries), kinds, identity)
        write_atomically(folder / MANIFEST_NAME, job.scratch, encode_manifest(manifest))
        job.remove()
    return IndexSummary(
        str(folder), manifest.digest, len(entries), manifest.utterances, manifest.seconds / 3600, tuple(changed)
    )


def _find_foreign(
    tars: Sequence[str], naming: str | None, manifests: str | None, checksums: bool | None, unique_ids: bool
) -> tuple[list[str], AdoptRules] | None:
    """Return the addresses of another tool's tars and how they are taken, or None if the tars are ours."""
    known = _read_manifest(Path(tars[0])) if len(tars) == 1 and Path(tars[0]).is_dir() else None
    identity = known.identity if known is not None and known.identity is not None else {}
    if known is not None and identity.get("naming") != FOREIGN:
        return None
    if len(tars) == 1 and Path(tars[0]).is_dir():
        addresses = _listed_tars(Path(tars[0]))
    else:
        addresses = [_absolute(address) for address in expand(list(tars))] if tars else []
    remote = [address for address in addresses if local_path(address) is None]
    asked = naming is not None or manifests is not None or checksums is not None or unique_ids
    if not asked and not remote and not identity:
        missing = [address for address in addresses if not Path(address).is_file()]
        if not addresses or missing:
            return None
        named = _naming_of_sidecars(addresses)
        if named != FOREIGN and (named is not None or is_ours(addresses[0])):
            return None
    before = identity.get("rules", {})
    rules = AdoptRules(
        naming=naming or before.get("naming") or ("nemo" if manifests is not None else "webdataset"),
        manifests=manifests or before.get("manifests"),
        checksums=checksums if checksums is not None else before.get("checksums", not remote),
        unique_ids=unique_ids or before.get("unique_ids", False),
    )
    return addresses, rules


def _adopt(
    tars: list[str],
    rules: AdoptRules,
    out: str | None,
    columns: Sequence[str],
    where: ClusterSettings,
    retries: int,
    listener: Progress,
) -> IndexSummary:
    folders = {tar.rpartition("/")[0] for tar in tars}
    if out is None and (len(folders) > 1 or local_path(tars[0]) is None):
        raise ConfigError("the tars are in several folders or in a store: say with out= where sidecars and manifest go")
    folder = Path(out if out is not None else folders.pop())
    with _job(folder) as job, start_cluster(where, retries, listener) as running:
        adopted = adopt(tars, job, rules, columns, running, listener)
        job.remove()
    manifest = adopted.manifest
    names = tuple(shard.sidecar for shard in manifest.shards)
    return IndexSummary(
        str(folder),
        manifest.digest,
        len(names),
        manifest.utterances,
        manifest.seconds / 3600,
        names,
        len(adopted.refused),
    )


def _naming_of_sidecars(tars: Sequence[str]) -> str | None:
    """Return what the first readable sidecar beside the tars says of their naming."""
    for tar in tars:
        sidecar = Path(tar).with_suffix(".parquet")
        try:
            return decode_sidecar(sidecar.read_bytes(), [], str(sidecar))[1].naming
        except (FileNotFoundError, DataError):
            continue
    return None


def _listed_tars(folder: Path) -> list[str]:
    manifest = folder / MANIFEST_NAME
    if manifest.exists():
        listed = decode_manifest(manifest.read_bytes(), str(manifest)).shards
        return [join(str(folder.absolute()), shard.tar) for shard in listed]
    return [str(path) for path in sorted(folder.absolute().glob("*.tar"))]


def _absolute(address: str) -> str:
    path = local_path(address)
    return address if path is None else str(Path(path).absolute())


@contextmanager
def _job(folder: Path) -> Iterator[JobFolder]:
    """Hold the folder's job."""
    job = JobFolder(folder.absolute())
    if job.is_of_pack:
        raise ConfigError(f"{folder}: an unfinished pack is in it; finish that first (run the same command again)")
    with lock(job):
        job.create()
        job.clear_scratch()
        yield job


def _run(
    tasks: Sequence[_TarTask], cluster: Cluster, listener: Progress, tar_digests: Mapping[str, str]
) -> tuple[list[ShardEntry], list[str]]:
    entries: dict[int, ShardEntry] = {}
    changed: dict[int, str] = {}
    listener.begin("index", utterances=None, seconds=None)
    try:
        for number, (entry, is_new) in cluster.run(_index_tar, tasks, lambda number: tasks[number].tar):
            expected = tar_digests.get(Path(tasks[number].tar).name, entry.tar_digest)
            if expected != entry.tar_digest:
                raise DataError(
                    f"{tasks[number].tar}: not the tar that {MANIFEST_NAME} lists ({entry.tar_digest}, expected "
                    f"{expected}): it is damaged or replaced. Copy it again; if the change is meant, move the manifest "
                    "away and index again"
                )
            entries[number] = entry
            if is_new:
                changed[number] = Path(tasks[number].sidecar).name
            listener.advance(utterances=entry.utterances, seconds=entry.seconds, nbytes=entry.tar_bytes)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"stopped: {len(entries)} of {len(tasks)} tars are done. Run the same command again to go on"
        ) from None
    finally:
        listener.end()
    return [entries[number] for number in sorted(entries)], [changed[number] for number in sorted(changed)]


def _index_tar(task: _TarTask) -> tuple[ShardEntry, bool]:
    """Index one tar, or find that it has been; returns its entry and whether the sidecar is another than before."""
    tar, sidecar, job = Path(task.tar), Path(task.sidecar), JobFolder(Path(task.folder))
    record, key = job.path / "done" / f"{task.number:06d}.json", _key_of(task)
    done = _read_done(record, key, sidecar)
    if done is not None:
        return done
    rows = SidecarRows(task.columns)
    view = map_tar(tar)
    try:
        for members in _utterances(view):
            begin, end = members[0].header, members[-1].end
            description = _describe(members, view, task)
            rows.add(description, Span(begin, end - begin, span_checksum(view[begin:end])))
    except TarError as error:
        raise DataError(f"{tar}: {error}") from error
    digest, nbytes = digest_bytes(view), len(view)
    data = encode_sidecar(rows.table(), SidecarInfo(nbytes, digest, task.fingerprint or digest))
    is_new = not sidecar.exists() or sidecar.read_bytes() != data
    if is_new:
        write_atomically(sidecar, job.scratch, data)
    seconds = rows.seconds()
    beside = tar.parent.resolve() == sidecar.parent.resolve()
    entry = ShardEntry(
        tar=tar.name if beside else str(tar.resolve()),
        sidecar=sidecar.name,
        tar_bytes=nbytes,
        tar_digest=digest,
        sidecar_bytes=len(data),
        sidecar_digest=digest_bytes(data),
        utterances=len(seconds),
        samples=rows.samples(),
        seconds=sum(seconds),
        shortest_seconds=min(seconds, default=0.0),
        longest_seconds=max(seconds, default=0.0),
    )
    body = {"key": key, "entry": asdict(entry), "is_new": is_new}
    write_atomically(record, job.scratch, json.dumps(body, ensure_ascii=False).encode("utf-8"))
    return entry, is_new


def _key_of(task: _TarTask) -> list[Any]:
    """Return what tells that a record is of this very tar, indexed this way."""
    found = Path(task.tar).stat()
    return [task.tar, task.sidecar, found.st_size, found.st_mtime_ns, dict(task.columns), task.fingerprint]


def _read_done(record: Path, key: list[Any], sidecar: Path) -> tuple[ShardEntry, bool] | None:
    try:
        body = json.loads(record.read_bytes())
        entry = ShardEntry(**body["entry"])
        if body["key"] != key or digest_bytes(sidecar.read_bytes()) != entry.sidecar_digest:
            return None
        return entry, bool(body["is_new"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None  # not there, cut, or of something else: indexed again


def _utterances(tar: memoryview) -> Iterator[list[Member]]:
    """Group adjacent members of one name."""
    group: list[Member] = []
    for member in walk_tar(tar):
        if group and split_name(member.name)[0] != split_name(group[0].name)[0]:
            yield group
            group = []
        group.append(member)
    if group:
        yield group


def _describe(members: Sequence[Member], tar: memoryview, task: _TarTask) -> dict[str, Any]:
    stem = split_name(members[0].name)[0]
    where = f"{task.tar}: {stem} at offset {members[0].header}"
    parts = {split_name(member.name)[1]: bytes(tar[member.start : member.start + member.size]) for member in members}
    try:
        row = describe(parts, task.columns)
    except (AudioError, DataError) as error:
        raise DataError(f"{where}: {error}") from error
    if member_name(row["key"]) != stem:
        raise DataError(f"{where}: its .json says it is {row['key']!r}, whose members have another name")
    return row


def _find_tars(tars: Sequence[str]) -> tuple[list[Path], Path | None]:
    """Return the tars, and the folder of the dataset that they are; None if they are in several."""
    home = None
    if len(tars) == 1 and Path(tars[0]).is_dir():
        home = Path(tars[0])
        paths = [Path(tar) for tar in _listed_tars(home)]
    else:
        paths = [Path(tar) for tar in tars]
    if not paths:
        raise ConfigError(f"no tars in {', '.join(tars) or 'an empty list'}")
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise DataError(f"{missing[0]}: no such file ({len(missing)} of {len(paths)} tars are missing)")
    parents = {path.parent for path in paths}
    return paths, home or (parents.pop() if len(parents) == 1 else None)


def _sidecar_name(tar: Path) -> str:
    return tar.with_suffix(".parquet").name


def _check_request(paths: Sequence[Path], columns: Sequence[str], known: _Known | None, *, in_place: bool) -> None:
    names: dict[str, Path] = {}
    for path in paths:
        other = names.setdefault(_sidecar_name(path), path)
        if other is not path:
            raise ConfigError(f"{other} and {path} would have the same sidecar {_sidecar_name(path)}: rename one")
    if known is None:
        return
    if columns and list(columns) != list(known.columns):
        raise ConfigError(f"columns: the sidecars have {', '.join(known.columns) or 'none'}; leave them out")
    left_out = known.tar_digests.keys() - {path.name for path in paths}
    if in_place and left_out:
        raise ConfigError(
            f"{MANIFEST_NAME} lists {min(left_out)} too, which the new manifest would lose: give the folder, or say "
            "with out= where another dataset of fewer tars goes"
        )


def _read_manifest(folder: Path) -> _Known | None:
    path = folder / MANIFEST_NAME
    if not path.exists():
        return None
    manifest = decode_manifest(path.read_bytes(), str(path))
    digests = {Path(shard.tar).name: shard.tar_digest for shard in manifest.shards}
    fingerprint = str(manifest.fingerprint["digest"])
    was_known = fingerprint != _adopted(list(digests.values()), None)["digest"]
    return _Known(manifest.columns, fingerprint if was_known else None, manifest.fingerprint, digests)


def _read_sidecars(paths: Sequence[Path]) -> _Known | None:
    """Return what the first readable sidecar beside the tars says of all of them."""
    for path in paths:
        sidecar = path.with_suffix(".parquet")
        try:
            table, info = decode_sidecar(sidecar.read_bytes(), None, str(sidecar))
        except (FileNotFoundError, DataError):
            continue
        return _Known(
            metadata_columns(table), None if info.fingerprint == info.tar_digest else info.fingerprint, None, {}
        )
    return None


def _infer(paths: Sequence[Path], columns: Sequence[str], cluster: Cluster) -> dict[str, str]:
    """Find the types of metadata columns over all tars."""
    if not columns:
        return {}
    tasks = [(str(path), tuple(columns)) for path in paths]
    texts = [text for _, found in cluster.run(_metadata, tasks) for text in found]
    return infer_columns(pa.chunked_array([pa.array(texts, pa.string())]), columns)


def _metadata(task: tuple[str, tuple[str, ...]]) -> list[str]:
    """Return the distinct values of some metadata fields in a tar, as JSON objects."""
    path, columns = task
    found: dict[str, None] = {}
    view = map_tar(Path(path))
    try:
        for member in walk_tar(view):
            if split_name(member.name)[1] == "json":
                record = read_record(view[member.start : member.start + member.size])
                # All names, for a message that says which there are.
                values = {name: value if name in columns else None for name, value in record.items() if name != "id"}
                found[json.dumps(values, sort_keys=True)] = None
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    return list(found)


def _adopted(tar_digests: Sequence[str], fingerprint: str | None) -> dict[str, Any]:
    """Return the fingerprint of shards whose manifest is lost."""
    digest = fingerprint or digest_of_digests(tar_digests)
    return {"format_version": FORMAT_VERSION, "adopted": True, "digest": digest}
