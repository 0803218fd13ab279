"""What a loader counts while it runs."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..reading.batch import Batch


@dataclass(frozen=True)
class StepSizes:
    """Sizes of the batches of an epoch, in frames; from the plan, so that counting never waits for a device."""

    frames: NDArray[np.int64]
    padded_frames: NDArray[np.int64]


@dataclass
class Metrics:
    """Counts since the loader was made; of this rank, of batches that the trainer has taken."""

    frame_shift: float
    batch_bins: int | None
    steps: int = 0
    utterances: int = 0
    frames: int = 0
    padded_frames: int = 0
    wait_seconds: float = 0.0
    first_batch_seconds: float | None = None
    began: float = field(default_factory=time.perf_counter)

    def watch(self, batches: Iterator[Batch], sizes: StepSizes) -> Iterator[Batch]:
        """Pass batches on and count them."""
        asked, first = time.perf_counter(), True
        for batch in batches:
            waited = time.perf_counter() - asked
            self.wait_seconds += waited
            if first:
                self.first_batch_seconds, first = waited, False
            self.steps += 1
            self.utterances += len(batch)
            self.frames += int(sizes.frames[batch.step])
            self.padded_frames += int(sizes.padded_frames[batch.step])
            yield batch
            asked = time.perf_counter()

    def summary(self) -> dict[str, Any]:
        """Return the counts by name; shares are None until there is a batch.

        `wait_seconds` is how long the trainer waited for batches, `first_batch_seconds` from `iter()` to the first one.
        """
        elapsed = time.perf_counter() - self.began
        return {
            "steps": self.steps,
            "utterances": self.utterances,
            "hours": self.frames * self.frame_shift / 3600,
            "padding": 1 - self.frames / self.padded_frames if self.padded_frames else None,
            "fill": self.padded_frames / (self.steps * self.batch_bins) if self.steps and self.batch_bins else None,
            "wait_seconds": self.wait_seconds,
            "first_batch_seconds": self.first_batch_seconds,
            "elapsed_seconds": elapsed,
        }
