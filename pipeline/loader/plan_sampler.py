"""PlanSampler: planned batches of an UtteranceDataset, as lists of numbers for a plain DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Unpack

import numpy as np
from torch.utils.data import Sampler

from ..errors import ConfigError, ShardingError
from ..planning.batch_types import BatchType, RuleSettings
from ..planning.plan import EpochPlan
from ..planning.settings import EqualSteps, Oversize, Sharding, make_batching, parse_int, parse_seed
from .columns import PlanSettings
from .epochs import Epochs
from .utterance_dataset import UtteranceDataset
from .world import find_world


class PlanSampler(Sampler[list[int]]):
    """Batches by a frame budget or by any batch type, with equal steps on all ranks; a `batch_sampler` for DataLoader.

    Over a whole dataset, each rank gets its part of it. Over a logical shard (`dataset.shard(i)`, which ESPnet3 takes
    of a dataset by itself) each rank gets the batches of its shard, and as many as the ranks that read the other shards
    of the same epoch.

    Args:
        dataset: An UtteranceDataset, a shard of it, or ESPnet3's CombinedDataset of one.
        batch_bins, batch_size, max_batch_size, oversize, equal_steps, batch_type, seed, rules: As for ShardLoader.
        frame_shift: Seconds of a frame.
        rank, world_size: This process, for a whole dataset; found if they are not given.

    Raises:
        ConfigError: A setting is out of range or in conflict with another.
        ShardingError: Ranks and shards do not fit together.

    Example:
        >>> sampler = PlanSampler(dataset, batch_bins=60_000)  # doctest: +SKIP
        >>> loader = DataLoader(dataset, batch_sampler=sampler, num_workers=4)  # doctest: +SKIP
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch_bins: int | None = None,
        batch_size: int | None = None,
        max_batch_size: int | None = None,
        oversize: Oversize = "error",
        equal_steps: EqualSteps | None = None,
        batch_type: BatchType = "bucket",
        seed: int = 0,
        frame_shift: float = 0.01,
        rank: int | None = None,
        world_size: int | None = None,
        **rules: Unpack[RuleSettings],
    ) -> None:
        self._dataset = _unwrapped(dataset)
        shard = self._dataset.logical_shard
        if shard is None:
            sharding = Sharding(*find_world(rank, world_size))
            self._epoch, self._epochs_per_cycle = 0, 1
        elif rank is not None or world_size is not None:
            raise ShardingError(
                f"rank={rank} and world_size={world_size} of {self._dataset!r}: its number says who reads it"
            )
        else:
            ranks = self._dataset.dist_world_size
            sharding = Sharding(shard % ranks, ranks, self._dataset.total_shards)
            self._epoch, self._epochs_per_cycle = shard // ranks, sharding.epochs_per_cycle
        batching = make_batching(
            batch_type,
            rules,
            batch_bins=batch_bins,
            batch_size=batch_size,
            max_batch_size=max_batch_size,
            oversize=oversize,
            equal_steps=equal_steps,
        )
        settings = PlanSettings(
            sharding, self._dataset.filters, batching, parse_seed(seed), frame_shift, stats=self._dataset.stats
        )
        self._epochs = Epochs(self._dataset.shards, settings, self._dataset.form)

    @property
    def plan(self) -> EpochPlan:
        """The plan of the epoch."""
        return self._epochs.plan(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next: other batches in another order.

        Raises:
            ShardingError: The rotation reads another shard in that epoch.
        """
        epoch = parse_int("epoch", epoch, 0)
        if epoch % self._epochs_per_cycle != self._epoch % self._epochs_per_cycle:
            raise ShardingError(
                f"epoch {epoch} does not read {self._dataset!r}: make a PlanSampler for the shard that it reads"
            )
        self._epoch = epoch

    def __len__(self) -> int:
        return self.plan.steps

    def __iter__(self) -> Iterator[list[int]]:
        plan = self.plan
        numbers = np.searchsorted(self._dataset.rows, plan.rows)
        for step in range(plan.steps):
            yield numbers[plan.splits[step] : plan.splits[step + 1]].tolist()


def _unwrapped(dataset: Any) -> UtteranceDataset:
    inside = getattr(dataset, "datasets", None)
    if inside is not None and len(inside) == 1:
        dataset = inside[0]
    if not isinstance(dataset, UtteranceDataset):
        raise ConfigError(
            f"a PlanSampler needs an UtteranceDataset (or one inside a CombinedDataset), not {type(dataset).__name__}"
        )
    return dataset
