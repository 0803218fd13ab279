"""A dataset opened for reading: its manifest and, on demand, columns of its sidecars; never a byte of audio."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import ConfigError, DataError, StorageError
from ..remote.retry import Limits
from .digest import digest_bytes
from .files import StorageOptions, file_size, join, local_path, read_bytes
from .manifest import MANIFEST_NAME, Manifest, decode_manifest
from .sidecar import FOREIGN, SidecarInfo, decode_sidecar, sidecar_schema
from .stats import COLUMNS as MEASURED_COLUMNS
from .stats import DatasetStats, load_stats

JOB_STATE_NAME = ".uttershard/job.json"
"""Is there while a pack is unfinished."""

_READERS = 16
_REMOTE_READERS = 64
"""Sidecars are small: reading many at a time hides the latency of a disk or a store."""


@dataclass(frozen=True)
class ShardSet:
    """A dataset by its address.

    Example:
        >>> train = ShardSet.open("demo-shards/train")  # doctest: +SKIP
        >>> train.manifest.utterances, train.hours  # doctest: +SKIP
    """

    address: str
    manifest: Manifest
    storage_options: StorageOptions | None = field(default=None, repr=False)
    limits: Limits = field(default_factory=Limits)
    """How long a read may take."""

    @classmethod
    def open(
        cls, uri: str | PathLike[str], storage_options: StorageOptions | None = None, limits: Limits | None = None
    ) -> "ShardSet":
        """Read the manifest of the dataset at `uri` (the folder that holds `dataset.json`, local or remote).

        Args:
            uri: Its address.
            storage_options: Keyword arguments of the fsspec file system (credentials, endpoint).
            limits: How long a read may take.

        Raises:
            DataError: There is no dataset, or its manifest is damaged.
            StorageError: The place could not be read.
        """
        if not isinstance(uri, str | PathLike):
            raise ConfigError(f"{uri!r} is a {type(uri).__name__}: give the address of a dataset")
        if not fspath(uri):
            raise ConfigError("the address of the dataset is empty: give the folder that holds dataset.json")
        address = fspath(uri).rstrip("/").removesuffix(f"/{MANIFEST_NAME}")
        where = join(address, MANIFEST_NAME)
        try:
            data = read_bytes(where, storage_options, limits)
        except DataError as error:
            raise DataError(f"no dataset at {address}: {_why_none(address, storage_options, limits)}") from error
        return cls(address, decode_manifest(data, where), storage_options, limits or Limits())

    @property
    def digest(self) -> str:
        """Digest of all that the dataset holds; plans and resume states are tied to it."""
        return self.manifest.digest

    @property
    def is_foreign(self) -> bool:
        """Whether the tars are another tool's, adopted as they are."""
        return self.manifest.fingerprint.get("naming") == FOREIGN

    @property
    def hours(self) -> float:
        """Hours of audio."""
        return self.manifest.seconds / 3600

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all sidecar columns, metadata columns last."""
        return tuple(sidecar_schema(self.manifest.columns).names)

    @property
    def rows_per_shard(self) -> NDArray[np.int64]:
        """Utterances of each shard, int64 [number of shards]."""
        return np.array([shard.utterances for shard in self.manifest.shards], dtype=np.int64)

    def tar_address(self, shard: int) -> str:
        """Address of a shard's tar."""
        return join(self.address, self.manifest.shards[shard].tar)

    def sidecar_address(self, shard: int) -> str:
        """Address of a shard's sidecar."""
        return join(self.address, self.manifest.shards[shard].sidecar)

    def index(self, columns: Sequence[str] | None = None, *, stats: str | None = None) -> pa.Table:
        """Read sidecar columns of all utterances, in dataset order (shard after shard, tar order inside).

        Args:
            columns: Names of columns (see `columns`); None for all of the sidecars.
            stats: Address of a json of `uttershard stats`: its columns (`tokens`, `silence`, ...) can be named too.

        Raises:
            ConfigError: An unknown column.
            DataError: A sidecar is missing, damaged, or not the one that the manifest lists; or the statistics are
                not of this dataset.
        """
        schema = sidecar_schema(self.manifest.columns)
        if stats is not None and columns is not None:
            return self._index_with(stats, columns)
        names = schema.names if columns is None else list(columns)
        unknown = [name for name in names if name not in schema.names]
        if unknown:
            raise ConfigError(f"{self.address}: no column {unknown[0]!r}; there are {', '.join(schema.names)}")
        with ThreadPoolExecutor(_READERS if local_path(self.address) else _REMOTE_READERS) as pool:
            tables = list(pool.map(lambda shard: self.sidecar(shard, names)[0], range(len(self.manifest.shards))))
        if not tables:
            return pa.schema([schema.field(name) for name in names]).empty_table()
        return pa.concat_tables(tables).unify_dictionaries()

    def stats(self, address: str) -> DatasetStats:
        """Load statistics of this dataset.

        Args:
            address: Of the json that `uttershard stats` wrote, here or in the dataset's store.

        Raises:
            DataError: They are missing, damaged, or of another dataset.
        """
        return load_stats(address, self.digest, storage_options=self.storage_options, limits=self.limits)

    def _index_with(self, stats: str, columns: Sequence[str]) -> pa.Table:
        """Return columns of the sidecars and of statistics, in the order of `columns`."""
        for name in columns:
            if name in self.manifest.columns and name in MEASURED_COLUMNS.names:
                raise ConfigError(
                    f"{self.address}: the sidecars have a column {name!r}, and so have the statistics {stats}: leave "
                    "stats= out, or pack without that column"
                )
        own = [name for name in columns if name in self.columns]
        measured = [name for name in columns if name not in own]
        joined = self.stats(stats).columns(measured)
        table = self.index(own or ["key"])
        for name in measured:
            table = table.append_column(joined.schema.field(name), joined[name])
        return table.select(list(columns))

    def sidecar(self, shard: int, columns: Sequence[str] | None = None) -> tuple[pa.Table, SidecarInfo]:
        """Read one sidecar and test it against the manifest (digest, rows, the tar it belongs to)."""
        entry, where = self.manifest.shards[shard], self.sidecar_address(shard)
        data = read_bytes(where, self.storage_options, self.limits)
        if digest_bytes(data) != entry.sidecar_digest:
            raise DataError(
                f"{where}: not the sidecar that the manifest lists ({len(data)} bytes, {digest_bytes(data)}; expected "
                f"{entry.sidecar_bytes} bytes, {entry.sidecar_digest}): it is stale or was swapped. Put the right one "
                "back, or rebuild it with `uttershard index`"
            )
        table, info = decode_sidecar(data, columns, where)
        if info.tar_digest != entry.tar_digest or table.num_rows != entry.utterances:
            raise DataError(f"{where}: describes another tar than {entry.tar} of the manifest")
        return table, info

    def check_tar_size(self, shard: int) -> None:
        """Look up the size of a shard's tar and raise DataError if it is not what the manifest says."""
        where = self.tar_address(shard)
        found, expected = file_size(where, self.storage_options, self.limits), self.manifest.shards[shard].tar_bytes
        if found != expected:
            what = "it has been cut" if found < expected else "it was replaced or appended to"
            raise DataError(f"{where}: {found} bytes, the manifest says {expected}: {what}. Copy or pack it again")


def _why_none(address: str, options: StorageOptions | None, limits: Limits | None) -> str:
    """Say why there is no manifest: the pack is unfinished, or there is nothing."""
    try:
        file_size(join(address, JOB_STATE_NAME), options, limits)
    except (DataError, StorageError):
        path = local_path(address)
        if path is not None and not Path(path).exists():
            return "there is no such folder"
        return (
            f"there is no {MANIFEST_NAME}, nor a job of `uttershard pack` that would write one. Is the address right?"
        )
    return (
        f"`uttershard pack` has not finished it, {MANIFEST_NAME} is written last. Run it again, it goes on where it "
        "stopped"
    )
