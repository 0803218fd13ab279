"""The columns that planning and reading need, of one dataset or of a mix."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..dataset.digest import digest_bytes
from ..dataset.shardset import ShardSet
from ..dataset.sidecar import sidecar_schema
from ..dataset.stats import COLUMNS as MEASURED_COLUMNS
from ..errors import ConfigError, ShardingError
from ..planning.corpus import Corpus, build_corpus
from ..planning.filters import check_columns
from ..planning.mixing import mix_corpora
from ..planning.settings import Batching, Filters, Sharding
from ..planning.speed import Speed
from ..reading.spans import INDEX_COLUMNS, TEXT_COLUMN
from .mix import OpenMix

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
        foreign: Whether the tars are another tool's.
    """

    table: pa.Table
    rows_per_tar: NDArray[np.int64]
    corpus: Corpus
    identity: dict[str, Any]
    foreign: bool


def load_columns(data: ShardSet | OpenMix, settings: PlanSettings) -> Columns:
    """Read the columns of a dataset or of a mix.

    Raises:
        ConfigError: A filter does not fit the columns or keeps nothing.
    """
    if isinstance(data, OpenMix):
        return _load_mix(data, settings)
    check_columns([*data.columns, *(MEASURED if settings.stats is not None else ())], settings.filters)
    table = data.index(_needed(data, settings.filters, settings), stats=settings.stats)
    corpus = _corpus(table, data.rows_per_shard, settings, settings.filters)
    identity: dict[str, Any] = {"dataset": data.digest}
    if settings.stats is not None:
        # Its name is the digest of what was measured, and how.
        identity["stats"] = settings.stats.rpartition("/")[2]
    return Columns(table, data.rows_per_shard, corpus, identity, data.is_foreign)


def _load_mix(data: OpenMix, settings: PlanSettings) -> Columns:
    if settings.batching.windows is not None:
        raise ConfigError(
            f"windows={settings.batching.windows} with a Mix: a window reads tars that lie together, so the datasets "
            "would come one after the other. Leave windows out"
        )
    if settings.stats is not None:
        raise ConfigError("stats= is of one dataset, and a Mix has several: pack the columns with the data instead")
    if settings.batching.rules is not None and settings.batching.rules.category is not None:
        raise ConfigError(
            f"batch_type={settings.batching.batch_type!r} with a category balances one dataset; a Mix balances several "
            "by weights or temperature: use one of them"
        )
    wanted = {*INDEX_COLUMNS, *((TEXT_COLUMN,) if data.shards.is_foreign else ())}
    tables, parts, ids = [], [], []
    for name, shards, own in data.parts:
        filters = _both(settings.filters, own)
        try:
            check_columns(data.shards.columns, filters)
            table = _with_nulls(shards.index(_needed(shards, filters, settings)), filters, data.shards)
            corpus = _corpus(table, shards.rows_per_shard, settings, filters)
        except ConfigError as error:
            raise ConfigError(f"dataset {name!r}: {error}") from error
        tables.append(table.select([name for name in table.column_names if name in wanted]))
        parts.append((name, corpus))
        described = json.dumps([name, shards.digest, own.describe()], sort_keys=True)
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
        data.shards.is_foreign,
    )


def _corpus(table: pa.Table, rows_per_tar: NDArray[np.int64], settings: PlanSettings, filters: Filters) -> Corpus:
    return build_corpus(
        table,
        rows_per_tar=rows_per_tar,
        total_shards=settings.sharding.total_shards,
        filters=filters,
        frame_shift=settings.frame_shift,
        rules=settings.batching.rules,
    )


def _needed(shards: ShardSet, filters: Filters, settings: PlanSettings) -> list[str]:
    """Name the columns that planning and reading need; all of the sidecars if a ready expression may name any."""
    rules = settings.batching.rules
    named = {*(filters.columns or ())}
    if rules is not None:
        named |= {*(rules.length_columns or ()), *((rules.category,) if rules.category else ())}
    needed = {*INDEX_COLUMNS, *named, *((TEXT_COLUMN,) if shards.is_foreign else ())}
    names = [name for name in shards.columns if name in needed or filters.columns is None]
    if settings.stats is not None:
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
