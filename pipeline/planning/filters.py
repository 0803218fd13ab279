"""Applying filters to sidecar columns: which utterances are kept, and how many each rule removed (G3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import acero

from ..errors import ConfigError
from .settings import Filters
from .where import Where

_ROWS_AT_A_TIME = 1 << 17
_INT64_MAX = (1 << 63) - 1
_DERIVED = ("seconds", "frames")
_OTHER_COUNTS = ("kept", "too_short", "too_long", "over_budget")


def apply_filters(
    columns: pa.Table, frames: NDArray[np.int32], filters: Filters
) -> tuple[NDArray[np.bool_], dict[str, int]]:
    """Return which utterances the filters keep, and why the others are left out.

    Args:
        columns: sidecar columns, `num_samples`, `sample_rate` and those that the rules name among them.
        frames: int32[N], their lengths.
        filters: limits and rules.

    Returns:
        bool[N], and counts in the order of the rules: "kept", "too_short", "too_long", then each rule by its text.
        An utterance is counted once, by the first rule that removes it.

    Raises:
        ConfigError: a rule names a column that is not there, or does not fit the types of its columns.
    """
    check_columns(columns.column_names, filters)
    counts = {"kept": 0, "too_short": 0, "too_long": 0} | {_reason(rule): 0 for rule in filters.where}
    kept = np.ones(columns.num_rows, np.bool_)
    first = 0
    for batch in _needed(columns, filters).to_batches(max_chunksize=_ROWS_AT_A_TIME):
        part = slice(first, first + batch.num_rows)
        _apply_to_batch(batch, frames[part], filters, kept[part], counts)
        first += batch.num_rows
    counts["kept"] = int(np.count_nonzero(kept))
    return kept, counts


def _reason(rule: Where) -> str:
    """Return the name under which a rule counts: its text, unless a column of that name makes it a count of ours."""
    return f"where {rule.text}" if rule.text in _OTHER_COUNTS else rule.text


def check_columns(available: Sequence[str], filters: Filters) -> None:
    """Raise ConfigError for a rule that names a column which is not among these and not derived."""
    for rule in filters.where:
        for name in sorted(rule.columns or ()):
            if name not in available and name not in _DERIVED:
                raise ConfigError(
                    f"where={rule.text!r}: there is no column {name!r}; there are "
                    f"{', '.join(available)}, and the derived {' and '.join(_DERIVED)}"
                )


def _needed(columns: pa.Table, filters: Filters) -> pa.Table:
    named = filters.columns
    if named is None:
        return columns
    wanted = named | {"num_samples", "sample_rate"}
    return columns.select([name for name in columns.column_names if name in wanted])


def _apply_to_batch(
    batch: pa.RecordBatch,
    frames: NDArray[np.int32],
    filters: Filters,
    kept: NDArray[np.bool_],
    counts: dict[str, int],
) -> None:
    samples = batch["num_samples"].to_numpy()
    rates = batch["sample_rate"].to_numpy()
    masks: list[tuple[str, NDArray[np.bool_]]] = []
    if filters.min_seconds is not None:
        masks.append(("too_short", samples >= _samples_in(filters.min_seconds, rates, math.ceil)))
    if filters.max_seconds is not None:
        masks.append(("too_long", samples <= _samples_in(filters.max_seconds, rates, math.floor)))
    if filters.where:
        table = _with_derived(batch, frames, samples / rates)
        masks.extend((_reason(rule), _evaluate(rule, table)) for rule in filters.where)
    for reason, passed in masks:
        before = int(np.count_nonzero(kept))
        kept &= passed
        counts[reason] += before - int(np.count_nonzero(kept))


def _samples_in(seconds: Fraction, rates: NDArray[np.int32], rounding: Callable[[Fraction], int]) -> NDArray[np.int64]:
    """Return the limit of each utterance in samples, in exact integers: 30 s at 16 kHz is 480,000, not a float."""
    distinct, inverse = np.unique(rates, return_inverse=True)
    limits = [min(rounding(seconds * int(rate)), _INT64_MAX) for rate in distinct]
    return np.array(limits, np.int64)[inverse]


def _with_derived(batch: pa.RecordBatch, frames: NDArray[np.int32], seconds: NDArray[np.float64]) -> pa.Table:
    """Return the batch as a table with derived columns, dictionaries decoded; a column of the user's own name wins."""
    arrays = {"seconds": pa.array(seconds), "frames": pa.array(frames)}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        arrays[name] = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    return pa.table(arrays)


def _evaluate(rule: Where, table: pa.Table) -> NDArray[np.bool_]:
    plan = acero.Declaration.from_sequence(
        [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
            acero.Declaration("project", acero.ProjectNodeOptions([rule.expression], ["passed"])),
        ]
    )
    try:
        # Threads would hand the rows back in any order.
        passed = plan.to_table(use_threads=False)["passed"]
    except (pa.ArrowException, KeyError, TypeError) as cause:
        types = ", ".join(f"{name} ({table[name].type})" for name in table.column_names)
        reason = str(cause).splitlines()[0]
        raise ConfigError(f"where={rule.text!r} does not fit the columns: {reason}; there are {types}") from cause
    if not pa.types.is_boolean(passed.type):
        raise ConfigError(
            f"where={rule.text!r} gives {passed.type} values, not true or false: compare it with something"
        )
    result: NDArray[np.bool_] = passed.fill_null(False).to_numpy()
    return result
