"""Windows: an epoch in parts that each read a few tars only, for data that does not fit the cache.

one rank   |  tar 8  |  tar 9  |  tar 10 |  tar 11 |  tar 12 |  tar 13 |
windows    |     second        |       third       |      first        |    order hashed with the epoch

Batches do not mix windows, and every window has equal steps on all ranks, so that all go from one to the next together.
The price is fill: each window has its own last batch, and its own longest and shortest utterances.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .hashing import Stream, hash_ordinals, stage_salt, stream_key
from .partition import cut_by_weight


def split_windows(
    rows: NDArray[np.int64],
    frames: NDArray[np.int32],
    tars: NDArray[np.int64],
    windows: int,
    places: NDArray[np.int64] | None = None,
) -> list[NDArray[np.int64]]:
    """Return the rows of each window of one rank: consecutive, of about equal audio, whole tars if there are enough.

    Args:
        rows: int64[n], what the rank delivers in the epoch, ascending.
        frames: int32[N], lengths of all utterances of the dataset.
        tars: int64[tars + 1], where each tar begins, and the end of the last.
        windows: number of windows.
        places: int64[n], where the tars have them, ascending, if that is not what `rows` says.
    """
    until = np.zeros(rows.size + 1, np.int64)
    np.cumsum(frames[rows], out=until[1:])
    cuts = np.unique(np.append(np.searchsorted(rows if places is None else places, tars), [0, rows.size]))
    if cuts.size <= windows:
        cuts = np.arange(rows.size + 1)
    return np.split(rows, cuts[cut_by_weight(until[cuts], windows)][1:-1])


def order_windows(windows: int, *, seed: int, epoch: int, stage: int = 0) -> NDArray[np.int64]:
    """Return which window comes first, second, …

    Args:
        windows: number of windows.
        seed: of the run.
        epoch: number of the epoch.
        stage: how many times the rest of the epoch has been dealt anew.
    """
    key = stream_key(Stream.WINDOWS, seed, epoch, *stage_salt(stage))
    return np.argsort(hash_ordinals(key, np.arange(windows, dtype=np.int64)), kind="stable").astype(np.int64)


def check_windows(sizes: list[int], windows: int) -> None:
    """Raise ConfigError if a rank has fewer utterances (of the dataset that it has most of) than there are windows."""
    if windows > 1 and min(sizes) < windows:
        rank = int(np.argmin(sizes))
        raise ConfigError(
            f"windows={windows}, but rank {rank} has {sizes[rank]} utterances in this epoch: use fewer windows"
        )
