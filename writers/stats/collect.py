"""`collect_stats`: statistics of a dataset, a task a shard, merged in shard order whatever order they come in."""

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import numpy as np
import pyarrow.parquet as pq
from uttershard.pipeline.dataset.digest import FileDigest
from uttershard.pipeline.dataset.feats_stats import MadeOf, encode_sums, features_of
from uttershard.pipeline.dataset.files import StorageOptions, local_path
from uttershard.pipeline.dataset.manifest import shard_names
from uttershard.pipeline.dataset.shardset import ShardSet
from uttershard.pipeline.dataset.stats import (
    COLUMNS,
    COLUMNS_NAME,
    FORMAT_NAME,
    FORMAT_VERSION,
    SHAPES_NAME,
    STATS_FOLDER,
    SUMS_NAME,
    DatasetStats,
    body_digest,
    load_stats,
    settings_digest,
)
from uttershard.pipeline.errors import ConfigError, DataError

from ..cluster import Cluster, ClusterSettings, cluster_settings, kept_interrupts, start_cluster
from ..commit import atomic_write, storage_errors, write_atomically
from ..job import JobFolder, lock
from ..progress import Done, Progress, Silent
from ..targets.opening import refuse_empty
from .measures import make_transform
from .moments import Moments
from .settings import StatsSettings, is_function
from .shard import TEXT_BAR, ShardRecord, StatsTask, measure_shard, part_path, read_record

_RETRIES = 5
_BLANK = re.compile(r"[\s%]")


@dataclass(frozen=True)
class StatsSummary:
    """What `collect_stats` has made."""

    path: str
    """Address of the json; the other files are in the folder of the same name without its ending."""
    stats: DatasetStats
    already_complete: bool
    elapsed: float
    """Seconds."""
    kept_shards: int = 0
    """Shards that an earlier run, stopped before its end, had measured."""


def collect_stats(
    dataset: str | PathLike[str],
    settings: StatsSettings | None = None,
    *,
    out: str | PathLike[str] | None = None,
    cluster: ClusterSettings | str | None = None,
    workers: int | None = None,
    retries: int = _RETRIES,
    progress: Progress | None = None,
    storage_options: StorageOptions | None = None,
) -> StatsSummary:
    """Measure a dataset.

    A run that was stopped, however it was, is continued by calling this again; the result is the same for any number
    of workers.

    Args:
        dataset: Its address.
        settings: What is measured; None for fbank features with their defaults.
        out: Folder for the files; None for `stats` in the dataset's own.
        cluster: Where tasks run (see `pack`).
        workers: Worker processes; None for one a CPU core.
        retries: How often a task is given to another worker.
        progress: Told how far it is.
        storage_options: Of the dataset's file system.

    Raises:
        ConfigError: A setting does not fit the dataset.
        DataError: An utterance is damaged.

    Example:
        >>> collect_stats("shards/train", StatsSettings(columns=("speaker",))).stats.mean  # doctest: +SKIP
    """
    began = time.monotonic()
    if not isinstance(retries, int) or retries < 0:
        raise ConfigError(f"retries is {retries!r}; it must be a whole number, 0 or more")
    chosen, listener = settings or StatsSettings(), progress or Silent()
    shards = ShardSet.open(dataset, storage_options)
    unknown = [name for name in chosen.columns if name not in shards.columns]
    if unknown:
        raise ConfigError(f"{dataset}: no column {unknown[0]!r}; there are {', '.join(shards.columns)}")
    if chosen.feature_options:
        make_transform(chosen)  # what is wrong with them is told here, not by a job that has waited in a queue
    identity, folder = chosen.identity(), _folder(shards, out)
    where = cluster_settings(cluster, workers)
    path = folder / f"{settings_digest(identity)}.json"
    job = JobFolder(path.with_suffix(""))
    found = None if job.path.exists() else _complete(path, shards.digest, identity)
    if found is not None:
        return StatsSummary(str(path), found, True, time.monotonic() - began)
    with _held(job):
        # Another process has ended it meanwhile, or was killed between its last file and the removal of the job.
        found = _complete(path, shards.digest, identity)
        if found is not None:
            return StatsSummary(str(path), found, True, time.monotonic() - began)
        with kept_interrupts(), start_cluster(where, retries, listener) as running:
            kept = sum(_measured(shards, running, _tasks(shards, job, chosen, identity), listener))
        _write(shards, job, path, identity, chosen)
    made = load_stats(str(path), shards.digest, identity)
    return StatsSummary(str(path), made, False, time.monotonic() - began, kept)


