"""What was aimed at, and whether the results reach it."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Results = dict[str, Any]


@dataclass(frozen=True)
class Verdict:
    """One target beside its measurement."""

    what: str
    target: str
    measured: str
    holds: bool


def judge(results: Results) -> list[Verdict]:
    """Hold the results against the targets of the parts that were run."""
    verdicts: list[Verdict] = []
    for codec, rules in (("flac", _flac), ("wav", _wav)):
        if codec in results:
            rows = {row["subject"]: row for row in results[codec]}
            verdicts += [*rules(rows), *_first_batch(codec, rows)]
    if "padding" in results:
        verdicts += _padding(results["padding"])
    if "planning" in results:
        verdicts += _planning(results["planning"])
    if "storage" in results:
        verdicts += _storage(results["storage"])
    if "packing" in results:
        verdicts += _packing({row["subject"]: row for row in results["packing"]})
    return verdicts


def _packing(rows: dict[str, Any]) -> Iterable[Verdict]:
    yield _at_least("packing, keep: of cp -r", rows["ours, keep"]["of_copy"]["median"], 0.8)
    yield _at_least("packing, FLAC: of the bare encoder", rows["ours, FLAC"]["of_limit"]["median"], 0.9)


def _at_least(what: str, value: float, target: float, unit: str = "") -> Verdict:
    return Verdict(what, f"≥ {target:g}{unit}", f"{value:.3g}{unit}", value >= target)


def _at_most(what: str, value: float, target: float, unit: str = "") -> Verdict:
    return Verdict(what, f"≤ {target:g}{unit}", f"{value:.3g}{unit}", value <= target)


def _flac(rows: dict[str, Any]) -> Iterable[Verdict]:
    for count, of_limit, of_peer in ((1, 0.95, 1.7), (2, 0.85, 2.2)):
        for kind in ("thread", "worker"):
            name = f"{count} {kind}{'s' if count > 1 else ''}"
            row = rows[f"ours, {name}"]
            yield _at_least(f"FLAC, {name}: of the bare decode loop", row["of_limit"]["median"], of_limit)
            yield _at_least(f"FLAC, {name}: of webdataset", row["of_peer"]["median"], of_peer, "x")


def _wav(rows: dict[str, Any]) -> Iterable[Verdict]:
    for kind in ("thread", "worker"):
        one, two = rows[f"ours, 1 {kind}"], rows[f"ours, 2 {kind}s"]
        yield _at_least(f"WAV, 1 {kind}: of the least copy", one["of_limit"]["median"], 0.7)
        gain = two["utterances_per_second"]["median"] / one["utterances_per_second"]["median"]
        yield _at_least(f"WAV, 2 {kind}s: not slower than one", gain, 1, "x")


def _first_batch(codec: str, rows: dict[str, Any]) -> Iterable[Verdict]:
    for name in ("2 threads", "2 workers"):
        seconds = rows[f"ours, {name}"]["first_batch_seconds"]["median"]
        yield _at_most(f"{codec.upper()}, {name}: first batch after iter()", seconds, 0.5, " s")


def _storage(results: Results) -> Iterable[Verdict]:
    for way, rows in results["rates"].items():
        for row in rows:
            if row["subject"].endswith("windows") or row["subject"] == "cold cache":
                what = f"S3, {way}, {row['subject']}: of the raw rate"
                yield _at_least(what, row["of_raw"]["median"], 0.9)
            if row["subject"] == "warm cache":
                yield _at_least("S3, warm cache: of a local disk", row["of_local"]["median"], 0.9)


def _padding(rows: list[dict[str, Any]]) -> Iterable[Verdict]:
    for ranks, padding, fill in ((1, 1.0, 0.985), (8, 1.5, 0.975)):
        of_ranks = [row for row in rows if row["ranks"] == ranks]
        if not of_ranks:
            continue
        where = f"{ranks} rank{'s, equal steps' if ranks > 1 else ''}"
        median = {name: statistics.median(row[name] for row in of_ranks) for name in ("padding", "fill")}
        yield _at_most(f"{where}: padding", 100 * median["padding"], padding, " %")
        yield _at_least(f"{where}: fill", median["fill"], fill)
        lowest = min(row["lowest_fill"] for row in of_ranks)
        yield _at_least(f"{where}: fill of the emptiest batch", lowest, 0.6)


def _planning(rows: list[dict[str, Any]]) -> Iterable[Verdict]:
    largest = max(row["utterances"] for row in rows)
    of_largest = [row for row in rows if row["utterances"] == largest]
    seconds = max(row["corpus_seconds"] + row["epoch_seconds"] for row in of_largest)
    size = f"{largest / 1e6:g} M utterances"
    yield _at_most(f"{size}, slowest number of ranks: seconds", seconds, 5, " s")
    yield _at_most(f"{size}: memory an utterance", max(row["bytes_per_utterance"] for row in of_largest), 40, " bytes")
    times = [row["batch_microseconds"] for row in of_largest]
    names = f"{of_largest[0]['ranks']:,} to {of_largest[-1]['ranks']:,} ranks"
    yield _at_most(f"{size}, {names}: time a batch, slowest to fastest", max(times) / min(times), 1.5, "x")
