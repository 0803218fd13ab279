"""The plan of a pack job: which utterances go to which shard, in which order; one row group a shard.

A task gets the number of its shard and reads its own rows, so that neither the scheduler nor a worker ever holds the
corpus, and a run that goes on after a crash deals exactly as the first one did.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from uttershard.pipeline.errors import DataError

from .audio_files import is_damage
from .listing import SCHEMA
from .records import PLAN_NAME
from .targets.base import Stored, Target

_LISTED = ("key", "uri", "start", "end", "text", "metadata", "origin")
_SCHEMA = pa.schema([*(SCHEMA.field(name) for name in _LISTED), pa.field("seconds", pa.float64())])


def write_plan(target: Target, utterances: pa.Table, shards: Sequence[NDArray[np.int64]]) -> None:
    """Write the plan.

    Args:
        target: Where the job's records are.
        utterances: The corpus.
        shards: Rows of each shard, in the order of packing.
    """
    table = utterances.select(_SCHEMA.names)
    with target.create(PLAN_NAME) as file, pq.ParquetWriter(file, _SCHEMA, compression="zstd") as writer:
        for rows in shards:
            writer.write_table(table.take(pa.array(rows)).cast(_SCHEMA), row_group_size=max(1, len(rows)))


def read_shard(target: Target, shard: int, stored: Stored | None) -> pa.Table:
    """Return the utterances of a shard, in the order of packing.

    Args:
        target: Where the job's records are.
        shard: Its number.
        stored: The plan's entry of the listing, where there is a listing.

    Raises:
        DataError: The plan is damaged.
    """
    try:
        with target.open(PLAN_NAME, stored) as file, pq.ParquetFile(file, pre_buffer=stored is not None) as plan:
            return plan.read_row_group(shard, use_threads=False)
    except (OSError, pa.ArrowInvalid) as error:
        if not is_damage(error):
            raise
        raise DataError(f"{target.where(PLAN_NAME)}: damaged ({error}); pack again with overwrite") from error
