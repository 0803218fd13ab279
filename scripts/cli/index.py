"""`uttershard index`: sidecars and manifest made again from the tars."""

from dataclasses import asdict
from typing import Annotated

import typer
from uttershard.writers.index import index_tars

from .cluster import ClusterConfig, ClusterName, Dashboard, Retries, Workers, chosen_cluster
from .output import Json, as_duration, print_json
from .progress import bars


def index(
    tars: Annotated[
        list[str], typer.Argument(help="The folder of a dataset, or its tars in order.", metavar="TARS...")
    ],
    out: Annotated[
        str | None, typer.Option(help="Folder for sidecars and manifest; without it, beside the tars.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(help="Metadata field that becomes a column; may be repeated. A dataset.json knows them already."),
    ] = None,
    cluster: ClusterName = None,
    cluster_config: ClusterConfig = None,
    workers: Workers = None,
    retries: Retries = 5,
    dashboard: Dashboard = False,
    json: Json = False,
) -> None:
    """Write sidecars and manifest from the tars alone. Not a byte of a tar is changed.

    For a sidecar that was lost or damaged, or a dataset.json that was: the result is what packing wrote.
    """
    summary = index_tars(
        tars,
        out=out,
        columns=tuple(column or ()),
        cluster=chosen_cluster(cluster, cluster_config, workers, dashboard),
        retries=retries,
        progress=bars(quiet=json),
    )
    if json:
        print_json(asdict(summary))
        return
    typer.echo(
        f"{summary.target}: {summary.shards:,} shards, {summary.utterances:,} utterances, "
        f"{as_duration(summary.hours * 3600)}; {len(summary.changed):,} sidecars written, the others were right"
    )
