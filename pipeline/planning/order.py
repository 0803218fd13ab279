"""The order of the steps: one permutation of the length positions, the same on all ranks (G6)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .hashing import Stream, hash_ordinals, stage_salt, stream_key


def order_steps(
    steps: int, *, seed: int, epoch: int, stage: int = 0, costs: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Return which position of the length order each step takes.

    Args:
        steps: number of steps, K.
        seed: of the run.
        epoch: number of the epoch.
        stage: how many times the rest of the epoch has been dealt anew.
        costs: int64[K], what the batch at each position costs where it costs most; given, the heaviest is step 0
            (the longest of equals).
    """
    hashes = hash_ordinals(stream_key(Stream.STEPS, seed, epoch, *stage_salt(stage)), np.arange(steps, dtype=np.int64))
    order = np.argsort(hashes, kind="stable").astype(np.int64)
    if costs is not None and steps:
        heaviest = int(np.argmax(costs))
        step = int(np.flatnonzero(order == heaviest)[0])
        order[[0, step]] = order[[step, 0]]
    return order
