"""What planning knows of a dataset: columns that are the same in every epoch, computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from ..errors import ConfigError, DataError
from .batch_types import EspnetRules
from .columns import category_codes, length_columns
from .filters import apply_filters
from .frames import count_frames, exact_frame_shift
from .partition import logical_bounds
from .settings import Filters, parse_int
from .windows import split_windows


@dataclass(frozen=True, eq=False)
class Corpus:
    """A dataset as planning sees it; an utterance is its ordinal, its place in shard order.

    Attributes:
        frames: int32[N], length of each utterance.
        kept: bool[N], whether the filters keep it.
        bounds: int64[T + 1], logical shard i holds ordinals `bounds[i]` up to `bounds[i + 1]`, filtered ones too.
        filtered: how many are kept, and how many each rule removed.
        frame_shift: seconds of a frame.
        tars: int64[tars + 1], where each tar begins, and the end of the last.
        keys: their ids, for messages; None if they were not given.
        lengths: int64[C, N], of each of `length_columns` of ESPnet's batch types; None if it is the frames only.
        categories: int32[N], codes of the column that ESPnet's batch types balance; None without.
    """

    frames: NDArray[np.int32]
    kept: NDArray[np.bool_]
    bounds: NDArray[np.int64]
    filtered: dict[str, int]
    frame_shift: Fraction
    tars: NDArray[np.int64]
    keys: pa.ChunkedArray | None = None
    lengths: NDArray[np.int64] | None = None
    categories: NDArray[np.int32] | None = None

    @property
    def total_shards(self) -> int:
        """Number of logical shards that the bounds are for."""
        return int(self.bounds.shape[-1]) - 1

    def kept_rows(self, logical_shard: int) -> NDArray[np.int64]:
        """Return the ordinals of a logical shard that the filters keep, ascending."""
        start, end = self.bounds[logical_shard : logical_shard + 2]
        rows = np.flatnonzero(self.kept[start:end])
        rows += start
        return rows

    # What differs in a mix, where an ordinal is a copy of an utterance, and what comes differs with the epoch.

    def epoch_rows(self, logical_shards: Sequence[int], *, seed: int, epoch: int) -> list[NDArray[np.int64]]:
        """Return the ordinals of each logical shard that come in an epoch that reads all of these, ascending."""
        return [self.kept_rows(shard) for shard in logical_shards]

    def split_parts(self, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the ordinals of each dataset; `rows` ascends."""
        return [rows]

    def rows_of_rank(self, logical_shards: Sequence[int], rank: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
        """Return what `epoch_rows` does for one rank."""
        return self.kept_rows(logical_shards[rank])

    def split_windows(self, rows: NDArray[np.int64], windows: int) -> list[NDArray[np.int64]]:
        """Return the ordinals of each window of one rank, ascending; `rows` ascends."""
        return split_windows(rows, self.frames, self.tars, windows)

    def split_groups(self, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return what is batched together; `rows` ascends."""
        return [rows]

    def name_group(self, group: int) -> str:
        """Return how messages name a group, after "logical shard 3"."""
        return ""

    def real_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places of utterances in their dataset."""
        return rows

    def once(self, of_copies: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return a column of ordinals for the utterances, in the order of `real_rows`."""
        return of_copies

    def cut_into(self, total_shards: int, num_samples: NDArray[np.int64], sample_rate: NDArray[np.int32]) -> Corpus:
        """Return the corpus with another number of logical shards; the columns are in the order of `real_rows`."""
        return replace(self, bounds=logical_bounds(np.diff(self.tars), num_samples, sample_rate, total_shards))

    def describe(self, ordinal: int) -> str:
        """Return an utterance as a message names it: ordinal, id if known, and seconds."""
        key = "" if self.keys is None else f" ({self.keys[int(self.real_rows(np.array([ordinal]))[0])].as_py()!r})"
        return f"utterance {ordinal}{key}, {float(int(self.frames[ordinal]) * self.frame_shift):g} s"


def build_corpus(
    columns: pa.Table,
    *,
    rows_per_tar: ArrayLike,
    total_shards: int,
    filters: Filters | None = None,
    frame_shift: float | Fraction = 0.01,
    rules: EspnetRules | None = None,
) -> Corpus:
    """Return what planning needs of a dataset.

    Args:
        columns: sidecar columns in shard order: `num_samples` and `sample_rate`, `key` for better messages, and
            those that the filters name.
        rows_per_tar: int[tars], utterances of each tar, in shard order.
        total_shards: number of logical shards, T.
        filters: what to leave out; nothing by default.
        frame_shift: seconds of a frame.
        rules: the batch type, if it is one of ESPnet's: its columns have to be there too.

    Raises:
        ConfigError: a filter does not fit the columns or keeps nothing, or a setting is out of range.
        DataError: the columns and rows_per_tar do not belong together, or a length makes no sense.
    """
    total_shards = parse_int("total_shards", total_shards, 1)
    rows = np.asarray(rows_per_tar, np.int64)
    if int(rows.sum()) != columns.num_rows or (rows < 0).any():
        raise DataError(
            f"{rows.size} tars of {int(rows.sum())} utterances in all, but the sidecars list {columns.num_rows}: "
            "manifest and sidecars are not of one dataset; index it again"
        )
    num_samples = columns["num_samples"].to_numpy()
    sample_rate = columns["sample_rate"].to_numpy()
    frames = count_frames(num_samples, sample_rate, frame_shift)
    bounds = logical_bounds(rows, num_samples, sample_rate, total_shards)
    tars = np.concatenate(([0], np.cumsum(rows))).astype(np.int64)
    kept, filtered = apply_filters(columns, frames, filters or Filters())
    if not filtered["kept"]:
        removed = ", ".join(f"{reason}: {count}" for reason, count in filtered.items() if reason != "kept")
        raise ConfigError(f"no utterance of {columns.num_rows} is kept ({removed}): loosen the filters")
    keys = columns["key"] if "key" in columns.column_names else None
    lengths = categories = None
    if rules is not None:
        lengths, categories = length_columns(columns, kept, rules), category_codes(columns, kept, rules)
    return Corpus(frames, kept, bounds, filtered, exact_frame_shift(frame_shift), tars, keys, lengths, categories)
