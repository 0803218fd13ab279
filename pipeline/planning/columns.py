"""Columns that ESPnet's batch types look at: lengths other than frames, and categories."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..errors import ConfigError
from .batch_types import FRAMES, EspnetRules


def length_columns(columns: pa.Table, kept: NDArray[np.bool_], rules: EspnetRules) -> NDArray[np.int64] | None:
    """Return int64[C, N], the lengths that the rules name; frames, which may change with the epoch, are zero there.

    Raises:
        ConfigError: a column is not there, holds no whole numbers, or has none for an utterance that is kept.
    """
    names = rules.length_columns or ()
    if all(name == FRAMES for name in names):
        return None
    lengths = np.zeros((len(names), columns.num_rows), np.int64)
    for number, name in enumerate(names):
        if name == FRAMES:
            continue
        column = _column(columns, name, "length_columns")
        if not pa.types.is_integer(column.type):
            raise ConfigError(f"length_columns names {name!r}, a column of {column.type}: it must hold whole numbers")
        _check_complete(column, kept, name)
        lengths[number] = column.cast(pa.int64()).fill_null(0).to_numpy()
        if (lengths[number][kept] < 0).any():
            raise ConfigError(f"length_columns names {name!r}, which has negative values: filter them out with where=")
    return lengths


def category_codes(columns: pa.Table, kept: NDArray[np.bool_], rules: EspnetRules) -> NDArray[np.int32] | None:
    """Return int32[N], a code for each value of the category column, by the order of the values as text.

    Raises:
        ConfigError: the column is not there, or has no value for an utterance that is kept.
    """
    if rules.category is None:
        return None
    column = _column(columns, rules.category, "category")
    _check_complete(column, kept, rules.category)
    texts = column.cast(pa.string()).fill_null("")
    names = pc.unique(texts).sort()
    codes: NDArray[np.int32] = pc.index_in(texts, value_set=names).to_numpy().astype(np.int32)
    return codes


def _column(columns: pa.Table, name: str, setting: str) -> pa.ChunkedArray:
    if name not in columns.column_names:
        raise ConfigError(
            f"{setting} names {name!r}, which the sidecars do not have (there are "
            f"{', '.join(columns.column_names)}): keep it when packing (--column {name}), or give stats= where it was "
            "measured by `uttershard stats`"
        )
    return columns[name]


def _check_complete(column: pa.ChunkedArray, kept: NDArray[np.bool_], name: str) -> None:
    if not column.null_count:
        return
    missing = int(np.count_nonzero(kept & column.is_null().to_numpy()))
    if missing:
        raise ConfigError(
            f"{missing} utterances have no {name}: leave them out with where='{name} is not None', or pack them with it"
        )
