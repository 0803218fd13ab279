"""`index_tars`: make sidecars and manifest again from the tars; not a byte of a tar is changed.

The rows come from the same functions that packing uses, so the sidecars are the ones that packing wrote.
"""

import json
import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from uttershard.pipeline.dataset.digest import digest_bytes, digest_of_digests, span_checksum
from uttershard.pipeline.dataset.manifest import MANIFEST_NAME, Manifest, ShardEntry, decode_manifest, encode_manifest
from uttershard.pipeline.dataset.members import member_name
from uttershard.pipeline.dataset.sidecar import FORMAT_VERSION, SidecarInfo, encode_sidecar
from uttershard.pipeline.dataset.tar import Member, split_name, walk_tar
from uttershard.pipeline.errors import ConfigError, DataError
from uttershard.pipeline.reading.codecs import AudioError

from .cluster import Cluster, local_cluster
from .columns import infer_columns
from .commit import write_atomically
from .describe import SidecarRows, describe
from .progress import Progress, Silent
from .tar_writer import Span

_RETRIES = 3


@dataclass(frozen=True)
class IndexSummary:
    """What `index_tars` has written."""

    target: str
    digest: str
    shards: int
    utterances: int
    hours: float
    changed: tuple[str, ...]
    """Sidecars that were not there before, or not with these bytes."""


@dataclass(frozen=True)
class _TarTask:
    tar: str
    sidecar: str
    scratch: str
    columns: Mapping[str, str]
    fingerprint: str | None
    """None: of the tar itself."""


@dataclass(frozen=True)
class _Known:
    """What the manifest beside the tars says, if there is one."""

    columns: dict[str, str]
    fingerprint: dict[str, Any]
    tar_digests: dict[str, str]


