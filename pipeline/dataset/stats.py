"""Statistics of a dataset as `uttershard stats` writes them, and how they are loaded: never those of another dataset.

    <dataset>/stats/<digest of the settings>.json             all numbers; written last
    <dataset>/stats/<digest of the settings>/feats_stats.npz  sums of the features, as in ESPnet
    <dataset>/stats/<digest of the settings>/feats_shape      `<id> <frames>,<dimensions>`, an utterance a line
    <dataset>/stats/<digest of the settings>/columns.parquet  what was measured of each utterance, in dataset order

Without features there are the json and columns.parquet alone. The json holds the dataset's digest, the settings, the
digests of the other files, and one of all this. Token lengths and the like are columns of their own file and not of the
sidecars, since those decide the dataset's digest: `ShardSet.index` joins them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..errors import ConfigError, DataError, StorageError
from ..remote.retry import Limits
from .digest import PREFIX, digest_bytes
from .files import StorageOptions, read_bytes

STATS_FOLDER = "stats"
FORMAT_NAME = "uttershard-stats"
FORMAT_VERSION = 2

_GIVE_JSON = "give the address of the json that `uttershard stats` wrote and printed"

_ZIP = b"PK\x03\x04"

SUMS_NAME = "feats_stats.npz"
SHAPES_NAME = "feats_shape"
COLUMNS_NAME = "columns.parquet"

COLUMNS = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("feature_frames", pa.int32(), nullable=False),
        pa.field("silence", pa.float32(), nullable=False),
        pa.field("clipping", pa.float32(), nullable=False),
        pa.field("tokens", pa.int32()),
    ]
)
"""Columns of an utterance: frames of features, share of silent 10 ms frames, share of samples at full scale, tokens."""


@dataclass(frozen=True)
class DatasetStats:
    """Statistics that belong to a dataset."""

    path: str
    """Address of the json."""
    body: dict[str, Any]
    """All that it holds."""
    storage_options: StorageOptions | None = field(default=None, repr=False)
    limits: Limits = field(default_factory=Limits)
    """How long a read may take."""

    @property
    def dataset_digest(self) -> str:
        """Of the dataset that they are of."""
        return str(self.body["dataset_digest"])

    @property
    def settings(self) -> dict[str, Any]:
        """What was measured, and how."""
        return dict(self.body["settings"])

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean of each feature dimension, [D]."""
        return np.array(self.body["features"]["mean"], np.float64)

    @property
    def variance(self) -> NDArray[np.float64]:
        """Variance (of the population) of each feature dimension, [D]."""
        return np.array(self.body["features"]["variance"], np.float64)

    @property
    def sums(self) -> dict[str, Any]:
        """`count`, `sum` and `sum_square`, as `GlobalCmvn` takes them."""
        count, mean = float(self.body["features"]["frames"]), self.mean
        return {"count": count, "sum": mean * count, "sum_square": (self.variance + mean**2) * count}

    @property
    def columns_digest(self) -> str:
        """Digest of what was measured of each utterance."""
        return str(self.body["files"][COLUMNS_NAME])

    def columns(self, names: Sequence[str]) -> pa.Table:
        """Read what was measured of each utterance, in dataset order.

        Raises:
            ConfigError: A column that there is not, or that was not measured.
            DataError: The file is missing or is not the one that belongs to the statistics.
        """
        unknown = [name for name in names if name not in COLUMNS.names]
        if unknown:
            raise ConfigError(f"{self.path}: no column {unknown[0]!r}; there are {', '.join(COLUMNS.names)}")
        if "tokens" in names and self.body["settings"]["tokenizer"] is None:
            raise ConfigError(f"{self.path}: tokens were not counted; run `uttershard stats` with --tokenizer")
        if "feature_frames" in names and self.body["settings"]["features"] == "none":
            raise ConfigError(f"{self.path}: no features were computed; run `uttershard stats` without --features none")
        data = self._file(COLUMNS_NAME)
        return pq.ParquetFile(pa.BufferReader(data)).read(columns=list(names)).select(list(names))

    def check_files(self) -> None:
        """Read all files that belong to the statistics.

        Raises:
            DataError: One is missing or is not the one that belongs to them.
        """
        for name in self.body["files"]:
            self._file(name)

    def _file(self, name: str) -> bytes:
        where, expected = f"{self.path.removesuffix('.json')}/{name}", self.body["files"][name]
        try:
            data = read_bytes(where, self.storage_options, self.limits)
        except DataError as error:
            raise DataError(
                f"{error}: it belongs to {self.path}. Copy both together, or run `uttershard stats` again"
            ) from error
        if digest_bytes(data) != expected:
            raise DataError(
                f"{where}: not the file that {self.path} lists ({digest_bytes(data)}, expected {expected}): it is "
                "damaged or of other statistics. Run `uttershard stats` again"
            )
        return data


