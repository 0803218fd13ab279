"""`subset`: some utterances of a dataset as a new one; their bytes are copied, nothing is decoded.

Two utterances whose members have one name (from datasets that were merged with prefixes) may come into one tar: the
second is then called after its id.

Which: those that pass the filters, and of these, with `hours`, a random sample of so much audio. The sample of fewer
hours is contained in that of more, and does not depend on how the dataset is sharded.
"""

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from uttershard.pipeline.dataset.digest import UNCHECKED, FileDigest, digest_bytes, span_checksum
from uttershard.pipeline.dataset.files import StorageOptions
from uttershard.pipeline.dataset.manifest import MANIFEST_NAME, Manifest, ShardEntry, encode_manifest, shard_names
from uttershard.pipeline.dataset.members import member_name
from uttershard.pipeline.dataset.shardset import ShardSet
from uttershard.pipeline.dataset.sidecar import FOREIGN, FORMAT_VERSION, SidecarInfo, encode_sidecar, sidecar_schema
from uttershard.pipeline.dataset.tar import split_name, walk_span
from uttershard.pipeline.errors import ConfigError, DataError
from uttershard.pipeline.planning.corpus import build_corpus
from uttershard.pipeline.planning.settings import Filters
from uttershard.pipeline.reading.members import read_metadata
from uttershard.pipeline.storage.base import Spans, Storage
from uttershard.pipeline.storage.open import open_storage
from uttershard.pipeline.storage.settings import StorageSettings

from .assign import assign, shard_count, shuffle
from .describe import encode_record
from .entry import make_entry
from .progress import Done, Progress, Silent
from .tar_writer import ShardTar, end_mark
from .target import check_new
from .targets.base import Target
from .targets.limits import WriteLimits
from .targets.opening import open_target

_ROWS = 64
"""Utterances whose bytes are in memory at a time."""


@dataclass(frozen=True)
class SubsetSummary:
    """What `subset` has written."""

    dataset: str
    digest: str
    shards: int
    utterances: int
    hours: float
    filtered: dict[str, int]
    """How many the filters kept, and how many each removed."""


def subset(
    dataset: str,
    out: str,
    *,
    filters: Filters | None = None,
    hours: float | None = None,
    seed: int = 0,
    shards: int | None = None,
    shard_bytes: int = 512_000_000,
    multiple: int = 8,
    workers: int = 4,
    progress: Progress | None = None,
    storage_options: StorageOptions | None = None,
) -> SubsetSummary:
    """Copy some utterances of a dataset into a new one.

    Args:
        dataset: Address of the dataset.
        out: Folder of the new one, local or in a store; must not hold a dataset.
        filters: Which utterances; None for all.
        hours: Of those, a random sample of at most this much audio, short of it by less than the next utterance.
        seed: Of the sample, and of how utterances are dealt to shards.
        shards: Number of shards; None derives it from `shard_bytes` and `multiple`, as when packing.
        shard_bytes: Size of a shard to aim at.
        multiple: The number of shards is rounded up to a multiple of this.
        workers: Threads that copy.
        progress: Told how far it is.
        storage_options: Keyword arguments of the fsspec file system of the dataset, and of `out` in a store.

    Raises:
        ConfigError: Nothing is selected, or the folder holds a dataset.
        DataError: An utterance that is copied is damaged.
    """
    if hours is not None and not hours > 0:
        raise ConfigError(f"hours is {hours}; it must be above 0")
    opened, listener = ShardSet.open(dataset, storage_options), progress or Silent()
    target = open_target(out, storage_options, WriteLimits())
    check_new(target)
    table = opened.index()
    corpus = build_corpus(table, rows_per_tar=opened.rows_per_shard, total_shards=1, filters=filters or Filters())
    rows = _sample(table, np.flatnonzero(corpus.kept), hours, seed)
    shard_of = np.repeat(np.arange(len(opened.rows_per_shard), dtype=np.int32), opened.rows_per_shard)
    chosen = table.append_column("shard", pa.array(shard_of)).take(pa.array(rows)).combine_chunks()
    count = shard_count(
        len(rows), int(chosen["nbytes"].to_numpy().sum()), shards=shards, shard_bytes=shard_bytes, multiple=multiple
    )
    dealt = assign(chosen["key"].to_pylist(), _seconds(chosen), count, seed)
    identity = _fingerprint(opened, filters or Filters(), hours, seed, count)
    with target.hold(lambda: False, listener):
        copier = _Copier(opened, target, identity["digest"], listener)
        entries = copier.copy_all([chosen.take(pa.array(part)) for part in dealt], _seconds(chosen), workers)
        manifest = Manifest(tuple(entries), dict(opened.manifest.columns), identity)
        target.put(MANIFEST_NAME, encode_manifest(manifest), only_new=True)
    return SubsetSummary(
        str(target), manifest.digest, count, manifest.utterances, manifest.seconds / 3600, dict(corpus.filtered)
    )


