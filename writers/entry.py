"""What the manifest says of a shard, by its sidecar: one way for all that write shards, and for those who check."""

from typing import Any

import pyarrow as pa
from uttershard.pipeline.dataset.digest import digest_bytes
from uttershard.pipeline.dataset.manifest import ShardEntry
from uttershard.pipeline.dataset.sidecar import SidecarInfo


def make_entry(tar: str, sidecar: str, info: SidecarInfo, data: bytes, table: pa.Table) -> ShardEntry:
    """Return the entry of a shard.

    Args:
        tar: How the manifest lists the tar.
        sidecar: How it lists the sidecar.
        info: Of the tar.
        data: The sidecar.
        table: Its rows.
    """
    return ShardEntry(
        tar=tar,
        sidecar=sidecar,
        tar_bytes=info.tar_bytes,
        tar_digest=info.tar_digest,
        sidecar_bytes=len(data),
        sidecar_digest=digest_bytes(data),
        utterances=table.num_rows,
        **totals(table),
    )


def totals(table: pa.Table) -> dict[str, Any]:
    """Return what an entry says of the audio of a shard, by the rows of its sidecar."""
    samples = table["num_samples"].to_pylist()
    seconds = [count / rate for count, rate in zip(samples, table["sample_rate"].to_pylist(), strict=True)]
    return {
        "samples": sum(samples),
        "seconds": sum(seconds),
        "shortest_seconds": min(seconds, default=0.0),
        "longest_seconds": max(seconds, default=0.0),
    }
