"""The columns that planning and reading need, of one dataset or of a mix."""

from __future__ import annotations

import json
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..dataset.digest import digest_bytes
from ..dataset.shardset import ShardSet
from ..dataset.sidecar import sidecar_schema
from ..dataset.stats import COLUMNS as MEASURED_COLUMNS
from ..errors import ConfigError, ShardingError
from ..planning.batch_types import FRAMES
from ..planning.corpus import Corpus, build_corpus
from ..planning.filters import check_columns
from ..planning.mixing import mix_corpora
from ..planning.settings import Batching, Filters, Sharding
from ..planning.speed import Speed
from ..reading.spans import INDEX_COLUMNS, TEXT_COLUMN
from .mix import OpenMix, OpenPart

_ID_DIGITS = 8
"""Digits of a dataset's id in a state: enough to tell a few datasets apart, and a state stays under 1 KB."""

MEASURED = tuple(name for name in MEASURED_COLUMNS.names if name != "key")
"""Columns that `uttershard stats` adds."""


@dataclass(frozen=True)
class PlanSettings:
    """All that a plan depends on, besides the dataset and the epoch."""

    sharding: Sharding
    filters: Filters
    batching: Batching
    seed: int = 0
    frame_shift: float = 0.01
    speed: Speed | None = None
    stats: str | None = None
    """Address of a json of `uttershard stats`, whose columns filters and batch types can name."""
    rotate: bool = False
    """Whether epochs without shuffling are of other logical shards each, as in ESPnet's rotating validation."""

    def __post_init__(self) -> None:
        sharding = self.sharding
        if self.batching.shuffle:
            if self.rotate:
                raise ConfigError(
                    "rotate=True is for validation, together with shuffle=False; epochs that are shuffled rotate over "
                    f"total_shards={sharding.total_shards} by themselves"
                )
            return
        if self.speed is not None:
            raise ConfigError("speed= draws other lengths in every epoch, which shuffle=False rules out: leave it out")
        if sharding.total_shards != sharding.world_size and not self.rotate:
            raise ShardingError(
                f"shuffle=False reads all data in every epoch, in fixed slices, but total_shards="
                f"{sharding.total_shards} with world_size={sharding.world_size} makes an epoch "
                f"1/{sharding.epochs_per_cycle} of it: leave total_shards out, or say rotate=True for validation on "
                "another part each time"
            )


@dataclass(frozen=True)
class Columns:
    """What planning and reading need of the data.

    Attributes:
        table: The columns of INDEX_COLUMNS, and TEXT_COLUMN of another tool's tars.
        rows_per_tar: int64[tars], utterances of each.
        corpus: For planning.
        identity: What data this is, as JSON values.
        foreign: bool[tars], whether each is another tool's.
    """

    table: pa.Table
    rows_per_tar: NDArray[np.int64]
    corpus: Corpus
    identity: dict[str, Any]
    foreign: NDArray[np.bool_]


def load_columns(data: ShardSet | OpenMix, settings: PlanSettings) -> Columns:
    """Read the columns of a dataset or of a mix.

    Raises:
        ConfigError: A filter does not fit the columns or keeps nothing.
    """
    if isinstance(data, OpenMix):
        return _load_mix(data, settings)
    check_columns([*data.columns, *(MEASURED if settings.stats is not None else ())], settings.filters)
    table = data.index(_needed(data, settings.filters, settings, settings.stats), stats=settings.stats)
    corpus = _corpus(table, data.rows_per_shard, settings, settings.filters)
    identity: dict[str, Any] = {"dataset": data.digest}
    if settings.stats is not None:
        identity["stats"] = _digest_of(settings.stats, data)
    return Columns(table, data.rows_per_shard, corpus, identity, _foreign(data))


