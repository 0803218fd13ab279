"""One task: measure one shard. Its columns go into a file, its sums into a record; the record last."""

import json
import math
import platform
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from uttershard.pipeline.dataset.digest import digest_bytes
from uttershard.pipeline.dataset.files import StorageOptions
from uttershard.pipeline.dataset.manifest import Manifest, ShardEntry
from uttershard.pipeline.dataset.shardset import ShardSet
from uttershard.pipeline.dataset.stats import COLUMNS, body_digest, settings_digest
from uttershard.pipeline.errors import ConfigError, DataError, StorageError
from uttershard.pipeline.reading.codecs import full_scale
from uttershard.pipeline.reading.convert import mix_channels, resample, to_float32
from uttershard.pipeline.reading.spans import INDEX_COLUMNS, BatchSpec, SpanIndex
from uttershard.pipeline.reading.utterance import AudioForm, decode_utterance, split_span
from uttershard.pipeline.storage.open import open_storage
from uttershard.pipeline.storage.settings import StorageSettings

from ..commit import write_atomically
from ..job import JobFolder
from .attempts import DEADLY, Attempts
from .measures import FeatureFunction, TokenFunction, count_clipped, count_silent, feature_function, token_function
from .moments import Moments
from .settings import StatsSettings

TEXT_BAR = 10
"""Width of a bar of the histograms of characters and tokens."""

_ROWS = 32
"""Utterances whose spans are held at a time."""

_LARGEST = 1e100
"""Squares of larger features, summed, may be no float64 any more."""


@dataclass(frozen=True)
class StatsTask:
    """All that a worker needs to know."""

    address: str
    storage_options: StorageOptions | None = field(repr=False)
    """Not shown: Dask logs the tasks that fail."""
    shard: int
    entry: ShardEntry
    columns: dict[str, str]
    """Of the dataset's sidecars."""
    folder: str
    """Where the job folder is."""
    key: str
    """Of the dataset and the settings: a record with another key is of another job."""
    settings: StatsSettings
    settings_digest: str
    """As the process of the command found it: a worker that finds another has other code, or another model."""


@dataclass(frozen=True)
class ShardRecord:
    """What a shard's record holds."""

    moments: Moments
    counts: dict[str, int]
    """Samples, clipped samples, frames, silent frames, utterances, with clipping, tokens."""
    histograms: dict[str, dict[int, int]]
    """Bars by number, of `seconds`, `text_chars` and `tokens`."""
    values: dict[str, list[list[Any]]]
    """Of each column: [value, sample rate, utterances, samples]."""
    part_digest: str

    @property
    def dimensions(self) -> int:
        """Of the features; 0 if there is no utterance."""
        return self.counts.get("dimensions", 0)


def part_path(folder: JobFolder, shard: int) -> Path:
    """Return where a shard's columns are."""
    return folder.path / "done" / f"{shard:06d}.parquet"


def record_path(folder: JobFolder, shard: int) -> Path:
    """Return where a shard's record is."""
    return folder.path / "done" / f"{shard:06d}.json"


def measure_shard(task: StatsTask) -> bool:
    """Measure a shard, or find that it has been, and return whether it had.

    Raises:
        ConfigError: The settings name something else here than where the command was given.
        DataError: An utterance is damaged, or what computes its features fails or ends workers.
    """
    folder = JobFolder(Path(task.folder))
    if read_record(folder, task.shard, task.key) is not None:
        return True
    if settings_digest(task.settings.identity()) != task.settings_digest:
        raise ConfigError(
            f"{task.settings.told()}: not the code, or not the model, here ({platform.node()}) that the command was "
            "begun with: give all workers the same, and change nothing while they run"
        )
    measurer = _Measurer(task.settings)
    shards = ShardSet(task.address, Manifest((task.entry,), task.columns, {}), task.storage_options)
    table, _ = shards.sidecar(0)
    index = SpanIndex.from_table(table.select(list(INDEX_COLUMNS)), shards.rows_per_shard)
    storage, tar = open_storage(shards, StorageSettings()), shards.tar_address(0)
    attempts = Attempts(folder.scratch, task.shard)
    deadly = attempts.deadly()
    if deadly is not None:
        raise DataError(
            f"{tar}: utterance {table['key'][deadly].as_py()!r}: {DEADLY} workers have died while they measured it "
            f"({task.settings.told()}): something in there ends the process (os._exit), crashes, or needs more memory "
            "than there is"
        )
    with attempts.attempt() as attempt:
        for first in range(0, len(index), _ROWS):
            rows = np.arange(first, min(first + _ROWS, len(index)))
            spec = index.spec(rows, epoch=0, step=0)
            for row, span in enumerate(storage.read(spec.spans)):
                with attempt.at(first + row):
                    measurer.add(spec, row, span, tar)
    data = measurer.columns()
    write_atomically(part_path(folder, task.shard), folder.scratch, data)
    record = ShardRecord(
        measurer.moments,
        dict(measurer.counts),
        {name: dict(bars) for name, bars in measurer.histograms(table).items()},
        {name: _hours(table, name) for name in task.settings.columns},
        digest_bytes(data),
    )
    write_atomically(record_path(folder, task.shard), folder.scratch, _encode(record, task.key))
    return False


