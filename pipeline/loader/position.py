"""Where a loader stands: an epoch and its next step; what `set_epoch`, `iter` and a resume do to that."""

import logging
from collections.abc import Iterator

from ..errors import ConfigError
from ..reading.batch import Batch

logger = logging.getLogger("uttershard")


class Position:
    """The position of a loader. `step` counts what the trainer has taken, never what was prefetched.

    load(e, s) --> stands in e at s;  set_epoch(e) keeps that, set_epoch(other) stands at (other, 0)
    begin()    --> starts there; without set_epoch after an epoch that was begun: at the next epoch
    follow()   --> moves on by a step with each batch taken, to (e + 1, 0) after the last
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.step = 0
        self._begun = False
        self._set_by_user = False
        self._told = False
        self._iteration = 0

    def set_epoch(self, epoch: int) -> None:
        """Stand at the start of an epoch, unless a loaded state stands inside it already."""
        if epoch != self.epoch or self._begun:
            self.epoch, self.step = epoch, 0
        self._begun, self._set_by_user = False, True

    def load(self, epoch: int, step: int) -> None:
        """Stand at a step of an epoch; the running iteration, if any, ends."""
        self.epoch, self.step = epoch, step
        self._begun, self._set_by_user = False, True
        self._iteration += 1

    def begin(self) -> int:
        """Start an iteration and return its first step."""
        if self._begun:
            self.epoch, self.step = self.epoch + 1, 0
        if not self._set_by_user and self._iteration and not self._told:
            logger.warning("set_epoch was not called: going on with epoch %d by itself (said once)", self.epoch)
            self._told = True
        self._begun, self._set_by_user = True, False
        self._iteration += 1
        return self.step

    def follow(self, batches: Iterator[Batch], steps: int) -> Iterator[Batch]:
        """Pass the batches of the iteration on, moving along."""
        iteration = self._iteration
        while True:
            if iteration != self._iteration:
                raise ConfigError(
                    "this iteration of the loader is over: another was begun, or a state was loaded. Use the newest "
                    "iterator only, or one loader for each"
                )
            batch = next(batches, None)
            if batch is None:
                break
            self.step = batch.step + 1
            yield batch
        self.epoch, self.step, self._begun = self.epoch + 1, 0, False