def settings_digest(settings: Mapping[str, Any]) -> str:
    """Return the digest of feature settings, which names their files.

    Example:
        >>> settings_digest({"features": "fbank"}) == settings_digest({"features": "log_mel"})
        False
    """
    return _digest(settings).removeprefix(PREFIX)


def body_digest(body: Mapping[str, Any]) -> str:
    """Return the digest of all that a json holds besides its `digest`, however it is laid out."""
    return _digest({name: value for name, value in body.items() if name != "digest"})


def _digest(values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return digest_bytes(text.encode("utf-8"))


def load_stats(
    path: str,
    dataset_digest: str,
    settings: Mapping[str, Any] | None = None,
    storage_options: StorageOptions | None = None,
    limits: Limits | None = None,
) -> DatasetStats:
    """Load statistics, or refuse them.

    Args:
        path: Address of the json.
        dataset_digest: Of the dataset that they must be of (`ShardSet.digest`).
        settings: What they must have been measured with (`StatsSettings.identity()`); None for anything.
        storage_options: Of the file system.
        limits: How long a read may take.

    Raises:
        DataError: They are missing, damaged, of another dataset, or measured otherwise.
    """
    try:
        data = read_bytes(path, storage_options, limits)
    except DataError as error:
        raise DataError(f"{error}: {_GIVE_JSON}") from error
    except StorageError as error:
        if isinstance(error.__cause__, IsADirectoryError):
            raise DataError(f"{path}: a folder: {_GIVE_JSON}") from error
        raise
    body = _decode(data, path)
    if body["dataset_digest"] != dataset_digest:
        raise DataError(
            f"{path}: statistics of the dataset {body['dataset_digest']}, but this one is {dataset_digest}: they are "
            "stale, or of another dataset. Run `uttershard stats` again"
        )
    if settings is not None and body["settings"] != dict(settings):
        found = body["settings"]
        changed = "; ".join(
            f"{name}: {found.get(name)!r} there, {settings.get(name)!r} wanted"
            for name in {**found, **settings}
            if found.get(name) != settings.get(name)
        )
        raise DataError(f"{path}: measured with other settings ({changed}). Run `uttershard stats` with those wanted")
    return DatasetStats(path, body, storage_options, limits or Limits())


def _decode(data: bytes, path: str) -> dict[str, Any]:
    if data.startswith(_ZIP):
        raise DataError(
            f"{path}: an .npz file, as feats_stats.npz is, which does not say what dataset it is of: {_GIVE_JSON}"
        )
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error}): {_GIVE_JSON}, or run that again") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT_NAME:
        raise DataError(f'{path}: not statistics of uttershard (no "format": "{FORMAT_NAME}" in it): {_GIVE_JSON}')
    if body.get("format_version") != FORMAT_VERSION:
        raise DataError(
            f"{path}: format version {body.get('format_version')}, this uttershard reads {FORMAT_VERSION}: "
            "run `uttershard stats` again"
        )
    if body.get("digest") != body_digest(body):
        raise DataError(
            f"{path}: damaged, or changed by hand: what it holds does not give the digest in it. Run "
            "`uttershard stats` again"
        )
    return body
