"""Going on with another world size (G9): the rest of an epoch is dealt anew, and the rotation goes on.

W = 4, 30 steps |  W' = 6, the rest of the epoch           |  W' = 6, next epoch
shards 0 1 2 3  |  what is left of 0 1 2 3, cut in 6 parts |  shards 4 5 6 7 8 9

The history of an epoch is its stages: with how many ranks, over how many logical shards, for how many steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..errors import ShardingError
from .partition import cut_by_weight
from .rotation import Rotation


@dataclass(frozen=True)
class Stage:
    """A stretch of an epoch with one world size, and the steps that were made in it."""

    world_size: int
    total_shards: int
    steps: int

    @property
    def whole(self) -> bool:
        """Whether an epoch is the whole dataset."""
        return self.world_size == self.total_shards


@dataclass(frozen=True)
class Course:
    """What a plan depends on after changes of world size.

    Attributes:
        rotation: where the rotation stands.
        epoch: the epoch that `stages` are of.
        stages: earlier stages of that epoch; none if no epoch is cut.
    """

    rotation: Rotation = field(default_factory=Rotation)
    epoch: int = 0
    stages: tuple[Stage, ...] = ()

    def at(self, epoch: int, total_shards: int) -> Course:
        """Return the course of an epoch: this one in the epoch that is cut, and one without stages in any other.

        Args:
            epoch: number of the epoch.
            total_shards: number of logical shards now.
        """
        if not self.stages or epoch == self.epoch:
            return self
        first = self.stages[0]
        return Course(_follow(self.rotation, self.epoch + 1, first, total_shards))

    def change_world(self, epoch: int, left: Stage, world_size: int, total_shards: int) -> Course:
        """Return the course after a change of world size.

        Args:
            epoch: the epoch in which it changes.
            left: the stage that ends.
            world_size: number of ranks from now on.
            total_shards: number of logical shards from now on.

        Raises:
            ShardingError: total_shards changes, and not from a world size to the next.
        """
        now = Stage(world_size, total_shards, 0)
        if total_shards != left.total_shards and not (left.whole and now.whole):
            raise ShardingError(
                f"total_shards was {left.total_shards}, is {total_shards}: it may change only with the world size, "
                f"where it equals that before (was {left.world_size}) and after (is {world_size}). Give "
                f"total_shards={left.total_shards}, or start at the next epoch with force=True"
            )
        before = self.at(epoch, left.total_shards)
        if left.steps:
            return Course(before.rotation, epoch, (*before.stages, left))
        if before.stages:
            return before
        return Course(_follow(before.rotation, epoch, left, total_shards))


def _follow(rotation: Rotation, epoch: int, stage: Stage, total_shards: int) -> Rotation:
    """Return the rotation at the start of an epoch, up to which a stage's world size held."""
    if stage.total_shards != total_shards:
        # Whole datasets before and after: there is nothing to go on from.
        return Rotation()
    consumed = rotation.shards + (epoch - rotation.epoch) * stage.world_size
    return Rotation(epoch, consumed % total_shards)


def deal_rest(rows: NDArray[np.int64], frames: NDArray[np.int32], world_size: int) -> list[NDArray[np.int64]]:
    """Return the rows of each rank: runs of ordinals that are equal in audio to within an utterance.

    Args:
        rows: int64[n], what is left of the epoch, ascending.
        frames: int32[N], lengths of all utterances of the dataset.
        world_size: number of ranks. With fewer utterances than ranks, some ranks get none.
    """
    until = np.zeros(rows.size + 1, np.int64)
    np.cumsum(frames[rows], out=until[1:])
    return np.split(rows, cut_by_weight(until, world_size)[1:-1])