def index_tars(
    tars: Sequence[str],
    *,
    out: str | None = None,
    columns: Sequence[str] = (),
    workers: int | None = None,
    progress: Progress | None = None,
) -> IndexSummary:
    """Write the sidecars and the manifest of shards that uttershard packed.

    Args:
        tars: Tars in the order of the dataset, or one folder: its `dataset.json` says which, else all that are in it.
        out: Folder for sidecars and manifest; None for the folder of the tars.
        columns: Metadata fields that become columns; known already where there is a `dataset.json`.
        workers: Dask worker processes; None for one a CPU core.
        progress: Told how far it is.

    Raises:
        ConfigError: No tars, or columns that contradict the manifest.
        DataError: A tar is damaged, is not the one its manifest lists, or has members that are not of one utterance.
    """
    paths = _find_tars(tars)
    known = _read_known(paths[0].parent)
    folder = Path(out) if out is not None else paths[0].parent
    if out is None and any(path.parent != folder for path in paths):
        raise ConfigError("the tars are in several folders: say with out= where sidecars and manifest go")
    if known is not None and columns and list(columns) != list(known.columns):
        raise ConfigError(
            f"columns: the manifest beside the tars has {', '.join(known.columns) or 'none'}; leave them out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    listener = progress or Silent()
    with local_cluster(workers, _RETRIES) as cluster, TemporaryDirectory(prefix=".uttershard-", dir=folder) as scratch:
        kinds = known.columns if known is not None else _infer(paths, columns, cluster)
        fingerprint = None if known is None else str(known.fingerprint["digest"])
        tasks = [
            _TarTask(str(path), str(folder / path.with_suffix(".parquet").name), scratch, kinds, fingerprint)
            for path in paths
        ]
        entries, changed = _run(tasks, cluster, listener, known)
        identity = known.fingerprint if known is not None else _adopted([entry.tar_digest for entry in entries])
        manifest = Manifest(tuple(entries), kinds, identity)
        write_atomically(folder / MANIFEST_NAME, Path(scratch), encode_manifest(manifest))
    return IndexSummary(
        str(folder), manifest.digest, len(entries), manifest.utterances, manifest.seconds / 3600, tuple(changed)
    )


def _run(
    tasks: Sequence[_TarTask], cluster: Cluster, listener: Progress, known: _Known | None
) -> tuple[list[ShardEntry], list[str]]:
    entries: dict[int, ShardEntry] = {}
    changed: dict[int, str] = {}
    listener.begin("index", utterances=None, seconds=None)
    try:
        for number, (entry, is_new) in cluster.run(_index_tar, tasks):
            expected = None if known is None else known.tar_digests.get(Path(tasks[number].tar).name)
            if expected is not None and expected != entry.tar_digest:
                raise DataError(
                    f"{tasks[number].tar}: not the tar that {MANIFEST_NAME} lists ({entry.tar_digest}, "
                    f"expected {expected}): it is damaged or replaced. Copy it again; if the change is meant, move the "
                    "manifest away and index again"
                )
            entries[number] = entry
            if is_new:
                changed[number] = Path(tasks[number].sidecar).name
            listener.advance(utterances=entry.utterances, seconds=entry.seconds, nbytes=entry.tar_bytes)
    finally:
        listener.end()
    return [entries[number] for number in sorted(entries)], [changed[number] for number in sorted(changed)]


def _index_tar(task: _TarTask) -> tuple[ShardEntry, bool]:
    """Index one tar; returns its entry and whether the sidecar is another than before."""
    tar, sidecar = Path(task.tar), Path(task.sidecar)
    rows = SidecarRows(task.columns)
    with tar.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = memoryview(mapped)
        try:
            for members in _utterances(view, task.tar):
                begin, end = members[0].header, members[-1].end
                span = view[begin:end]
                rows.add(_describe(members, view, task), Span(begin, end - begin, span_checksum(span)))
                span.release()
            digest, nbytes = digest_bytes(view), len(view)
        finally:
            view.release()
    data = encode_sidecar(rows.table(), SidecarInfo(nbytes, digest, task.fingerprint or digest))
    is_new = not sidecar.exists() or sidecar.read_bytes() != data
    if is_new:
        write_atomically(sidecar, Path(task.scratch), data)
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
    return entry, is_new


def _utterances(tar: memoryview, where: str) -> Iterator[list[Member]]:
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


def _find_tars(tars: Sequence[str]) -> list[Path]:
    if len(tars) == 1 and Path(tars[0]).is_dir():
        folder = Path(tars[0])
        manifest = folder / MANIFEST_NAME
        if manifest.exists():
            listed = decode_manifest(manifest.read_bytes(), str(manifest)).shards
            return [folder / shard.tar for shard in listed]
        paths = sorted(folder.glob("*.tar"))
    else:
        paths = [Path(tar) for tar in tars]
    if not paths:
        raise ConfigError(f"no tars in {', '.join(tars) or 'an empty list'}")
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise DataError(f"{missing[0]}: no such file ({len(missing)} of {len(paths)} tars are missing)")
    return paths


def _read_known(folder: Path) -> _Known | None:
    manifest_path = folder / MANIFEST_NAME
    if not manifest_path.exists():
        return None
    manifest = decode_manifest(manifest_path.read_bytes(), str(manifest_path))
    digests = {Path(shard.tar).name: shard.tar_digest for shard in manifest.shards}
    return _Known(manifest.columns, manifest.fingerprint, digests)


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
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = memoryview(mapped)
        try:
            for member in walk_tar(view):
                if split_name(member.name)[1] == "json":
                    record = json.loads(bytes(view[member.start : member.start + member.size]))
                    found[json.dumps({name: record.get(name) for name in columns}, sort_keys=True)] = None
        finally:
            view.release()
    return list(found)


def _adopted(tar_digests: Sequence[str]) -> dict[str, Any]:
    """Return the fingerprint of shards of which nothing is known but their bytes."""
    return {"format_version": FORMAT_VERSION, "adopted": True, "digest": digest_of_digests(tar_digests)}
