"""What reading is measured with: one clock, and our loader under it.

The clock starts when a stream has run for `warm_up_seconds` and stops at the first batch `seconds` later, so that
neither the start of processes nor prefetched batches count. Epochs follow each other; their ends count where they fall.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from uttershard.pipeline import ShardLoader

BATCH_BINS = 60_000
"""Ten minutes of audio a batch, padding included."""


@dataclass(frozen=True)
class Window:
    """When the clock runs."""

    warm_up_seconds: float
    seconds: float


@dataclass(frozen=True)
class Speed:
    """What one stream did."""

    utterances_per_second: float
    first_batch_seconds: float | None = None
    """From `iter()` of a new loader to its first batch."""


def clock(sizes: Iterator[int], window: Window) -> Speed:
    """Measure an endless stream of batches, given as how many utterances each has."""
    asked = time.perf_counter()
    next(sizes)
    first = time.perf_counter() - asked
    while time.perf_counter() - asked < window.warm_up_seconds:
        next(sizes)
    started = time.perf_counter()
    utterances = 0
    while True:
        utterances += next(sizes)
        elapsed = time.perf_counter() - started
        if elapsed >= window.seconds:
            return Speed(utterances / elapsed, first)


def ours(dataset: Path, window: Window, *, num_workers: int = 0, threads: int | None = None) -> Speed:
    """Measure ShardLoader."""
    loader = ShardLoader(
        str(dataset),
        batch_bins=BATCH_BINS,
        rank=0,
        world_size=1,
        num_workers=num_workers,
        threads=threads,
        persistent_workers=num_workers > 0,
    )

    def sizes() -> Iterator[int]:
        epoch = 0
        while True:
            loader.set_epoch(epoch)
            for batch in loader:
                yield len(batch.audio)
            epoch += 1

    return clock(sizes(), window)