def _measured(shards: ShardSet, running: Cluster, tasks: Iterator[StatsTask], listener: Progress) -> Iterator[bool]:
    """Run the tasks and yield, of each, whether an earlier run had done it."""
    entries, done = shards.manifest.shards, 0
    listener.begin("stats", utterances=shards.manifest.utterances, seconds=shards.manifest.seconds)
    try:
        for shard, found_before in running.run(measure_shard, tasks, lambda shard: shard_names(shard)[0]):
            done += 1
            entry = entries[shard]
            listener.advance(Done(entry.utterances, entry.seconds, entry.tar_bytes, kept=found_before))
            yield found_before
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"stopped: {done} of {len(entries)} shards are measured and kept. Run the same command again to go on"
        ) from None
    finally:
        listener.end()


def _folder(shards: ShardSet, out: str | PathLike[str] | None) -> Path:
    address = fspath(out) if out is not None else f"{shards.address}/{STATS_FOLDER}"
    refuse_empty(address)
    path = local_path(address)
    if path is None:
        raise ConfigError(f"{address}: statistics are written to a local folder: say which with out= (--out)")
    folder = Path(path).absolute()
    for place in (folder, *folder.parents):
        if place.exists() and not place.is_dir():
            raise ConfigError(f"{address}: {place} is a file; out= (--out) names a folder")
    return folder


def _complete(path: Path, dataset_digest: str, identity: dict[str, Any]) -> DatasetStats | None:
    """Return statistics that are there already; stale or damaged ones are made again."""
    try:
        found = load_stats(str(path), dataset_digest, identity)
        found.check_files()
    except DataError:
        return None
    return found


@contextmanager
def _held(job: JobFolder) -> Iterator[None]:
    """Hold the job of these settings; its folder is removed when it is complete."""
    with lock(job):
        job.create()
        job.clear_scratch()
        yield
        job.remove()


def _tasks(shards: ShardSet, job: JobFolder, settings: StatsSettings, identity: dict[str, Any]) -> Iterator[StatsTask]:
    path = local_path(shards.address)
    # Workers may run in other folders than this process.
    address = shards.address if path is None else str(Path(path).absolute())
    if settings.tokenizer is not None and not is_function(settings.tokenizer):
        settings = replace(settings, tokenizer=str(Path(settings.tokenizer).absolute()))
    for shard, entry in enumerate(shards.manifest.shards):
        yield StatsTask(
            address=address,
            storage_options=shards.storage_options,
            shard=shard,
            entry=entry,
            columns=shards.manifest.columns,
            folder=str(job.target),
            key=_key(shards, identity),
            settings=settings,
            settings_digest=settings_digest(identity),
        )


def _key(shards: ShardSet, identity: dict[str, Any]) -> str:
    return f"{FORMAT_VERSION} {shards.digest} {settings_digest(identity)}"


@dataclass
class _Totals:
    """Sums over shards."""

    moments: Moments
    counts: Counter[str]
    histograms: dict[str, Counter[int]]
    values: dict[str, dict[tuple[Any, int], list[int]]]

    def add(self, record: ShardRecord, tar: str) -> None:
        before = self.counts["dimensions"]
        if before and record.dimensions not in (0, before):
            raise DataError(
                f"{tar}: features of {record.dimensions} dimensions; the shards before it have {before}, and all "
                "utterances must have as many"
            )
        self.moments = self.moments.merge(record.moments)
        self.counts.update(record.counts)
        self.counts["dimensions"] = before or record.dimensions
        for name, bars in record.histograms.items():
            self.histograms.setdefault(name, Counter()).update(bars)
        for name, rows in record.values.items():
            sums = self.values.setdefault(name, {})
            for value, rate, utterances, samples in rows:
                sum_of = sums.setdefault((value, rate), [0, 0])
                sum_of[0] += utterances
                sum_of[1] += samples


