"""Results as a Markdown document."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from .targets import judge

_FEWEST_ROUNDS = 3
_IDLE_LOAD = 0.25
"""Running processes a core, at most, of a machine that is left alone."""

_INTRODUCTION = """# Benchmarks

Written by `scripts/bench`, which measures all of this again on your machine; the numbers behind it are in
[benchmarks.json](benchmarks.json). Absolute speeds are this machine's; what carries over is the ratios, each
taken between two measurements of the same round.
"""

_READING = """## Reading

{hours:g} hours of speech with LibriSpeech-like lengths (62 % triangular 11.5-14.8-16.7 s, the rest uniform
1.3-13 s), 16 kHz, mono, made of the demo corpus, in {shards} shards on a local disk, in the page cache for
all. A batch holds ten minutes of audio, padding included. "Utterances/s" are those that are decoded, batched,
and float32 in the training process.

Each line is measured in a process of its own, one after the other, {rounds} rounds of that: the median, and
the lowest and highest. The clock starts {warm_up_seconds:g} s into a stream that runs epoch after epoch, and
stops at the first batch {seconds:g} s later. First batch: from `iter()` of a new loader, the start of workers
included.

- **bare decode**: the limit for FLAC. Processes that do nothing but decode files in memory, by the fastest
  decoder, into a buffer that is used again; nothing is read, checked, converted, batched or sent.
- **least copy**: the limit for WAV. int16 samples, where they lie in the mapped tar, become float32 in their
  row of a padded batch buffer that is used again, in one process; nothing is parsed, checked or sent. Held
  against one and two workers. **2 buffers in turn**: the same, but the next batch goes elsewhere than the last,
  as it must while the trainer holds that: one buffer of 38 MB stays in a large cache, two may not.
- **webdataset**: the first peer. Its own reader, `soundfile`, a buffer for each of eleven ranges of lengths,
  torch's `DataLoader`; shards and order as they come. It verifies no checksum.
- **ours**: `ShardLoader` with `threads=` or `num_workers=`, every checksum verified.
"""

_PLANNING = """## Planning

From sidecar columns in memory to one rank's plan of an epoch, batches of ten minutes. "Corpus" is done once a
run (lengths, filters, logical shards), "epoch" once an epoch; medians of {rounds}, lowest and highest of both
together. A rank plans for all ranks, so "a batch" is the epoch's time for each batch of each rank, "a step"
for each step of one rank. Memory: the most in use at once beyond the columns given, the plan included.
"""

_PADDING = """## Padding and fill

{padding_utterances:,} LibriSpeech-like lengths, batches of ten minutes, steps equal on all ranks. Medians of
{draws} draws of lengths; lowest and highest in brackets. With equal steps the fill moves by whole steps: one
more on the rank that needs most is one more on all.
"""


_STORAGE = """## Storage

The WAV corpus in an S3 server (SeaweedFS) on this machine, which competes for its cores, read in the order of the
batches of an epoch, without decoding. Interleaved, {rounds} rounds; ratios are taken in each round.

- **raw**: ranged GETs of the tars, 16 at a time, by the fastest client there is, and nothing else: the bytes are
  not kept. "Of raw" is the rate by that of GETs of 8 MB.
- **spans**: neither cache nor windows: an epoch in random order over the whole dataset, so most utterances are a
  request of their own. Hold it against raw GETs of that size; windows or a cache are what to use.
- **windows**: batches do not mix windows of the epoch, whose tars come in large requests.
- **cold cache**: whole tars are written to a disk and checked while batches are read. **Warm cache**, **local**: no
  request.

Rates are from the first batch on, since it comes alone and real epochs are longer; those of caches from the start.
Requests and CPU time of the process are for each GB of audio read; first batch: from opening the loader, libraries
loaded.
"""

_PACKING = """## Packing

{packing_hours:g} hours of speech as WAV files with a JSONL manifest that states durations, on a local disk and in the
page cache, {cores} cores. The clock starts before the workers do and stops when the last of them has ended. Each line
in a process of its own, {rounds} rounds; medians, in brackets the lowest and highest; ratios are taken in each round.
Our shards are forced to disk before they count, and all their bytes have digests; neither is so of the others'.