def _load_mix(data: OpenMix, settings: PlanSettings) -> Columns:
    if settings.stats is not None:
        raise ConfigError(
            f"stats={settings.stats!r} is of one dataset, and a Mix has several: give each of them its own, "
            "Part(..., stats=...)"
        )
    if settings.batching.rules is not None and settings.batching.rules.category is not None:
        raise ConfigError(
            f"batch_type={settings.batching.batch_type!r} with a category balances one dataset; a Mix balances several "
            "by weights or temperature: use one of them"
        )
    tables, parts, ids = [], [], []
    for part in data.parts:
        filters = _both(settings.filters, part.filters)
        try:
            table, corpus = _load_part(part, filters, data.shards, settings)
        except ConfigError as error:
            raise ConfigError(f"dataset {part.name!r}: {error}") from error
        tables.append(table)
        parts.append((part.name, corpus))
        measured = [] if part.stats is None else [_digest_of(part.stats, part.shards)]
        described = json.dumps([part.name, part.shards.digest, part.filters.describe(), *measured], sort_keys=True)
        ids.append(digest_bytes(described.encode())[-_ID_DIGITS:])
    repeats = data.mix.repeats([corpus for _, corpus in parts])
    identity: dict[str, Any] = {"dataset": data.shards.digest, "mix": data.mix.describe(), "parts": ids}
    return Columns(
        pa.concat_tables(tables, promote_options="default").unify_dictionaries(),
        data.shards.rows_per_shard,
        mix_corpora(
            [(name, corpus, repeat) for (name, corpus), repeat in zip(parts, repeats, strict=True)],
            separate=data.mix.pure,
        ),
        identity,
        np.concatenate([_foreign(part.shards) for part in data.parts]),
    )


def _digest_of(stats: str, shards: ShardSet) -> str:
    """Return the digest of what was measured of each utterance, whatever the statistics are called."""
    return shards.stats(stats).columns_digest


def _load_part(
    part: OpenPart, filters: Filters, everything: ShardSet, settings: PlanSettings
) -> tuple[pa.Table, Corpus]:
    """Return the columns that reading one dataset of a mix needs, and what planning does."""
    check_columns([*everything.columns, *(MEASURED if part.stats is not None else ())], filters)
    table = part.shards.index(_needed(part.shards, filters, settings, part.stats), stats=part.stats)
    table = _with_nulls(table, filters, everything)
    wanted = {*INDEX_COLUMNS, *((TEXT_COLUMN,) if part.shards.is_foreign else ())}
    corpus = _corpus(table, part.shards.rows_per_shard, settings, filters)
    return table.select([name for name in table.column_names if name in wanted]), corpus


def _corpus(table: pa.Table, rows_per_tar: NDArray[np.int64], settings: PlanSettings, filters: Filters) -> Corpus:
    return build_corpus(
        table,
        rows_per_tar=rows_per_tar,
        total_shards=settings.sharding.total_shards,
        filters=filters,
        frame_shift=settings.frame_shift,
        rules=settings.batching.rules,
    )


def _foreign(shards: ShardSet) -> NDArray[np.bool_]:
    return np.full(len(shards.manifest.shards), shards.is_foreign)


def parse_stats(stats: object) -> str | None:
    """Return the address that `stats=` gives.

    Raises:
        ConfigError: It is none.
    """
    if stats is None or isinstance(stats, str):
        return stats
    if isinstance(stats, PathLike):
        return str(stats)
    raise ConfigError(f"stats={stats!r}: give the address of the json that `uttershard stats` wrote")


def _needed(shards: ShardSet, filters: Filters, settings: PlanSettings, stats: str | None) -> list[str]:
    """Name the columns that planning and reading need; all of the sidecars if a ready expression may name any."""
    rules = settings.batching.rules
    ruled = set[str]()
    if rules is not None:
        ruled = {*(rules.length_columns or ()), *((rules.category,) if rules.category else ())} - {FRAMES}
    available = [*shards.columns, *(MEASURED if stats is not None else ())]
    for name in sorted(ruled.difference(available)):
        raise ConfigError(
            f"length_columns or category names {name!r}, which the sidecars do not have (there are "
            f"{', '.join(available)}): keep it when packing (--column {name}), or give stats= where it was measured by "
            "`uttershard stats`"
        )
    named = {*(filters.columns or ()), *ruled}
    needed = {*INDEX_COLUMNS, *named, *((TEXT_COLUMN,) if shards.is_foreign else ())}
    names = [name for name in shards.columns if name in needed or filters.columns is None]
    if stats is not None:
        names += [name for name in MEASURED if name in named and name not in names]
    return names


def _both(common: Filters, own: Filters) -> Filters:
    """Return the filters of one part: its own limits where it has any, and all rules."""
    return Filters(
        common.min_seconds if own.min_seconds is None else own.min_seconds,
        common.max_seconds if own.max_seconds is None else own.max_seconds,
        where=[*common.where, *own.where],
    )


def _with_nulls(table: pa.Table, filters: Filters, everything: ShardSet) -> pa.Table:
    """Add metadata columns that only other datasets of the mix have, so that a rule may name them: empty here."""
    schema = sidecar_schema(everything.manifest.columns)
    for name in schema.names:
        if name not in table.column_names and (filters.columns is None or name in filters.columns):
            table = table.append_column(schema.field(name), pa.nulls(table.num_rows, schema.field(name).type))
    return table