def _write(shards: ShardSet, job: JobFolder, path: Path, identity: dict[str, Any], settings: StatsSettings) -> None:
    """Merge the shards' records in order and write the files, the json last.

    What would hold nothing is not written: sums of no frame, shapes of no features.
    """
    totals = _Totals(Moments.of(np.zeros((0, 0))), Counter(), {}, {})
    has_features = settings.features != "none"
    with (
        atomic_write(job.target / SHAPES_NAME, job.scratch) if has_features else nullcontext() as lines,
        atomic_write(job.target / COLUMNS_NAME, job.scratch) as rows,
        pq.ParquetWriter(rows, COLUMNS, compression="zstd") as writer,
    ):
        for shard in range(len(shards.manifest.shards)):
            record = read_record(job, shard, _key(shards, identity))
            if record is None:
                raise DataError(f"{job.path}: the record of {shard_names(shard)[0]} is gone; run this again")
            totals.add(record, shard_names(shard)[0])
            part = pq.ParquetFile(part_path(job, shard)).read()
            writer.write_table(part)
            if lines is not None:
                _write_shapes(lines, part, record.dimensions)
    files = [COLUMNS_NAME, *([SHAPES_NAME] if has_features else [])]
    if totals.moments.count:
        files.append(SUMS_NAME)
        _write_sums(job, totals.moments, MadeOf(shards.digest, features_of(identity)))
    for name in {SHAPES_NAME, SUMS_NAME}.difference(files):
        (job.target / name).unlink(missing_ok=True)  # of statistics that were here before, and are stale
    body = {
        "format": FORMAT_NAME,
        "format_version": FORMAT_VERSION,
        "dataset_digest": shards.digest,
        "settings": identity,
        "files": {name: _digest(job.target / name) for name in files},
        **_report(totals, settings),
    }
    body["digest"] = body_digest(body)
    write_atomically(path, job.scratch, (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode("utf-8"))


def _write_sums(job: JobFolder, moments: Moments, made_of: MadeOf) -> None:
    total = moments.mean * moments.count
    squares = moments.squares + moments.mean * total
    write_atomically(job.target / SUMS_NAME, job.scratch, encode_sums(moments.count, total, squares, made_of))


def _write_shapes(lines: BinaryIO, part: Any, dimensions: int) -> None:
    for key, frames in zip(part["key"].to_pylist(), part["feature_frames"].to_pylist(), strict=True):
        # An id ends at the first blank there: blanks in ids are percent-encoded.
        safe = _BLANK.sub(lambda found: quote(found[0]), key)
        lines.write(f"{safe} {frames},{dimensions}\n".encode())


def _digest(path: Path) -> str:
    digest = FileDigest()
    with storage_errors(path), path.open("rb") as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
    return digest.text()


def _report(totals: _Totals, settings: StatsSettings) -> dict[str, Any]:
    counts, moments = totals.counts, totals.moments
    widths: dict[str, float] = {"seconds": settings.histogram_seconds, "text_chars": TEXT_BAR, "tokens": TEXT_BAR}
    return {
        "utterances": counts["utterances"],
        "features": {
            "frames": moments.count,
            "dimensions": counts["dimensions"],
            "mean": moments.mean.tolist(),
            "variance": moments.variance.tolist(),
        },
        "silence": counts["silent_frames"] / max(1, counts["frames"]),
        "clipping": counts["clipped_samples"] / max(1, counts["samples"]),
        "clipped_utterances": counts["clipped_utterances"],
        "tokens": counts["tokens"] if settings.tokenizer is not None else None,
        "histograms": {
            name: {"width": widths[name], "counts": [bars[bar] for bar in range(max(bars, default=-1) + 1)]}
            for name, bars in sorted(totals.histograms.items())
        },
        "columns": {name: _hours_by_value(sums) for name, sums in totals.values.items()},
    }


def _hours_by_value(sums: dict[tuple[Any, int], list[int]]) -> list[dict[str, Any]]:
    rows: dict[Any, dict[str, Any]] = {}
    for (value, rate), (utterances, samples) in sorted(sums.items(), key=lambda item: (str(item[0][0]), item[0][1])):
        row = rows.setdefault(value, {"value": value, "utterances": 0, "hours": 0.0})
        row["utterances"] += utterances
        row["hours"] += samples / rate / 3600
    return sorted(rows.values(), key=lambda row: (-row["hours"], str(row["value"])))
