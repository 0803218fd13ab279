"""`uttershard merge`: several datasets as one."""

from dataclasses import asdict
from typing import Annotated

import typer
from uttershard.writers.merging import merge as merge_datasets

from .output import Json, as_count, as_duration, print_json
from .progress import bars
from .storage import StorageOption, parse_storage_options


def merge(
    datasets: Annotated[list[str], typer.Argument(help="Addresses of the datasets, in order.", metavar="DATASETS...")],
    out: Annotated[str, typer.Option(help="Folder of the new manifest, here or in a store.")],
    prefix: Annotated[
        list[str] | None,
        typer.Option(
            help="What the ids of a dataset get in front, e.g. a/; one for each dataset, in order. May be empty."
        ),
    ] = None,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Join datasets into one. Their tars stay where they are: the new manifest points at them.

    Ids that are there twice are refused, unless prefixes tell them apart.
    Sidecars are written anew only where columns differ or ids get a prefix.

        uttershard merge clean noisy --out all --prefix clean/ --prefix noisy/
    """
    summary = merge_datasets(
        datasets,
        out,
        prefixes=tuple(prefix or ()),
        progress=bars(quiet=json),
        storage_options=parse_storage_options(storage_option),
    )
    if json:
        print_json(asdict(summary))
        return
    typer.echo(
        f"{summary.dataset}: {as_count(summary.datasets, 'dataset')}, {as_count(summary.shards, 'shard')}, "
        f"{as_count(summary.utterances, 'utterance')}, {as_duration(summary.hours * 3600)}; "
        f"{as_count(summary.sidecars_written, 'sidecar')} written"
    )
