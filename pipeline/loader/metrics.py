"""What a loader counts while it runs."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..reading.batch import Allocate, Batch
from ..reading.spans import BatchSpec
from ..storage.base import COUNTS, Counts, Storage
from .ahead import announce
from .skips import SkipLog

logger = logging.getLogger("uttershard")

OnEpochEnd = Callable[[dict[str, Any]], None]
"""Called with the metrics of an epoch when a rank has taken its last batch."""


def check_callback(on_epoch_end: object) -> None:
    """Refuse what can't be called, before an epoch is trained for it.

    Raises:
        ConfigError: It can't.
    """
    if on_epoch_end is not None and not callable(on_epoch_end):
        raise ConfigError(f"on_epoch_end={on_epoch_end!r}: give a function that takes the metrics of an epoch")


@dataclass(frozen=True)
class StepSizes:
    """Sizes of the batches of an epoch, in frames; from the plan, so that counting never waits for a device."""

    frames: NDArray[np.int64]
    padded_frames: NDArray[np.int64]


@dataclass
class _Counts:
    frame_shift: float
    batch_bins: int | None
    steps: int = 0
    utterances: int = 0
    frames: int = 0
    padded_frames: int = 0
    skipped: int = 0
    wait_seconds: float = 0.0
    decode_seconds: float = 0.0
    storage: Counts = field(default_factory=Counter)
    first_batch_seconds: float | None = None
    began: float = field(default_factory=time.perf_counter)

    def add(self, batch: Batch, sizes: StepSizes, waited: float) -> None:
        lost = sum(one.seconds for one in batch.skipped) / self.frame_shift if batch.skipped else 0
        self.steps += 1
        self.utterances += len(batch)
        self.frames += int(sizes.frames[batch.step]) - round(lost)
        self.padded_frames += int(sizes.padded_frames[batch.step])
        self.skipped += len(batch.skipped)
        self.wait_seconds += waited
        self.decode_seconds += batch.decode_seconds
        self.storage.update(batch.storage)

    def describe(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "utterances": self.utterances,
            "hours": self.frames * self.frame_shift / 3600,
            "padding": 1 - self.frames / self.padded_frames if self.padded_frames else None,
            "fill": self.padded_frames / (self.steps * self.batch_bins) if self.steps and self.batch_bins else None,
            "skipped": self.skipped,
            "wait_seconds": self.wait_seconds,
            "decode_seconds": self.decode_seconds,
            "first_batch_seconds": self.first_batch_seconds,
            "elapsed_seconds": time.perf_counter() - self.began,
            "storage": {name: self.storage[name] for name in COUNTS},
        }


class Metrics:
    """Counts since the loader was made, and of the running epoch; of this rank, of batches that the trainer has taken.

    Args:
        frame_shift: Seconds of a frame.
        batch_bins: Budget of a batch, if there is one.
        skip_limit: Most utterances that may be left out.
        on_epoch_end: Called with the metrics of each epoch that was iterated to its end.
    """

    def __init__(
        self,
        frame_shift: float,
        batch_bins: int | None,
        *,
        skip_limit: int = 0,
        on_epoch_end: OnEpochEnd | None = None,
    ) -> None:
        self._frame_shift = frame_shift
        self._batch_bins = batch_bins
        self._on_epoch_end = on_epoch_end
        self._skips = SkipLog(skip_limit)
        self._total = _Counts(frame_shift, batch_bins)
        self._epoch: tuple[int, _Counts] | None = None

    def watch(self, batches: Iterator[Batch], sizes: StepSizes, epoch: int) -> Iterator[Batch]:
        """Pass the batches of an epoch on and count them."""
        running = _Counts(self._frame_shift, self._batch_bins)
        self._epoch = epoch, running
        asked, first = time.perf_counter(), True
        for batch in batches:
            waited = time.perf_counter() - asked
            if first:
                self._total.first_batch_seconds = running.first_batch_seconds = waited
                first = False
            for counts in (self._total, running):
                counts.add(batch, sizes, waited)
            self._skips.add(batch)
            yield batch
            asked = time.perf_counter()
        self._end(epoch, running)

    def summary(self) -> dict[str, Any]:
        """Return the counts by name; shares are None until there is a batch.

        `wait_seconds` is how long the trainer waited for batches, `first_batch_seconds` from `iter()` to the first one,
        `decode_seconds` how long reading and decoding took, summed over threads or processes; `epoch` has the counts of
        the epoch begun last (None before the first), `skipped_utterances` what was left out last.
        """
        running = None if self._epoch is None else {"epoch": self._epoch[0], **self._epoch[1].describe()}
        return {**self._total.describe(), "skipped_utterances": self._skips.describe(), "epoch": running}

    def _end(self, epoch: int, counts: _Counts) -> None:
        numbers = counts.describe()
        logger.info("%s", _one_line(epoch, numbers))
        if self._on_epoch_end is not None:
            self._on_epoch_end({"epoch": epoch, **numbers})


def timed(
    storage: Storage, decode: Callable[[BatchSpec, Allocate], Batch], spec: BatchSpec, allocate: Allocate
) -> Batch:
    """Return `decode(spec, allocate)`, and in the batch how long it took and what the storage did meanwhile."""
    began = time.perf_counter()
    announce(storage, spec.ahead)
    batch = decode(spec, allocate)
    batch.decode_seconds = time.perf_counter() - began
    batch.storage = dict(storage.take_counts())
    return batch


def _one_line(epoch: int, numbers: dict[str, Any]) -> str:
    shares = "".join(
        f", {name} {100 * numbers[name]:.1f} %" for name in ("padding", "fill") if numbers[name] is not None
    )
    skipped = f", {numbers['skipped']} skipped" if numbers["skipped"] else ""
    return (
        f"epoch {epoch}: {numbers['steps']:,} steps, {numbers['utterances']:,} utterances, {numbers['hours']:.2f} h"
        f"{shares}{skipped}, waited {numbers['wait_seconds']:.1f} s of {numbers['elapsed_seconds']:.1f} s, decoding "
        f"{numbers['decode_seconds']:.1f} s"
    )
