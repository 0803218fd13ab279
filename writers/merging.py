"""`merge`: several datasets as one; their tars stay where they are, sidecars are only written anew where they must be.

A sidecar must be written anew if the datasets have different metadata columns, if ids get a prefix, or if it is on this
machine only and the result is in a store.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from uttershard.pipeline.dataset.digest import digest_bytes, digest_of_digests
from uttershard.pipeline.dataset.files import StorageOptions, local_path
from uttershard.pipeline.dataset.manifest import MANIFEST_NAME, Manifest, ShardEntry, encode_manifest, shard_names
from uttershard.pipeline.dataset.shardset import ShardSet
from uttershard.pipeline.dataset.sidecar import FOREIGN, FORMAT_VERSION, encode_sidecar, sidecar_schema
from uttershard.pipeline.errors import ConfigError, DataError
from uttershard.pipeline.remote.faults import redact

from .progress import Done, Progress, Silent
from .target import check_new
from .targets.base import Target
from .targets.limits import WriteLimits
from .targets.opening import open_target

_SHOWN = 3


@dataclass(frozen=True)
class MergeSummary:
    """What `merge` has written."""

    dataset: str
    digest: str
    datasets: int
    shards: int
    utterances: int
    hours: float
    sidecars_written: int


def merge(
    datasets: Sequence[str],
    out: str,
    *,
    prefixes: Sequence[str] = (),
    progress: Progress | None = None,
    storage_options: StorageOptions | None = None,
) -> MergeSummary:
    """Join datasets into one that points at their tars.

    Args:
        datasets: Addresses, in the order of the result; not one of them is changed, and all have to stay.
        out: Folder of the new manifest, local or in a store; must not hold a dataset.
        prefixes: For each dataset what its ids get in front, so that equal ids can be told apart: nothing, or what ends
            with a slash. None by default.
        progress: Told how far it is.
        storage_options: Keyword arguments of the fsspec file system of the datasets, and of `out` in a store.

    Raises:
        ConfigError: Fewer than two datasets, prefixes that do not fit, columns of one name with types that don't, or
            local tars that a manifest in a store would point at.
        DataError: An id that is there twice; the message names it and both datasets.
    """
    if len(datasets) < 2:
        raise ConfigError("merge joins two datasets or more")
    if prefixes and len(prefixes) != len(datasets):
        raise ConfigError(f"{len(prefixes)} prefixes for {len(datasets)} datasets: give one for each (it may be empty)")
    odd = [prefix for prefix in prefixes if prefix and not prefix.endswith("/")]
    if odd:
        raise ConfigError(f"the prefix {odd[0]!r} must end with a slash ({odd[0]}/), which tells it from the id")
    opened = [ShardSet.open(address, storage_options) for address in datasets]
    chosen = list(prefixes) or [""] * len(opened)
    target = open_target(out, storage_options, WriteLimits())
    check_new(target)
    _refuse_local_tars(opened, out)
    columns = _joined_columns(opened)
    _refuse_duplicates(opened, chosen)
    listener, entries, written = progress or Silent(), list[ShardEntry](), 0
    listener.begin("merge", utterances=sum(part.manifest.utterances for part in opened), seconds=None)
    try:
        with target.hold(lambda: False, listener):
            for part, prefix in zip(opened, chosen, strict=True):
                for shard, entry in enumerate(part.manifest.shards):
                    pointed = _pointing(part, shard)
                    is_stranded = local_path(out) is None and local_path(part.sidecar_address(shard)) is not None
                    if prefix or part.manifest.columns != columns or is_stranded:
                        name = shard_names(len(entries))[1]
                        pointed = _with_new_sidecar(part, shard, columns, prefix, name, target)
                        written += 1
                    entries.append(pointed)
                    listener.advance(Done(utterances=entry.utterances, seconds=entry.seconds))
            manifest = Manifest(tuple(entries), columns, _fingerprint(opened, chosen))
            target.put(MANIFEST_NAME, encode_manifest(manifest), only_new=True)
    finally:
        listener.end()
    return MergeSummary(
        str(target), manifest.digest, len(opened), len(entries), manifest.utterances, manifest.seconds / 3600, written
    )


def _refuse_local_tars(opened: Sequence[ShardSet], out: str) -> None:
    if local_path(out) is not None:
        return
    for part in opened:
        for shard in range(len(part.manifest.shards)):
            if local_path(tar := part.tar_address(shard)) is not None:
                raise ConfigError(
                    f"{redact(out)}: would point at {tar}, which is on this machine only: copy that dataset into the "
                    "store first, or merge into a local folder"
                )


def _joined_columns(opened: Sequence[ShardSet]) -> dict[str, str]:
    """Return the metadata columns of all, in the order in which they are met."""
    columns: dict[str, tuple[str, str]] = {}
    for part in opened:
        for name, kind in part.manifest.columns.items():
            known, where = columns.setdefault(name, (kind, part.address))
            if {known, kind} == {"int64", "float64"}:
                columns[name] = ("float64", where)
            elif known != kind:
                raise ConfigError(
                    f"the column {name!r} is {known} in {where} and {kind} in {part.address}: pack one of them again "
                    "with the field under another name"
                )
    return {name: kind for name, (kind, _) in columns.items()}


def _refuse_duplicates(opened: Sequence[ShardSet], prefixes: Sequence[str]) -> None:
    keys = [
        pa.chunked_array([pa.array([], pa.string()), *_prefixed(part.index(["key"])["key"], prefix).chunks])
        for part, prefix in zip(opened, prefixes, strict=True)
    ]
    counts = pa.chunked_array([chunk for column in keys for chunk in column.chunks]).value_counts()
    repeated = [entry["values"] for entry in counts.filter(pc.greater(counts.field("counts"), 1)).to_pylist()]
    if not repeated:
        return
    key = repeated[0]
    holders = [part.address for part, column in zip(opened, keys, strict=True) if column.index(key).as_py() >= 0]
    shown = ", ".join(map(repr, repeated[:_SHOWN]))
    raise DataError(
        f"{len(repeated)} ids are there twice, e.g. {shown} in {' and '.join(holders) or 'one dataset'}: "
        "give each dataset a prefix, e.g. --prefix a/ --prefix b/"
    )


def _prefixed(keys: pa.ChunkedArray, prefix: str) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(prefix, keys, "") if prefix else keys


def _pointing(part: ShardSet, shard: int) -> ShardEntry:
    """Return a shard's entry with addresses that are good from everywhere."""
    entry = part.manifest.shards[shard]
    return replace(entry, tar=_absolute(part.tar_address(shard)), sidecar=_absolute(part.sidecar_address(shard)))


