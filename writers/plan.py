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

_NO_OTHER = (
    "and nothing else says which utterances a shard holds: bring it back as it was, or pack again with overwrite"
)


def write_plan(target: Target, utterances: pa.Table, shards: Sequence[NDArray[np.int64]]) -> None:
    """Write the plan.

    Args:
        target: Where the job's records are.
        utterances: The corpus.
        shards: Rows of each shard, in the order of packing.
    """
    table = utterances.select(_SCHEMA.names)
    with (
        target.create(PLAN_NAME) as file,
        pq.ParquetWriter(file, _SCHEMA, compression="zstd", write_page_checksum=True) as writer,
    ):
        for rows in shards:
            writer.write_table(table.take(pa.array(rows)).cast(_SCHEMA), row_group_size=max(1, len(rows)))


def read_shard(target: Target, shard: int, stored: Stored | None) -> pa.Table:
    """Return the utterances of a shard, in the order of packing.

    Args:
        target: Where the job's records are.
        shard: Its number.
        stored: The plan's entry of the listing, where there is a listing.

    Raises:
        DataError: The plan is damaged, gone or another one.
    """
    where = target.where(PLAN_NAME)
    try:
        with (
            target.open(PLAN_NAME, stored) as file,
            pq.ParquetFile(file, pre_buffer=stored is not None, page_checksum_verification=True) as plan,
        ):
            table = plan.read_row_group(shard, use_threads=False)
    except FileNotFoundError as error:
        if not target.names():
            raise  # nor is anything else: the file server is away, and may come back
        raise DataError(f"{where}: is gone, {_NO_OTHER}") from error
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        if not is_damage(error):
            raise
        raise DataError(f"{where}: damaged ({error}); pack again with overwrite") from error
    except DataError as error:  # of a store
        raise DataError(f"{where}: is gone or was replaced ({error}), {_NO_OTHER}") from error
    if not table.schema.equals(_SCHEMA):
        raise DataError(
            f"{where}: damaged (its columns are {', '.join(table.column_names)}); pack again with overwrite"
        )
    return table
