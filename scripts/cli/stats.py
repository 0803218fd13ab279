"""`uttershard stats`: features' mean and variance, hours of columns, lengths, tokens, silence and clipping."""

from typing import Annotated, Any

import typer
from uttershard.pipeline.errors import ConfigError
from uttershard.writers.stats.collect import collect_stats
from uttershard.writers.stats.settings import FEATURES, StatsSettings

from .cluster import ClusterConfig, ClusterName, Dashboard, Retries, Workers, chosen_cluster, stoppable
from .output import Json, as_count, as_share, print_json, print_pairs, print_table
from .progress import bars
from .storage import StorageOption, parse_storage_options

_SHOWN = 20
_PYTHON: dict[str, Any] = {"True": True, "False": False, "None": None}


def stats(
    dataset: Annotated[str, typer.Argument(help="Address of the dataset: the folder that holds dataset.json.")],
    out: Annotated[
        str | None, typer.Option(help="Folder for the files; without it, `stats` in the dataset's folder.")
    ] = None,
    features: Annotated[
        str, typer.Option(help=f"What is computed: {', '.join(FEATURES)}, or module:function of yours.")
    ] = "fbank",
    feature_option: Annotated[
        list[str] | None,
        typer.Option(help="Argument of Fbank or LogMel, e.g. --feature-option num_mel_bins=40; may be repeated."),
    ] = None,
    sample_rate: Annotated[int, typer.Option(help="Hz that features are computed at.")] = 16_000,
    column: Annotated[
        list[str] | None, typer.Option(help="Sidecar column whose hours are counted by value; may be repeated.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="SentencePiece model, or module:function: counts the tokens of each text.")
    ] = None,
    silence: Annotated[float, typer.Option(help="A 10 ms frame below this is silent, in dB of full scale.")] = -60.0,
    cluster: ClusterName = None,
    cluster_config: ClusterConfig = None,
    workers: Workers = None,
    retries: Retries = 5,
    dashboard: Dashboard = False,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Measure a dataset: mean and variance of features, hours by column, lengths, tokens, silence, clipping.

    The files are named by a digest of the settings, and hold that of the dataset:
    statistics of other data or settings never pass for them.
    Stopped or killed? Run the same command again: what is measured is kept.

        uttershard stats shards/train --column speaker --tokenizer bpe.model
    """
    settings = StatsSettings(
        features=features,
        feature_options=_options(feature_option or []),
        sample_rate=sample_rate,
        columns=tuple(column or ()),
        tokenizer=tokenizer,
        silence_dbfs=silence,
    )
    with stoppable():
        summary = collect_stats(
            dataset,
            settings,
            out=out,
            cluster=chosen_cluster(cluster, cluster_config, workers, dashboard),
            retries=retries,
            progress=bars(quiet=json),
            storage_options=parse_storage_options(storage_option),
        )
    if json:
        print_json(
            {
                "path": summary.path,
                "already_complete": summary.already_complete,
                "kept_shards": summary.kept_shards,
                **summary.stats.body,
            }
        )
        return
    if summary.already_complete:
        typer.echo("already complete, nothing to do")
    if summary.kept_shards:
        typer.echo(f"{as_count(summary.kept_shards, 'shard')} kept from an earlier run of this job")
    _print(summary.path, summary.stats.body)


def _print(path: str, body: dict[str, Any]) -> None:
    measured = body["features"]
    print_pairs(
        "Statistics",
        [
            ("utterances", f"{body['utterances']:,}"),
            ("features", _features(measured, body["settings"]["features"])),
            ("silence", as_share(body["silence"])),
            ("clipping", f"{as_share(body['clipping'])} of samples, {body['clipped_utterances']:,} utterances"),
            ("tokens", "-" if body["tokens"] is None else f"{body['tokens']:,}"),
        ],
    )
    for name, rows in body["columns"].items():
        more = f" (the first {_SHOWN} of {len(rows):,})" if len(rows) > _SHOWN else ""
        print_table(
            f"Hours by {name}{more}",
            (name, "utterances", "hours"),
            [(str(row["value"]), f"{row['utterances']:,}", f"{row['hours']:,.3f}") for row in rows[:_SHOWN]],
        )
    # Not as a title, which may be broken: it is what `stats=` of the loader is given.
    typer.echo(f"written to {path}")


def _features(measured: dict[str, Any], name: str) -> str:
    return "-" if name == "none" else f"{measured['frames']:,} frames of {measured['dimensions']} ({name})"


def _options(pairs: list[str]) -> dict[str, Any]:
    """Read name=value pairs; values are JSON where they can be, or as Python writes them, else strings."""
    import json

    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--feature-option {pair!r}: write name=value")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = _PYTHON.get(value, value)
    return options