def _sample(table: pa.Table, rows: NDArray[np.int64], hours: float | None, seed: int) -> NDArray[np.int64]:
    if hours is None:
        return rows
    kept = table.select(["key", "num_samples", "sample_rate"]).take(pa.array(rows))
    order = shuffle(kept["key"].to_pylist(), seed)
    total = np.cumsum(_seconds(kept)[order])
    taken = int(np.searchsorted(total, hours * 3600, side="right"))
    if not taken:
        raise ConfigError(f"hours={hours}: less than the first utterance ({total[0]:.2f} s); ask for more")
    return np.sort(rows[order[:taken]])


def _seconds(table: pa.Table) -> NDArray[np.float64]:
    seconds: NDArray[np.float64] = table["num_samples"].to_numpy() / table["sample_rate"].to_numpy()
    return seconds


@dataclass
class _Copier:
    source: ShardSet
    target: Target
    fingerprint: str
    listener: Progress

    def copy_all(self, parts: Sequence[pa.Table], seconds: NDArray[np.float64], workers: int) -> list[ShardEntry]:
        storage = open_storage(self.source, StorageSettings())
        naming = {self.source.sidecar(shard, ["key"])[1].naming for shard in range(len(self.source.manifest.shards))}
        # Ids that are not those of the members have to be taken from the sidecar in every shard that holds one.
        name = "uttershard" if naming == {"uttershard"} else FOREIGN
        self.listener.begin("subset", utterances=len(seconds), seconds=float(seconds.sum()))
        try:
            with ThreadPoolExecutor(workers) as pool:
                entries = []
                copied = pool.map(lambda shard: self._copy(storage, shard, parts[shard], name), range(len(parts)))
                for entry in copied:
                    self.listener.advance(Done(entry.utterances, entry.seconds, entry.tar_bytes))
                    entries.append(entry)
                return entries
        finally:
            self.listener.end()

    def _copy(self, storage: Storage, shard: int, rows: pa.Table, naming: str) -> ShardEntry:
        tar_name, sidecar_name = shard_names(shard)
        digest = FileDigest()
        sizes, checksums = rows["nbytes"].to_numpy().copy(), rows["xxh3"].to_numpy().copy()
        named: set[str] = set()
        with self.target.create(tar_name) as file:
            for start in range(0, rows.num_rows, _ROWS):
                part = rows.slice(start, _ROWS)
                spans = Spans(*(part[name].to_numpy() for name in ("shard", "offset", "nbytes")))
                for row, (key, span) in enumerate(
                    zip(part["key"].to_pylist(), storage.read(spans), strict=True), start
                ):
                    checksum = span_checksum(span)
                    if checksums[row] not in (UNCHECKED, checksum):
                        raise DataError(
                            f"{self.source.address}: the utterance {key!r} is damaged (its checksum does not "
                            "match); `uttershard verify` lists all that is. Nothing was finished"
                        )
                    copied = span if naming != FOREIGN else _named_apart(span, key, named)
                    checksums[row] = checksum if copied is span else span_checksum(copied)
                    sizes[row] = len(copied)
                    file.write(copied)
                    digest.update(copied)
            mark = end_mark(digest.nbytes)
            file.write(mark)
            digest.update(mark)
        schema = sidecar_schema(dict(self.source.manifest.columns))
        placed = rows
        for name, values in (("offset", np.cumsum(sizes) - sizes), ("nbytes", sizes), ("xxh3", checksums)):
            placed = placed.set_column(placed.schema.get_field_index(name), name, pa.array(values))
        info = SidecarInfo(digest.nbytes, digest.text(), self.fingerprint, naming)
        table = placed.select(schema.names).cast(schema).combine_chunks()
        data = encode_sidecar(table, info)
        self.target.put(sidecar_name, data)
        return make_entry(tar_name, sidecar_name, info, data, table)


def _named_apart(span: memoryview, key: str, named: set[str]) -> memoryview:
    """Return the members of an utterance, under a name of its own if another in the tar has theirs.

    That is so where tars of several datasets come together whose ids were told apart by a prefix, and it is what a
    reader of the tar alone goes by: WebDataset would take the two for one, or one of them for a mistake.

    Args:
        span: Its members as they are.
        key: Its id.
        named: Names that are taken; the one returned is added.
    """
    members = list(walk_span(span))
    name = split_name(members[0].name)[0]
    if name not in named:
        named.add(name)
        return span
    name = member_name(key)
    if name in named:
        raise DataError(f"two utterances would be called {name!r} in a tar, {key!r} is one: pack them with other ids")
    named.add(name)
    parts: dict[str, bytes | memoryview] = {
        split_name(member.name)[1]: span[member.start : member.start + member.size] for member in members
    }
    if "json" in parts:
        record = read_metadata({"json": parts["json"]})
        if "id" in record:
            parts["json"] = encode_record({**record, "id": key})
    stream = io.BytesIO()
    ShardTar(stream).add(name, parts)
    return stream.getbuffer()


def _fingerprint(source: ShardSet, filters: Filters, hours: float | None, seed: int, shards: int) -> dict[str, Any]:
    parts = {"subset_of": source.digest, "filters": filters.describe(), "hours": hours, "seed": seed, "shards": shards}
    digest = digest_bytes(repr(sorted(parts.items(), key=lambda item: item[0])).encode("utf-8"))
    return {"format_version": FORMAT_VERSION, **parts, "digest": digest}
