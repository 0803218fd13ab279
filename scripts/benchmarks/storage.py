"""Reading from a store: what share of the raw rate of its server arrives, with how many requests, and how soon.

`raw` fetches the tars by ranged GETs of 8 MB, 16 at a time, with the fastest client there is and nothing else; the
others read the utterances of an epoch in the order of its batches, without decoding, so that the store is all that is
measured. A server on the same machine competes for its cores: hence the CPU time beside the rates.
"""

import resource
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from uttershard.pipeline import ShardLoader, ShardSet
from uttershard.pipeline.remote.clients import open_client
from uttershard.pipeline.remote.obstore_s3 import ObstoreClient
from uttershard.pipeline.remote.retry import Limits
from uttershard.pipeline.remote.store import Store
from uttershard.pipeline.storage.coalesce import pieces

from .reading import BATCH_BINS

WINDOWS = 16
"""Of the corpus of six hours; each is read in whole requests if two of them fit into prefetch_bytes."""
_REQUESTS = 16
_SMALL_REQUEST = 400_000
"""About what the spans of a batch come to without windows: an utterance or two."""


@dataclass(frozen=True)
class Fetched:
    """What reading a dataset once took."""

    megabytes_per_second: float
    requests_per_gigabyte: float
    fetched_of_read: float
    """Bytes fetched for a byte that was read."""
    cpu_seconds_per_gigabyte: float
    """Of this process."""
    first_batch_seconds: float | None = None
    """From opening the loader."""


SUBJECTS: dict[str, dict[str, Any]] = {
    "raw GETs of 8 MB": {},
    "raw GETs of 0.4 MB": {"request_bytes": _SMALL_REQUEST},
    "spans": {},
    f"{WINDOWS} windows": {"windows": WINDOWS},
    "cold cache": {"cache": True, "empty": True},
    "warm cache": {"cache": True},
    "local": {"local": True},
}
"""Names and settings, in the order in which they are measured: the cold cache is the warm one afterwards."""
RAW, RAW_SMALL = tuple(SUBJECTS)[:2]
REMOTE = tuple(SUBJECTS)[:5]
"""Those that ask the store."""


def measure_storage(subject: str, dataset: str, local: str, cache: str, options: dict[str, Any]) -> Fetched:
    """Measure one of SUBJECTS.

    Args:
        subject: Its name.
        dataset: Address in the store.
        local: The same on a disk.
        cache: Folder for a cache.
        options: storage_options.
    """
    settings = dict(SUBJECTS[subject])
    if subject in (RAW, RAW_SMALL):
        return _raw(ShardSet.open(dataset, options), **settings)
    if settings.pop("empty", False):
        shutil.rmtree(cache, ignore_errors=True)
    if settings.pop("local", False):
        return _epoch(local)
    if "cache" in settings:
        settings["cache"] = cache
    return _epoch(dataset, storage_options=options, **settings)


def measure_first_batch(dataset: str, options: dict[str, Any]) -> float:
    """Return the seconds from the address of a dataset to its first decoded batch; nothing is cached, or kept."""
    began = time.perf_counter()
    next(iter(ShardLoader(dataset, batch_bins=BATCH_BINS, rank=0, world_size=1, storage_options=options)))
    return time.perf_counter() - began


def _raw(dataset: ShardSet, request_bytes: int = 8 << 20) -> Fetched:
    jobs = [
        (dataset.tar_address(index), start, stop, shard.tar_bytes)
        for index, shard in enumerate(dataset.manifest.shards)
        for start, stop in pieces(shard.tar_bytes, request_bytes)
    ]
    get = _fastest(dataset, jobs[0][0])
    began, cpu = time.perf_counter(), _cpu_seconds()
    with ThreadPoolExecutor(_REQUESTS) as pool:
        nbytes = sum(pool.map(lambda job: get(*job), jobs))
    seconds, cpu = time.perf_counter() - began, _cpu_seconds() - cpu
    return Fetched(nbytes / seconds / 1e6, len(jobs) / nbytes * 1e9, 1.0, cpu / nbytes * 1e9)


def _fastest(dataset: ShardSet, address: str) -> Callable[[str, int, int, int], int]:
    """Return what gets a range with as little as possible around it, and returns its length."""
    client, _ = open_client(address, dataset.storage_options or {}, bulk=True)
    if not isinstance(client, ObstoreClient):
        store = Store(dataset.storage_options)
        return lambda *job: sum(map(len, store.read_chunks(*job)))
    import obstore

    bucket = client.filesystem.split_path(address)[0]
    bare = client.store(bucket, Limits())
    return lambda address, start, stop, size: len(
        obstore.get_range(bare, address.partition(f"://{bucket}/")[2], start=start, end=stop)
    )


def _epoch(dataset: str, **settings: Any) -> Fetched:
    began = time.perf_counter()
    loader = ShardLoader(dataset, batch_bins=BATCH_BINS, rank=0, world_size=1, **settings)
    opened, cpu = time.perf_counter(), _cpu_seconds()
    nbytes, first_bytes, first = 0, 0, 0.0
    # What iterating the loader does, up to the decoder.
    plan = loader.plan
    for spec in loader._announce(plan, loader._epochs.specs(plan, range(plan.steps))):
        spans = loader._storage.read(spec.spans)
        # One byte a page: what is mapped has to come from somewhere, too.
        sum(sum(span[::4096]) for span in spans)
        nbytes += sum(map(len, spans))
        if not first:
            first, first_bytes = time.perf_counter() - began, nbytes
    ended, cpu = time.perf_counter(), _cpu_seconds() - cpu
    counts = loader._storage.take_counts()
    # The first batch comes alone, so that it comes soon; real epochs are long. Tars of a cold cache come meanwhile.
    whole = "cache" in settings or nbytes == first_bytes
    started, left_out = (opened, 0) if whole else (began + first, first_bytes)
    return Fetched(
        (nbytes - left_out) / (ended - started) / 1e6,
        counts["requests"] / nbytes * 1e9,
        counts["fetched_bytes"] / nbytes,
        cpu / nbytes * 1e9,
        first,
    )


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
