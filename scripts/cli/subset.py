"""`uttershard subset`: some utterances of a dataset as a new one."""

from dataclasses import asdict
from typing import Annotated

import typer
from uttershard.pipeline.planning.settings import Filters
from uttershard.writers.selection import subset as subset_dataset
from uttershard.writers.settings import parse_size

from .output import Json, as_count, as_duration, print_json
from .progress import bars
from .storage import StorageOption, parse_storage_options


def subset(
    dataset: Annotated[str, typer.Argument(help="Address of the dataset: the folder that holds dataset.json.")],
    out: Annotated[str, typer.Option(help="Folder of the new dataset, here or in a store.")],
    where: Annotated[
        list[str] | None, typer.Option(help="Rule over sidecar columns, e.g. 'language == \"de\"'; may be repeated.")
    ] = None,
    min_seconds: Annotated[float | None, typer.Option(help="Shortest utterance kept.")] = None,
    max_seconds: Annotated[float | None, typer.Option(help="Longest utterance kept.")] = None,
    hours: Annotated[float | None, typer.Option(help="A random sample of what is kept, of this much audio.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 0,
    shards: Annotated[int | None, typer.Option(help="Number of shards; without it, from --shard-size.")] = None,
    shard_size: Annotated[str, typer.Option(help="Size of a shard to aim at.")] = "512MB",
    multiple: Annotated[int, typer.Option(help="Round the number of shards up to a multiple of this.")] = 8,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Copy some utterances into a new dataset. Their bytes are copied as they are; nothing is decoded.

    Filters say which may come; --hours draws from them by --seed.

        uttershard subset shards/train --out small --where 'seconds < 20' --hours 10
    """
    summary = subset_dataset(
        dataset,
        out,
        filters=Filters(min_seconds, max_seconds, tuple(where or ())),
        hours=hours,
        seed=seed,
        shards=shards,
        shard_bytes=parse_size(shard_size),
        multiple=multiple,
        progress=bars(quiet=json),
        storage_options=parse_storage_options(storage_option),
    )
    if json:
        print_json(asdict(summary))
        return
    typer.echo(
        f"{summary.dataset}: {as_count(summary.utterances, 'utterance')}, {as_duration(summary.hours * 3600)} in "
        f"{as_count(summary.shards, 'shard')}"
    )