def _with_new_sidecar(
    part: ShardSet, shard: int, columns: Mapping[str, str], prefix: str, name: str, target: Target
) -> ShardEntry:
    table, info = part.sidecar(shard)
    schema = sidecar_schema(dict(columns))
    arrays = [
        table[field.name].cast(field.type) if field.name in table.schema.names else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    joined = pa.table(arrays, schema=schema)
    if prefix:
        joined = joined.set_column(0, schema.field("key"), _prefixed(joined["key"], prefix))
        info = replace(info, naming=FOREIGN)  # its members are still named after the old id
    data = encode_sidecar(joined.combine_chunks(), info)
    target.put(name, data)
    entry = _pointing(part, shard)
    return replace(entry, sidecar=name, sidecar_bytes=len(data), sidecar_digest=digest_bytes(data))


def _fingerprint(opened: Sequence[ShardSet], prefixes: Sequence[str]) -> dict[str, Any]:
    parts = [{"digest": part.digest, "prefix": prefix} for part, prefix in zip(opened, prefixes, strict=True)]
    digest = digest_of_digests(f"{part['digest']} {digest_bytes(part['prefix'].encode())}" for part in parts)
    return {"format_version": FORMAT_VERSION, "merged": parts, "digest": digest}


def _absolute(address: str) -> str:
    path = local_path(address)
    return address if path is None else str(Path(path).absolute())
