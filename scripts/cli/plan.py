"""`uttershard plan`: who reads what in an epoch, in how many steps, with how much padding; no audio is read."""

from dataclasses import asdict, replace
from typing import Annotated, Any, cast

import typer
import yaml
from uttershard.pipeline.dataset.files import local_path
from uttershard.pipeline.dataset.shardset import ShardSet
from uttershard.pipeline.errors import ConfigError
from uttershard.pipeline.loader.columns import Columns, PlanSettings, load_columns
from uttershard.pipeline.loader.mix import Mix, Part, open_mix
from uttershard.pipeline.planning.batch_types import RuleSettings
from uttershard.pipeline.planning.corpus import Corpus
from uttershard.pipeline.planning.mixing import MixedCorpus, PartNumbers
from uttershard.pipeline.planning.plan import EpochLayout, EpochPlan, lay_out_epoch
from uttershard.pipeline.planning.settings import Batching, Filters, Sharding, make_batching
from uttershard.pipeline.remote.retry import Limits
from uttershard.pipeline.storage.advice import advice

from .output import Json, as_count, as_duration, as_share, print_json, print_table
from .storage import READ_DEADLINE, READ_TIMEOUT, ReadDeadline, ReadTimeout, StorageOption, parse_storage_options

_DEFAULT_BINS = 60_000


