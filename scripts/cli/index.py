"""`uttershard index`: sidecars and manifest made again from the tars."""

from dataclasses import asdict
from typing import Annotated

import typer
from uttershard.writers.error_limits import parse_max_errors
from uttershard.writers.index import index_tars

from .cluster import ClusterConfig, ClusterName, Dashboard, Retries, Workers, chosen_cluster, stoppable
from .output import Json, as_bytes, as_count, as_duration, print_json
from .progress import bars
from .storage import StorageOption, parse_storage_options


def index(
    tars: Annotated[
        list[str],
        typer.Argument(help="The folder of a dataset, or its tars in order; patterns too.", metavar="TARS..."),
    ],
    out: Annotated[
        str | None,
        typer.Option(help="Folder for sidecars and manifest, or s3://bucket/folder; without it, beside the tars."),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(help="Metadata field that becomes a column; may be repeated. A dataset.json knows them already."),
    ] = None,
    naming: Annotated[
        str | None,
        typer.Option(help="Whose tars they are: webdataset, wenet, nemo; without it ours, else webdataset."),
    ] = None,
    manifests: Annotated[
        str | None, typer.Option(help="NeMo's manifests, e.g. manifest__OP_0..7_CL_.json: its tars hold no text.")
    ] = None,
    checksums: Annotated[
        bool | None,
        typer.Option(
            help="Read every byte of another tool's tars, so that damage is noticed later; without it, of local ones."
        ),
    ] = None,
    unique_ids: Annotated[
        bool, typer.Option("--unique-ids", help="Put the tar's name before each id, for tars that all count from zero.")
    ] = False,
    on_error: Annotated[
        str,
        typer.Option(help="skip lists what is no utterance in errors.jsonl and goes on; raise stops at the first."),
    ] = "skip",
    max_errors: Annotated[
        str, typer.Option(help="More samples that are no utterances fail the job: a share (0.01, 5%) or a count (20).")
    ] = "0.01",
    cluster: ClusterName = None,
    cluster_config: ClusterConfig = None,
    workers: Workers = None,
    retries: Retries = 5,
    dashboard: Dashboard = False,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Write sidecars and manifest from the tars alone. Not a byte of a tar is changed.

    For a sidecar that was lost or damaged, or a dataset.json that was: the
    result is what packing wrote. Tars of another tool (WebDataset, WeNet, NeMo)
    are adopted: they stay where and as they are, and load like any dataset.
    Stopped or killed? Run the same command again: tars that were done are not read again.

        uttershard index "s3://bucket/train-{0000..0999}.tar" --out train

        uttershard index "s3://bucket/train-{0000..0999}.tar" --storage-option endpoint_url=http://store:9000
    """
    with stoppable():
        summary = index_tars(
            tars,
            out=out,
            columns=tuple(column or ()),
            naming=naming,
            manifests=manifests,
            checksums=checksums,
            unique_ids=unique_ids,
            on_error=on_error,
            max_errors=parse_max_errors(max_errors),
            cluster=chosen_cluster(cluster, cluster_config, workers, dashboard),
            retries=retries,
            progress=bars(quiet=json),
            storage_options=parse_storage_options(storage_option),
        )
    if json:
        print_json(asdict(summary))
        return
    typer.echo(
        f"{summary.dataset}: {as_count(summary.shards, 'shard')}, {as_count(summary.utterances, 'utterance')}, "
        f"{as_duration(summary.hours * 3600)}; {as_count(len(summary.changed), 'sidecar')} written"
        + ("" if len(summary.changed) == summary.shards else ", the others were right")
    )
    if summary.fetched_bytes:
        typer.echo(f"read {as_bytes(summary.fetched_bytes)} of {as_bytes(summary.bytes)} from the store")
    if summary.refused:
        typer.echo(f"{as_count(summary.refused, 'sample')} refused, see {summary.dataset}/errors.jsonl")
