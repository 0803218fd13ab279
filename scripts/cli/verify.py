"""`uttershard verify`: every size, digest and checksum of a dataset; exit status 0 only if all is well."""

import os
from dataclasses import asdict
from typing import Annotated

import typer
from uttershard.pipeline.remote.retry import Limits
from uttershard.writers.verification import verify as verify_dataset

from .output import Json, as_bytes, as_count, as_duration, print_json
from .progress import bars
from .storage import READ_DEADLINE, READ_TIMEOUT, ReadDeadline, ReadTimeout, StorageOption, parse_storage_options


def verify(
    dataset: Annotated[str, typer.Argument(help="Address of the dataset: the folder that holds dataset.json.")],
    deep: Annotated[bool, typer.Option("--deep", help="Decode all audio too, and count its samples.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Read every byte, also of tars in a store.")] = False,
    workers: Annotated[int | None, typer.Option(help="Threads; without it, one for each CPU core.")] = None,
    storage_option: StorageOption = None,
    read_timeout: ReadTimeout = READ_TIMEOUT,
    read_deadline: ReadDeadline = READ_DEADLINE,
    json: Json = False,
) -> None:
    """Check a dataset: every size, digest and checksum, and that each utterance lies where the sidecar says.

    Lists all that is damaged, with shard, id and offset. Exit status 0 only if
    nothing is. Tars in a store are not fetched unless --full or --deep says so:
    their sizes are looked at, and the sidecars are read.
    """
    report = verify_dataset(
        dataset,
        deep=deep,
        full=full,
        workers=workers or len(os.sched_getaffinity(0)),
        progress=bars(quiet=json),
        storage_options=parse_storage_options(storage_option),
        limits=Limits(read_timeout, read_deadline),
    )
    if json:
        print_json({**asdict(report), "ok": report.ok})
    else:
        for problem in report.problems:
            place = "" if problem.key is None else f": {problem.key!r} at offset {problem.offset}"
            typer.echo(f"{problem.shard}{place}: {problem.what}")
        verdict = "all is well" if report.ok else as_count(len(report.problems), "problem")
        typer.echo(
            f"{report.dataset}: {verdict} ({as_count(report.shards, 'shard')}, "
            f"{as_count(report.utterances, 'utterance')}, {as_duration(report.seconds)}, {as_bytes(report.bytes)}; "
            f"audio {'decoded' if deep else 'not decoded'})"
        )
        if report.unread_bytes:
            typer.echo(f"not read: {as_bytes(report.unread_bytes)} of tars in the store; --full reads them")
    if not report.ok:
        raise typer.Exit(1)