def plan(
    datasets: Annotated[
        list[str], typer.Argument(help="Address of the dataset, the folder that holds dataset.json; several for a mix.")
    ],
    epoch: Annotated[int, typer.Option(help="Which epoch.")] = 0,
    world_size: Annotated[int, typer.Option(help="Number of ranks.")] = 1,
    total_shards: Annotated[
        int | None, typer.Option(help="Logical shards, a multiple of the world size; without it, the world size.")
    ] = None,
    batch_bins: Annotated[
        int | None,
        typer.Option(help=f"Frames a batch may hold, padding included. {_DEFAULT_BINS} if there is no --batch-size."),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Utterances of a batch, instead of --batch-bins.")] = None,
    max_batch_size: Annotated[int | None, typer.Option(help="Most utterances of a batch.")] = None,
    quadratic: Annotated[
        int | None, typer.Option(help="Frames at which attention costs as much as the rest of the model.")
    ] = None,
    longest_first: Annotated[bool, typer.Option(help="The heaviest batch is step 0.")] = False,
    oversize: Annotated[
        str, typer.Option(help="An utterance longer than --batch-bins: error, drop, or alone in its batch.")
    ] = "error",
    equal_steps: Annotated[
        str | None,
        typer.Option(help="How ranks come to equal steps: split, drop, pad, or off; pad for ESPnet's types."),
    ] = None,
    batch_type: Annotated[
        str,
        typer.Option(help="bucket, or one of ESPnet's: unsorted, sorted, folded, length, numel, catbel, catpow."),
    ] = "bucket",
    rule: Annotated[
        list[str] | None,
        typer.Option(help="Setting of ESPnet's batch type as NAME=VALUE, e.g. min_batch_size=2; may be repeated."),
    ] = None,
    shuffle: Annotated[bool, typer.Option(help="Without, all epochs are alike, as for validation.")] = True,
    rotate: Annotated[bool, typer.Option("--rotate", help="Without shuffling, another part in each epoch.")] = False,
    stats: Annotated[
        str | None, typer.Option(help="Json of `uttershard stats`, whose columns filters and batch types may name.")
    ] = None,
    min_seconds: Annotated[float | None, typer.Option(help="Shortest utterance kept.")] = None,
    max_seconds: Annotated[float | None, typer.Option(help="Longest utterance kept.")] = None,
    where: Annotated[
        list[str] | None, typer.Option(help="Rule over sidecar columns, e.g. 'language == \"de\"'; may be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the shuffle.")] = 0,
    frame_shift: Annotated[float, typer.Option(help="Seconds of a frame.")] = 0.01,
    weight: Annotated[
        list[float] | None, typer.Option(help="Share of the hours of each dataset of a mix, in their order.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Instead: shares like hours ** (1 / temperature), e.g. 5.")
    ] = None,
    pure: Annotated[bool, typer.Option("--pure", help="A batch is of one dataset of the mix only.")] = False,
    windows: Annotated[
        int | None, typer.Option(help="Parts of the epoch that each read a few tars only, for data beyond the cache.")
    ] = None,
    storage_option: StorageOption = None,
    read_timeout: ReadTimeout = READ_TIMEOUT,
    read_deadline: ReadDeadline = READ_DEADLINE,
    batches: Annotated[bool, typer.Option("--batches", help="List every batch (with --json).")] = False,
    json: Json = False,
) -> None:
    """Show the plan of an epoch: steps, padding, fill and logical shard of each rank, and what filters remove.

    The plan is what training will do, exactly; making it reads lengths from the sidecars, no audio.
    """
    if batches and not json:
        raise ConfigError("--batches lists every batch and needs --json")
    if batch_bins is None and batch_size is None and batch_type == "bucket":
        batch_bins = _DEFAULT_BINS
    batching = make_batching(
        batch_type,  # type: ignore[arg-type]  # which there are is said there
        _parse_rules(rule),
        batch_bins=_DEFAULT_BINS
        if batch_type == "bucket" and batch_bins is None and batch_size is None
        else batch_bins,
        batch_size=batch_size,
        max_batch_size=max_batch_size,
        quadratic=quadratic,
        longest_first=longest_first,
        oversize=oversize,
        equal_steps=equal_steps,  # type: ignore[arg-type]
        windows=windows,
        shuffle=shuffle,
    )
    sharding = Sharding(0, world_size, total_shards)
    filters = Filters(min_seconds, max_seconds, tuple(where or ()))
    mix = _mix(datasets, weight, temperature, pure)
    options, limits = parse_storage_options(storage_option), Limits(read_timeout, read_deadline)
    data = ShardSet.open(datasets[0], options, limits) if mix is None else open_mix(mix, options, limits)
    columns = load_columns(
        data, PlanSettings(sharding, filters, batching, seed, frame_shift, stats=stats, rotate=rotate)
    )
    layout = lay_out_epoch(columns.corpus, world_size, sharding.total_shards, batching, epoch=epoch, seed=seed)
    parts = _count_parts(columns.corpus, layout, seed, batching)
    whole = layout
    if windows is not None and windows > 1:
        in_one = replace(batching, windows=None)
        whole = lay_out_epoch(columns.corpus, world_size, sharding.total_shards, in_one, epoch=epoch, seed=seed)
    if json:
        facts = as_json(layout, batching, columns, parts, list_batches=batches)
        print_json(facts | {"windows": windows or 1, "without_windows": _totals(whole)})
    else:
        _print_plan(layout, batching, columns)
        _print_parts(parts)
        if whole is not layout:
            _print_loss(windows or 1, _totals(layout), _totals(whole))
        _print_advice(data if isinstance(data, ShardSet) else data.shards, sharding.total_shards, windows or 1)


def _mix(datasets: list[str], weights: list[float] | None, temperature: float | None, pure: bool) -> Mix | None:
    """Return the mix that the options say, None for a dataset alone."""
    if len(datasets) == 1:
        for name, value in (("weight", weights), ("temperature", temperature), ("pure", pure)):
            if value:
                raise ConfigError(f"--{name} is for a mix of several datasets: name them, or leave it out")
        return None
    if weights and len(weights) != len(datasets):
        raise ConfigError(f"{len(datasets)} datasets and {len(weights)} times --weight: give one for each dataset")
    given: list[float | None] = [*weights] if weights else [None] * len(datasets)
    parts = [Part(dataset, weight=weight) for dataset, weight in zip(datasets, given, strict=True)]
    return Mix(parts, temperature=temperature, pure=pure)


def _parse_rules(rules: list[str] | None) -> RuleSettings:
    """Return NAME=VALUE as settings; values are written as in YAML."""
    found: dict[str, Any] = {}
    for rule in rules or ():
        name, equals, value = rule.partition("=")
        if not equals or name not in RuleSettings.__annotations__:
            names = ", ".join(RuleSettings.__annotations__)
            raise ConfigError(f"--rule {rule!r}: give NAME=VALUE, where NAME is one of {names}")
        found[name] = yaml.safe_load(value)
    return cast(RuleSettings, found)


def _count_parts(corpus: Corpus, layout: EpochLayout, seed: int, batching: Batching) -> list[PartNumbers]:
    if not isinstance(corpus, MixedCorpus):
        return []
    shards = [summary.logical_shard for summary in layout.ranks if summary.logical_shard is not None]
    return corpus.count_parts(shards, seed=seed, epoch=batching.hashed_epoch(layout.epoch))


def as_json(
    layout: EpochLayout, batching: Batching, columns: Columns, parts: list[PartNumbers], *, list_batches: bool
) -> dict[str, Any]:
    """Return a plan as JSON values; with `list_batches` every batch too."""
    ranks = []
    for summary in layout.ranks:
        rank: dict[str, Any] = {
            "rank": summary.rank,
            "logical_shard": summary.logical_shard,
            "steps": summary.steps,
            "utterances": summary.utterances,
            "frames": summary.frames,
            "padded_frames": summary.padded_frames,
            "padding": summary.padding,
            "fill": summary.fill,
            "dropped_utterances": summary.dropped_utterances,
        }
        if list_batches:
            rank["batches"] = list(_batches(layout.plan(summary.rank), columns))
        ranks.append(rank)
    return {
        "epoch": layout.epoch,
        "world_size": layout.world_size,
        "total_shards": layout.total_shards,
        "batch_bins": batching.batch_bins,
        "batch_size": batching.batch_size,
        "steps": max(summary.steps for summary in layout.ranks),
        "utterances": columns.table.num_rows,
        "filtered": layout.filtered,
        **({"datasets": [asdict(part) for part in parts]} if parts else {}),
        "ranks": ranks,
    }


def _batches(plan: EpochPlan, columns: Columns) -> Any:
    keys = columns.table["key"]
    for step in range(plan.steps):
        rows = plan.batch(step)
        longest = int(plan.longest[step])
        yield {
            "step": step,
            "keys": keys.take(columns.corpus.real_rows(rows)).to_pylist(),
            "longest_frames": longest,
            "padded_frames": longest * len(rows),
            "filler": bool(plan.filler[step]),
        }


def _print_plan(layout: EpochLayout, batching: Batching, columns: Columns) -> None:
    unit = "frames" if batching.rules is None else "bins"
    budget = (
        f"{batching.batch_bins:,} {unit}" if batching.batch_bins else as_count(batching.batch_size or 0, "utterance")
    )
    steps = {summary.steps for summary in layout.ranks}
    shift = float(columns.corpus.frame_shift)
    print_table(
        f"Epoch {layout.epoch}: {'/'.join(str(count) for count in sorted(steps))} steps on "
        f"{as_count(layout.world_size, 'rank')}, {as_count(layout.total_shards, 'logical shard')}, batches of {budget}",
        ("rank", "shard", "steps", "utterances", "audio", "padding", "fill", "dropped"),
        [
            (
                str(summary.rank),
                str(summary.logical_shard),
                f"{summary.steps:,}",
                f"{summary.utterances:,}",
                as_duration(summary.frames * shift),
                as_share(summary.padding),
                as_share(summary.fill),
                f"{summary.dropped_utterances:,}",
            )
            for summary in layout.ranks
        ],
    )
    removed = ", ".join(f"{count:,} {reason}" for reason, count in layout.filtered.items() if reason != "kept")
    typer.echo(f"{layout.filtered['kept']:,} of {columns.table.num_rows:,} utterances kept ({removed or 'no filter'})")


def _print_parts(parts: list[PartNumbers]) -> None:
    if parts:
        print_table(
            "Datasets of the mix, in this epoch",
            ("dataset", "repeat", "utterances", "audio", "share"),
            [
                (
                    part.name,
                    f"{part.repeat:.3f}",
                    f"{part.utterances:,}",
                    as_duration(part.hours * 3600),
                    as_share(part.share),
                )
                for part in parts
            ],
        )


def _totals(layout: EpochLayout) -> dict[str, Any]:
    """Return steps, padding and fill of all ranks together."""
    ranks = layout.ranks
    frames, padded = sum(rank.frames for rank in ranks), sum(rank.padded_frames for rank in ranks)
    steps = sum(rank.steps for rank in ranks)
    filled = [rank.fill * rank.steps for rank in ranks if rank.fill is not None]
    return {
        "steps": max(rank.steps for rank in ranks),
        "padding": 1 - frames / padded if padded else 0.0,
        "fill": sum(filled) / steps if filled and steps else None,
    }


def _print_advice(shards: ShardSet, total_shards: int, windows: int) -> None:
    remote = [
        entry for number, entry in enumerate(shards.manifest.shards) if not local_path(shards.tar_address(number))
    ]
    total, utterances = sum(entry.tar_bytes for entry in remote), sum(entry.utterances for entry in remote)
    said = advice(total / total_shards, utterances // total_shards)
    if windows == 1 and said is not None:
        typer.echo(said)


def _print_loss(windows: int, here: dict[str, Any], whole: dict[str, Any]) -> None:
    typer.echo(
        f"{windows} windows: {here['steps']:,} steps, {whole['steps']:,} without windows; padding "
        f"{as_share(here['padding'])}, {as_share(whole['padding'])} without; fill {as_share(here['fill'])}, "
        f"{as_share(whole['fill'])} without"
    )
