"""The plan of a pack job: which utterances go to which shard, in which order; one row group a shard.

A task gets the number of its shard and reads its own rows, so that neither the scheduler nor a worker ever holds the
corpus, and a run that goes on after a crash deals exactly as the first one did.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from .commit import atomic_write

_COLUMNS = ("key", "uri", "start", "end", "text", "metadata", "origin", "seconds")


@dataclass(frozen=True)
class PlannedShard:
    """What a shard is expected to hold."""

    utterances: int
    seconds: float


def write_plan(path: Path, scratch: Path, utterances: pa.Table, shards: Sequence[NDArray[np.int64]]) -> None:
    """Write the plan.

    Args:
        path: The file.
        scratch: Folder for the unfinished file.
        utterances: The corpus.
        shards: Rows of each shard, in the order of packing.
    """
    table = utterances.select(list(_COLUMNS))
    with atomic_write(path, scratch) as file, pq.ParquetWriter(file, table.schema, compression="zstd") as writer:
        for rows in shards:
            writer.write_table(table.take(pa.array(rows)), row_group_size=max(1, len(rows)))


def read_shard(path: Path, shard: int) -> pa.Table:
    """Return the utterances of a shard, in the order of packing."""
    with pq.ParquetFile(path) as file:
        return file.read_row_group(shard, use_threads=False)


def read_outline(path: Path) -> list[PlannedShard]:
    """Return what each shard is expected to hold."""
    with pq.ParquetFile(path) as file:
        outline = []
        for shard in range(file.num_row_groups):
            seconds = file.read_row_group(shard, columns=["seconds"], use_threads=False)["seconds"].to_numpy()
            outline.append(PlannedShard(len(seconds), float(seconds.sum())))
        return outline