- **cp -r**: copies the files; **then sync**: and waits for the disk.
- **bare FLAC encoder**: a process a core that decodes WAV and encodes FLAC, and does nothing else.
- **ours**: `pack` with `--codec keep` and `--codec flac`, a worker a core. The last line: start and end alone.
- **WeNet's way**: shards by the rule of WeNet's recipe, a process a core: a text and a whole file an utterance.
- **Lhotse Shar**: Lhotse's own writer, one process, on an eighth of the files.{lhotse}
"""


def markdown(results: dict[str, Any]) -> str:
    """Return the document for what was run."""
    settings = results["settings"]
    sections = [_INTRODUCTION, _machine(results["machine"])]
    sections += [f"**Not to be quoted: {reason}.**\n" for reason in _doubts(results)]
    sections.append(_targets(results))
    codecs = [codec for codec in ("flac", "wav") if codec in results]
    if codecs:
        sections.append(_READING.format(**settings))
        sections += [f"### {codec.upper()}\n\n{_reading(results[codec])}" for codec in codecs]
    if "planning" in results:
        sections += [_PLANNING.format(**settings), _planning(results["planning"])]
    if "padding" in results:
        draws = len(settings["padding_seeds"])
        sections += [_PADDING.format(**settings, draws=draws), _padding(results["padding"])]
    if "storage" in results:
        sections += [_STORAGE.format(**settings), *_storage(results["storage"])]
    if "packing" in results:
        there = any(row["subject"].startswith("Lhotse") for row in results["packing"])
        lhotse = "" if there else " Not installed where this was measured."
        cores = results["machine"]["cores"]
        sections += [_PACKING.format(**settings, cores=cores, lhotse=lhotse), _packing(results["packing"])]
    return "\n".join(sections)


def _doubts(results: dict[str, Any]) -> list[str]:
    """Say why the numbers mean little, if they do."""
    machine, doubts = results["machine"], []
    if results["settings"]["rounds"] < _FEWEST_ROUNDS:
        doubts.append(f"fewer than {_FEWEST_ROUNDS} rounds say nothing of the spread")
    if machine["load_at_start"] > _IDLE_LOAD * machine["cores"]:
        doubts.append(f"the machine was busy with other work, load {machine['load_at_start']} at the start")
    return doubts


def _machine(machine: dict[str, Any]) -> str:
    libraries = ", ".join(
        f"{name} {value}"
        for name, value in machine.items()
        if name not in ("date", "processor", "cores", "memory_gb", "system", "load_at_start", "python")
    )
    return (
        f"{machine['date']}, {machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB, "
        f"{machine['system']}, load {machine['load_at_start']} at the start. Python {machine['python']}, {libraries}.\n"
    )


def _targets(results: dict[str, Any]) -> str:
    rows = [
        (verdict.what, verdict.target, verdict.measured, "yes" if verdict.holds else "**no**")
        for verdict in judge(results)
    ]
    return "## Targets\n\n" + _table(("what", "target", "measured", "holds"), rows)


def _reading(rows: list[dict[str, Any]]) -> str:
    head = ("", "utterances/s", "lowest-highest", "of the limit", "of webdataset", "first batch")
    return _table(
        head,
        [
            (
                row["subject"],
                f"{row['utterances_per_second']['median']:,.0f}",
                f"{row['utterances_per_second']['lowest']:,.0f}-{row['utterances_per_second']['highest']:,.0f}",
                _ratio(row["of_limit"]),
                _ratio(row["of_peer"]),
                f"{row['first_batch_seconds']['median']:.3f} s" if row["first_batch_seconds"] else "",
            )
            for row in rows
        ],
    )


def _planning(rows: list[dict[str, Any]]) -> str:
    head = (
        "utterances",
        "ranks",
        "steps",
        "corpus",
        "epoch",
        "lowest-highest",
        "a batch",
        "a step",
        "bytes an utterance",
    )
    return _table(
        head,
        [
            (
                f"{row['utterances']:,}",
                f"{row['ranks']:,}",
                f"{row['steps']:,}",
                f"{row['corpus_seconds']:.3f} s",
                f"{row['epoch_seconds']:.3f} s",
                f"{row['lowest_seconds']:.3f}-{row['highest_seconds']:.3f} s",
                f"{row['batch_microseconds']:,.1f} µs",
                f"{row['step_microseconds']:,.0f} µs",
                f"{row['bytes_per_utterance']:,.0f}",
            )
            for row in rows
        ],
    )


def _padding(rows: list[dict[str, Any]]) -> str:
    by_ranks: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_ranks.setdefault(row["ranks"], []).append(row)
    return _table(
        ("ranks", "steps", "padding", "fill", "fill of the emptiest batch"),
        [
            (
                f"{ranks:,}",
                _spread([row["steps"] for row in of_ranks], "{:,.0f}"),
                _spread([100 * row["padding"] for row in of_ranks], "{:.2f} %"),
                _spread([row["fill"] for row in of_ranks], "{:.4f}"),
                _spread([row["lowest_fill"] for row in of_ranks], "{:.3f}"),
            )
            for ranks, of_ranks in by_ranks.items()
        ],
    )


def _storage(results: dict[str, Any]) -> Iterable[str]:
    head = ("", "MB/s", "lowest-highest", "of raw", "of local", "requests", "fetched", "CPU", "first batch")
    for way, rows in results["rates"].items():
        yield f"### {way[0].upper()}{way[1:]}\n"
        yield _table(
            head,
            [
                (
                    row["subject"],
                    f"{row['megabytes_per_second']['median']:,.0f}",
                    f"{row['megabytes_per_second']['lowest']:,.0f}-{row['megabytes_per_second']['highest']:,.0f}",
                    _ratio(row["of_raw"]),
                    _ratio(row["of_local"]),
                    f"{row['requests_per_gigabyte']['median']:,.0f}",
                    f"{row['fetched_of_read']['median']:.2f}",
                    f"{row['cpu_seconds_per_gigabyte']['median']:.2f} s",
                    f"{row['first_batch_seconds']['median']:.2f} s" if row["first_batch_seconds"] else "",
                )
                for row in rows
            ],
        )
    yield f"### First batch of {results['shards']:,} shards, nothing cached, decoded\n"
    rows = [(way, f"{spread['median']:.2f} s") for way, spread in results["first_batch"].items()]
    yield _table(("", "first batch"), rows)


def _packing(rows: list[dict[str, Any]]) -> str:
    return _table(
        ("", "seconds", "MB/s", "audio s/s", "of cp -r", "of the bare encoder"),
        [
            (
                row["subject"],
                f"{row['seconds']['median']:.1f}" if row["seconds"] else "",
                f"{row['megabytes_per_second']['median']:,.0f}" if row["megabytes_per_second"] else "",
                f"{row['audio_seconds_per_second']['median']:,.0f}",
                _ratio(row["of_copy"]),
                _ratio(row["of_limit"]) if row["subject"] != "bare FLAC encoder" else "",
            )
            for row in rows
        ],
    )


def _ratio(spread: dict[str, float] | None) -> str:
    return "" if spread is None else f"{spread['median']:.2f} ({spread['lowest']:.2f}-{spread['highest']:.2f})"


def _spread(values: Sequence[float], form: str) -> str:
    middle, low, high = (form.format(value) for value in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({low}-{high})"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *rows))
