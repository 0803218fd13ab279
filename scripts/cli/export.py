"""`uttershard export`: a dataset as other tools read it."""

from dataclasses import asdict
from typing import Annotated

import typer
from uttershard.writers.exports.run import LAYOUTS
from uttershard.writers.exports.run import export as export_dataset

from .output import Json, as_count, print_json
from .progress import bars
from .storage import StorageOption, parse_storage_options


def export(
    dataset: Annotated[str, typer.Argument(help="Address of the dataset: the folder that holds dataset.json.")],
    out: Annotated[str, typer.Argument(help="Local folder for the manifests; made, or there and empty.")],
    to: Annotated[str, typer.Option(help=f"For which tool: {', '.join(LAYOUTS)}.")],
    extract: Annotated[
        bool, typer.Option("--extract", help="Write the audio as files below OUT, and point at those.")
    ] = False,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Write manifests of another tool that point into the shards, or at extracted files.

    Ids, texts, speakers and languages go along; espnet gets its shape files too. Nothing in the dataset is changed.

        uttershard export shards/train exp/kaldi --to kaldi
    """
    summary = export_dataset(
        dataset,
        to,
        out,
        extract=extract,
        progress=bars(quiet=json),
        storage_options=parse_storage_options(storage_option),
    )
    if json:
        print_json(asdict(summary))
        return
    for file in summary.files:
        typer.echo(file)
    typer.echo(f"{as_count(summary.utterances, 'utterance')} of {summary.dataset} for {to}")
    if summary.trimmed:
        typer.echo(
            f"{as_count(summary.trimmed, 'text')} lost blanks at the ends, which tables of {to} have no place for"
        )
