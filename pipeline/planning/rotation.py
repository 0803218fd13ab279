"""The rotation formula: which logical shard a rank reads in an epoch (G1).

shard_idx = (epoch * world_size + rank) % total_shards

          epoch 0   epoch 1   epoch 2 ...          W = 2, T = 4: a cycle is T / W = 2 epochs
rank 0       0         2         0
rank 1       1         3         1
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ShardingError
from .settings import Sharding, parse_int


def shard_index(epoch: int, rank: int, world_size: int, total_shards: int) -> int:
    """Return the logical shard that a rank reads in an epoch.

    Raises:
        ShardingError: a value is no integer or out of range, or total_shards is no multiple of world_size.

    Example:
        >>> [shard_index(epoch=1, rank=rank, world_size=4, total_shards=8) for rank in range(4)]
        [4, 5, 6, 7]
    """
    epoch = parse_int("epoch", epoch, 0, error=ShardingError)
    sharding = Sharding(rank, world_size, total_shards)
    return (epoch * sharding.world_size + sharding.rank) % sharding.total_shards


@dataclass(frozen=True)
class Rotation:
    """Where the rotation stands: at the start of `epoch`, so many logical shards had been consumed in all.

    From the start of a run it is the formula itself. After a change of world size it goes on from the logical shards
    consumed, so that coverage stays whole.
    """

    epoch: int = 0
    shards: int = 0

    def index(self, epoch: int, rank: int, world_size: int, total_shards: int) -> int:
        """Return the logical shard that a rank reads in an epoch; errors as for `shard_index`."""
        sharding = Sharding(rank, world_size, total_shards)
        consumed = self.shards + (epoch - self.epoch) * sharding.world_size
        return (consumed + sharding.rank) % sharding.total_shards
