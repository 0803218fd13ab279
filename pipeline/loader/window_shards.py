"""Which tars the windows of an epoch read, for whoever brings them near, and whether a cache can hold them."""

import logging
import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..dataset.files import local_path
from ..dataset.shardset import ShardSet
from ..errors import ConfigError
from ..planning.plan import EpochPlan
from ..planning.settings import Sharding
from ..remote.faults import redact
from ..storage.advice import advice
from .epochs import Epochs

logger = logging.getLogger("uttershard")


class WindowShards:
    """The tars of each window of an epoch, and of the first window of the next.

    Args:
        epochs: Plans.
        plan: The epoch.
    """

    def __init__(self, epochs: Epochs, plan: EpochPlan) -> None:
        self._epochs = epochs
        self._plan = plan
        self._window: tuple[int, tuple[int, ...]] = (-1, ())

    def at(self, step: int) -> tuple[int, tuple[int, ...]]:
        """Return the number of a step's window, and the shards of that window and then of the next."""
        window = int(np.searchsorted(self._plan.windows, step, side="right")) - 1
        if window != self._window[0]:
            shards = [*self._shards(window).tolist(), *self._shards(window + 1).tolist()]
            self._window = window, tuple(dict.fromkeys(shards))
        return self._window

    def _shards(self, window: int) -> NDArray[np.int64]:
        plan, bounds = self._plan, self._plan.windows
        if window + 1 == bounds.size:
            return self._epochs.tars_of_windows(plan.epoch + 1, plan.rank)[0]
        rows = plan.rows[plan.splits[bounds[window]] : plan.splits[bounds[window + 1]]]
        return self._epochs.tars_of(rows)


def check_cache_size(epochs: Epochs, shards: ShardSet, sharding: Sharding, cache_bytes: int) -> None:
    """Refuse a cache that can't hold what this node reads in one window and the next.

    Raises:
        ConfigError: It can't; the message says how many windows would do.
    """
    entries = shards.manifest.shards
    # What is on a local disk already takes no room.
    remote = [local_path(shards.tar_address(shard)) is None for shard in range(len(entries))]
    sizes = np.array([shard.tar_bytes for shard in entries], dtype=np.int64) * remote
    ranks = _ranks_here(sharding)
    # The epochs that a run begins with; the later ones differ by the order of windows only, which are alike.
    needed = max(
        _largest_pair([epochs.tars_of_windows(epoch, rank) for rank in ranks], sizes)
        for epoch in range(min(2, sharding.epochs_per_cycle) + 1)
    )
    if needed <= cache_bytes:
        return
    windows = max(1, len(epochs.tars_of_windows(0, sharding.rank)))
    most = max(len(tars) for tars in epochs.tars_of_windows(0, sharding.rank)) * windows
    advice = -(-windows * needed // cache_bytes)
    advised = f"windows={advice} or more, " if windows < advice <= most else ""
    raise ConfigError(
        f"cache_bytes={cache_bytes} can't hold what {_named(ranks)} of this node read in one window and the next, "
        f"{needed} bytes with windows={windows}: set {advised}a larger cache_bytes, or no cache"
    )


def advise_on_store(epochs: Epochs, shards: ShardSet, rank: int, prefetch_bytes: int) -> None:
    """Warn, once for all ranks, where reading span by span will be slow."""
    entries = shards.manifest.shards
    tars = np.unique(np.concatenate(epochs.tars_of_windows(0, rank))).tolist() if rank == 0 else []
    remote = [entries[tar] for tar in tars if local_path(shards.tar_address(tar)) is None]
    total, utterances = sum(entry.tar_bytes for entry in remote), sum(entry.utterances for entry in remote)
    if (said := advice(total, utterances, prefetch_bytes)) is not None:
        logger.warning("%s: %s", redact(shards.address), said)


def _largest_pair(windows_of_ranks: Sequence[Sequence[NDArray[np.int64]]], sizes: NDArray[np.int64]) -> int:
    windows = [np.unique(np.concatenate(together)) for together in zip(*windows_of_ranks, strict=True)]
    pairs = zip(windows, [*windows[1:], windows[-1]], strict=True)
    return max(int(sizes[np.union1d(this, following)].sum()) for this, following in pairs)


def _ranks_here(sharding: Sharding) -> range:
    """Return the ranks that share this node's cache; torchrun numbers those of a node in a row."""
    here = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    first = sharding.rank // here * here
    return range(first, min(first + here, sharding.world_size))


def _named(ranks: range) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
