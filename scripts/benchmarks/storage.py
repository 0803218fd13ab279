"""Reading from a store: what share of the raw rate of its server arrives, with how many requests, and how soon.

python -m uttershard.scripts.benchmarks.storage s3://bucket/train --local shards/train --storage-option endpoint_url=…

`raw` fetches the tars by ranged GETs of 8 MB, 16 at a time, with the same client and nothing else; the others read the
utterances of one epoch in the order of its batches, without decoding, so that the store is all that is measured. They
run in turns, and the medians are compared. A server on the same machine competes for its cores.
"""

import json
import shutil
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated, Any

import typer
from uttershard.pipeline import ShardLoader, ShardSet
from uttershard.pipeline.remote.store import Store
from uttershard.pipeline.storage.coalesce import pieces

from ..cli.storage import StorageOption, parse_storage_options

_REQUESTS = 16


def storage(
    dataset: Annotated[str, typer.Argument(help="Address of a dataset in a store.")],
    local: Annotated[Path, typer.Option(help="The same dataset on a local disk.")],
    storage_option: StorageOption = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each is measured.")] = 3,
    batch_bins: Annotated[int, typer.Option(help="Frames of a batch.")] = 60_000,
) -> None:
    """Measure reading from a store."""
    options = parse_storage_options(storage_option)
    cache = Path(mkdtemp(prefix="uttershard-bench-"))
    remote = ShardSet.open(dataset, options)
    subjects: dict[str, Callable[[], dict[str, float]]] = {
        "raw": lambda: _raw(remote),
        "spans": lambda: _epoch(dataset, batch_bins, storage_options=options),
        "spans, 8 windows": lambda: _epoch(dataset, batch_bins, storage_options=options, windows=8),
        "cold cache": lambda: _cold(dataset, batch_bins, cache, options),
        "warm cache": lambda: _epoch(dataset, batch_bins, storage_options=options, cache=cache),
        "local": lambda: _epoch(str(local), batch_bins),
    }
    try:
        measured: dict[str, list[dict[str, float]]] = {name: [] for name in subjects}
        for _ in range(rounds):
            for name, measure in subjects.items():
                measured[name].append(measure())
    finally:
        shutil.rmtree(cache)
    raw = statistics.median(one["megabytes_per_second"] for one in measured["raw"])
    for name, results in measured.items():
        median = {key: statistics.median(one[key] for one in results) for key in results[0]}
        print(json.dumps({"subject": name, "of_raw": median["megabytes_per_second"] / raw, **median}), flush=True)


def _raw(dataset: ShardSet) -> dict[str, float]:
    store = Store(dataset.storage_options)
    jobs = [
        (dataset.tar_address(index), start, stop, shard.tar_bytes)
        for index, shard in enumerate(dataset.manifest.shards)
        for start, stop in pieces(shard.tar_bytes)
    ]
    began = time.perf_counter()
    with ThreadPoolExecutor(_REQUESTS) as pool:
        nbytes = sum(pool.map(lambda job: len(store.read_range(*job)), jobs))
    return _result(nbytes, time.perf_counter() - began, len(jobs), nbytes)


def _cold(dataset: str, batch_bins: int, cache: Path, options: Any) -> dict[str, float]:
    for path in cache.iterdir():
        path.unlink()
    return _epoch(dataset, batch_bins, storage_options=options, cache=cache)


def _epoch(dataset: str, batch_bins: int, **settings: Any) -> dict[str, float]:
    began = time.perf_counter()
    loader = ShardLoader(dataset, batch_bins=batch_bins, rank=0, world_size=1, **settings)
    opened = time.perf_counter()
    nbytes, first = 0, 0.0
    # What iterating the loader does, up to the decoder.
    plan = loader.plan
    for spec in loader._announce(plan, loader._epochs.specs(plan, range(plan.steps))):
        spans = loader._storage.read(spec.spans)
        # One byte a page: what is mapped has to come from somewhere, too.
        sum(sum(span[::4096]) for span in spans)
        nbytes += sum(map(len, spans))
        first = first or time.perf_counter() - began
    counts = loader._storage.take_counts()
    result = _result(nbytes, time.perf_counter() - opened, counts["requests"], counts["fetched_bytes"])
    return {**result, "first_batch_seconds": first}


def _result(nbytes: int, seconds: float, requests: float, fetched: float) -> dict[str, float]:
    return {
        "megabytes_per_second": nbytes / seconds / 1e6,
        "requests_per_gigabyte": requests / nbytes * 1e9,
        "fetched_of_read": fetched / nbytes,
    }


if __name__ == "__main__":
    typer.run(storage)
