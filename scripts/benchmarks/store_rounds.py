"""The rounds of the benchmark of reading from a store: a server, a slower way to it, and who is measured on them."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .rounds import Meter, Spread, measure_apart
from .storage import RAW, REMOTE, SUBJECTS
from .store_server import delayed, multiply, options_for, serving, upload

LATENCY_SECONDS = 0.03
SHARDS = 1000
_BUCKET = "s3://bench"
_WAYS = ("direct", f"{LATENCY_SECONDS * 1000:.0f} ms later")
MEASUREMENTS_A_ROUND = len(SUBJECTS) + len(REMOTE) + len(_WAYS)


def measure_store(dataset: Path, data: Path, rounds: int, meter: Meter) -> dict[str, Any]:
    """Measure reading a dataset from a store, directly and with latency.

    Args:
        dataset: On a local disk.
        data: Folder for what the server and the cache keep meanwhile.
        rounds: How often all is measured.
        meter: Told of each measurement.
    """
    names = {_WAYS[0]: tuple(SUBJECTS), _WAYS[1]: REMOTE}
    rates: dict[str, dict[str, list[dict[str, float]]]] = {
        way: {name: [] for name in subjects} for way, subjects in names.items()
    }
    first: dict[str, list[float]] = {way: [] for way in _WAYS}
    with ExitStack() as running:
        endpoint = running.enter_context(serving(data))
        cache = running.enter_context(TemporaryDirectory(prefix="cache-", dir=data))
        ways = {_WAYS[0]: endpoint, _WAYS[1]: running.enter_context(delayed(endpoint, LATENCY_SECONDS))}
        upload(dataset, f"{_BUCKET}/train", options_for(endpoint))
        upload(dataset, f"{_BUCKET}/many", options_for(endpoint))
        multiply(f"{_BUCKET}/many", options_for(endpoint), SHARDS)
        for _ in range(rounds):
            for way, subjects in names.items():
                options = options_for(ways[way])
                for name in subjects:
                    where = {"dataset": f"{_BUCKET}/train", "local": str(dataset), "cache": f"{cache}/tars"}
                    result = measure_apart(f"storage: {name}", {**where, "options": options})
                    rates[way][name].append(result)
                    meter.tell(f"storage, {way}: {name}: {result['megabytes_per_second']:,.0f} MB/s")
                seconds = measure_apart("first batch", {"dataset": f"{_BUCKET}/many", "options": options})
                first[way].append(seconds)
                meter.tell(f"storage, {way}: first batch of {SHARDS:,} shards: {seconds:.2f} s")
    return {
        "shards": SHARDS,
        "rates": {way: summarise(results) for way, results in rates.items()},
        "first_batch": {way: asdict(Spread.of(seconds)) for way, seconds in first.items()},
    }


def summarise(results: dict[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    """Return a row a subject: medians and ranges, and ratios taken in each round."""
    rows = []
    for name, of_rounds in results.items():
        row: dict[str, Any] = {"subject": name}
        for measure, example in of_rounds[0].items():
            row[measure] = None if example is None else asdict(Spread.of([one[measure] for one in of_rounds]))
        row["of_raw"] = _beside(of_rounds, results[RAW]) if name in REMOTE and name != RAW else None
        row["of_local"] = _beside(of_rounds, results["local"]) if name == "warm cache" else None
        rows.append(row)
    return rows


def _beside(results: Sequence[dict[str, float]], others: Sequence[dict[str, float]]) -> dict[str, float]:
    rate = "megabytes_per_second"
    pairs = zip(results, others, strict=True)
    return asdict(Spread.of([one[rate] / other[rate] for one, other in pairs]))
