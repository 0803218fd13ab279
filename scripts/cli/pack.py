"""`uttershard pack`: from a corpus to a dataset of tar shards."""

from dataclasses import asdict
from typing import Annotated

import typer
from uttershard.pipeline.errors import ConfigError
from uttershard.writers import pack as pack_corpus
from uttershard.writers.error_limits import parse_max_errors
from uttershard.writers.settings import parse_size
from uttershard.writers.sources import source_names
from uttershard.writers.targets.limits import WriteLimits

from .cluster import ClusterConfig, ClusterName, Dashboard, Retries, Workers, chosen_cluster, stoppable
from .output import Json, as_bytes, as_count, as_duration, print_json
from .progress import bars
from .storage import SourceStorageOption, StorageOption, WriteDeadline, WriteTimeout, parse_storage_options


def pack(
    source: Annotated[
        str,
        typer.Argument(
            help="The corpus: a directory, manifest, archive (.tar, .tar.gz, .zip) or pattern of any kind that --from "
            "names, here or at an address that fsspec knows."
        ),
    ],
    target: Annotated[
        str, typer.Argument(help="Folder of the dataset, made if it is not there, or s3://bucket/folder.")
    ],
    from_: Annotated[
        str | None,
        typer.Option("--from", help=f"Kind of the source, guessed if left out: {', '.join(source_names())}."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="Option of the source's reader, e.g. --option text=sentence; may be repeated."),
    ] = None,
    codec: Annotated[
        str, typer.Option(help="keep copies the source's bytes where it can; flac, wav and opus are made.")
    ] = "keep",
    sample_rate: Annotated[int | None, typer.Option(help="Resample to this many Hz.")] = None,
    channels: Annotated[int | None, typer.Option(help="Mix to this many channels (1: mono).")] = None,
    shards: Annotated[int | None, typer.Option(help="Number of shards; without it, from --shard-size.")] = None,
    shard_size: Annotated[str, typer.Option(help="Size of a shard to aim at.")] = "512MB",
    multiple: Annotated[int, typer.Option(help="Round the number of shards up to a multiple of this.")] = 8,
    column: Annotated[
        list[str] | None,
        typer.Option(help="Metadata field to keep as a sidecar column, so that filters can use it; may be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the shuffle that deals utterances to shards.")] = 0,
    cluster: ClusterName = None,
    cluster_config: ClusterConfig = None,
    workers: Workers = None,
    retries: Retries = 5,
    dashboard: Dashboard = False,
    on_error: Annotated[
        str, typer.Option(help="skip lists a bad utterance in errors.jsonl and goes on; raise stops at the first.")
    ] = "skip",
    max_errors: Annotated[
        str, typer.Option(help="More bad utterances than this fail the job: a share (0.01, 5%) or a count (20).")
    ] = "0.01",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the dataset that is in the target.")] = False,
    allow_pipes: Annotated[
        bool,
        typer.Option(
            "--allow-pipes", help="Run the `command |` entries of a wav.scp. They are programs: trust them first."
        ),
    ] = False,
    storage_option: StorageOption = None,
    source_storage_option: SourceStorageOption = None,
    write_timeout: WriteTimeout = WriteLimits.write_timeout,
    write_deadline: WriteDeadline = WriteLimits.write_deadline,
    json: Json = False,
) -> None:
    """Pack a corpus into tar shards, each with a length sidecar.

    Stopped or killed? Run the same command again: finished shards are kept, the result is the same to the byte.
    Utterances that can't be read are listed in errors.jsonl beside dataset.json.

        uttershard pack data/train shards/train --column speaker

        uttershard pack data/train s3://bucket/train --storage-option endpoint_url=http://store:9000

        uttershard pack data/train shards/train --cluster slurm --workers 64

        uttershard pack train.jsonl shards/train --codec flac --sample-rate 16000 --shards 64
    """
    with stoppable():
        summary = pack_corpus(
            source,
            target,
            from_=from_,
            progress=bars(quiet=json),
            codec=codec,
            sample_rate=sample_rate,
            channels=channels,
            shards=shards,
            shard_bytes=parse_size(shard_size),
            multiple=multiple,
            columns=tuple(column or ()),
            seed=seed,
            cluster=chosen_cluster(cluster, cluster_config, workers, dashboard),
            retries=retries,
            on_error=on_error,
            max_errors=parse_max_errors(max_errors),
            overwrite=overwrite,
            allow_pipes=allow_pipes,
            source_options=_options(option or []),
            storage_options=parse_storage_options(storage_option),
            source_storage_options=parse_storage_options(source_storage_option, "--source-storage-option"),
            write_timeout=write_timeout,
            write_deadline=write_deadline,
        )
    if json:
        print_json(asdict(summary))
        return
    made = (
        "already complete, nothing to do" if summary.already_complete else f"packed in {as_duration(summary.elapsed)}"
    )
    typer.echo(
        f"{summary.dataset}: {made}: {as_count(summary.utterances, 'utterance')}, {as_duration(summary.hours * 3600)}, "
        f"{as_bytes(summary.bytes)} in {as_count(summary.shards, 'shard')}"
    )
    if summary.kept_shards:
        typer.echo(f"{as_count(summary.kept_shards, 'shard')} kept from an earlier run of this job")
    if summary.requests:
        typer.echo(
            f"sent {as_bytes(summary.sent_bytes)} in {as_count(summary.requests, 'request')}, "
            f"{summary.retries:,} of them again"
        )
    if summary.reduced:
        typer.echo(
            f"{summary.reduced:,} utterances of 32 bits or floats were rounded to 24 bits, and clipped at full scale, "
            "for FLAC; --codec keep and wav lose nothing"
        )
    if summary.without_text:
        some = f"{as_count(summary.without_text, 'utterance')} without a transcript"
        typer.echo("no utterance has a transcript" if summary.without_text == summary.utterances else some)
    if summary.refused:
        typer.echo(f"{as_count(summary.refused, 'utterance')} refused, see {summary.dataset}/errors.jsonl")


def _options(pairs: list[str]) -> dict[str, str]:
    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--option {pair!r}: write name=value")
        options[name] = value
    return options