def read_record(folder: JobFolder, shard: int, key: str) -> ShardRecord | None:
    """Return a shard's record, or None if there is none of this job with its columns intact."""
    try:
        body = json.loads(record_path(folder, shard).read_bytes())
        if body["digest"] != body_digest(body) or body["key"] != key:
            return None
        if digest_bytes(part_path(folder, shard).read_bytes()) != body["part_digest"]:
            return None
        return ShardRecord(
            Moments.from_json(body["moments"]),
            body["counts"],
            {name: {int(bar): count for bar, count in bars.items()} for name, bars in body["histograms"].items()},
            body["values"],
            body["part_digest"],
        )
    except (FileNotFoundError, ValueError, LookupError, TypeError, RecursionError):
        return None  # not there, cut, or of something else: measured again


@dataclass
class _Measurer:
    """Measures the utterances of a shard one after the other."""

    settings: StatsSettings
    moments: Moments = field(default_factory=lambda: Moments.of(np.zeros((0, 0))))
    counts: Counter[str] = field(default_factory=Counter)
    _rows: list[tuple[str, int, float, float, int | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._features: FeatureFunction = feature_function(self.settings)
        self._tokens: TokenFunction | None = token_function(self.settings)

    def add(self, spec: BatchSpec, row: int, span: memoryview, tar: str) -> None:
        """Take one utterance in."""
        members = split_span(spec, row, span, tar)
        samples = decode_utterance(spec, row, members.audio, AudioForm(), None, tar)
        rate = int(spec.sample_rate[row])
        clipped = count_clipped(samples, full_scale(spec.codecs[row], members.audio))
        silent, frames = count_silent(samples, rate, self.settings.silence_dbfs)
        audio = to_float32(mix_channels(samples, 1))
        target = self.settings.sample_rate or rate
        try:
            tokens = None if self._tokens is None else self._tokens(members.text or "")
            features = self._features(resample(audio, rate, target), target).astype(np.float64)
        except (DataError, StorageError) as error:
            raise type(error)(f"{tar}: utterance {spec.keys[row]!r}: {error}") from None
        if not (np.abs(features) < _LARGEST).all():
            raise DataError(
                f"{tar}: utterance {spec.keys[row]!r}: its features ({self.settings.features}) hold NaN, infinity, or "
                f"numbers beyond {_LARGEST:g}"
            )
        dimensions = self.counts["dimensions"] or features.shape[1]
        if features.shape[1] != dimensions:
            raise DataError(
                f"{tar}: utterance {spec.keys[row]!r} has features of {features.shape[1]} dimensions, "
                f"the ones before it have {dimensions}"
            )
        self.moments = self.moments.merge(Moments.of(features))
        self.counts.update(
            utterances=1,
            samples=samples.size,
            clipped_samples=clipped,
            clipped_utterances=bool(clipped),
            frames=frames,
            silent_frames=silent,
            tokens=tokens or 0,
        )
        self.counts["dimensions"] = dimensions
        self._rows.append(
            (spec.keys[row], len(features), silent / max(1, frames), clipped / max(1, samples.size), tokens)
        )

    def columns(self) -> bytes:
        """Return the Parquet file of what was measured of each utterance."""
        values = list(zip(*self._rows, strict=True)) or [()] * len(COLUMNS)
        arrays = [pa.array(column, item.type) for column, item in zip(values, COLUMNS, strict=True)]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_arrays(arrays, schema=COLUMNS), sink, compression="zstd")
        return bytes(sink.getvalue())

    def histograms(self, table: pa.Table) -> dict[str, Counter[int]]:
        """Return the histograms of lengths."""
        seconds = table["num_samples"].to_numpy() / table["sample_rate"].to_numpy()
        bars = {
            "seconds": np.floor(seconds / self.settings.histogram_seconds).astype(np.int64),
            "text_chars": table["text_chars"].to_numpy() // TEXT_BAR,
        }
        if self._tokens is not None:
            bars["tokens"] = np.array([row[4] for row in self._rows], np.int64) // TEXT_BAR
        return {name: Counter(values.tolist()) for name, values in bars.items()}


def _hours(table: pa.Table, name: str) -> list[list[Any]]:
    """Count utterances and samples of each value, by rate: integers, so that sums are exact in any order."""
    grouped = table.group_by([name, "sample_rate"]).aggregate([("num_samples", "sum"), ([], "count_all")])
    rows = [
        [_json_value(row[name]), row["sample_rate"], row["count_all"], row["num_samples_sum"]]
        for row in grouped.to_pylist()
    ]
    return sorted(rows, key=lambda row: (json.dumps(row[0]), row[1]))


def _json_value(value: Any) -> Any:
    """Return a value of a column as JSON has it, which has no NaN and no infinity."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return None if math.isnan(value) else str(value)


def _encode(record: ShardRecord, key: str) -> bytes:
    body = {
        "key": key,
        "moments": record.moments.as_json(),
        "counts": record.counts,
        "histograms": record.histograms,
        "values": record.values,
        "part_digest": record.part_digest,
    }
    # As it is read back, with bars' numbers as strings.
    body = json.loads(json.dumps(body))
    body["digest"] = body_digest(body)
    return (json.dumps(body, ensure_ascii=False) + "\n").encode("utf-8")
