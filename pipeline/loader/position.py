"""Where a loader stands: an epoch and its next step; what `set_epoch`, `iter` and a resume do to that."""

import logging
from collections.abc import Iterator

from ..errors import ConfigError
from ..reading.batch import Batch

logger = logging.getLogger("uttershard")


class Position:
    """The position of a loader. `step` counts what the trainer has taken, never what was prefetched.

    load(e, s) --> stands in e at s;  set_epoch(e) keeps that, set_epoch(other) stands at (other, 0)
    begin()    --> starts there; after an epoch of which batches were taken, or that was finished: at the next epoch
    follow()   --> moves on by a step with each batch taken; after the last the epoch is finished

    A trainer that counts batches never asks for the one after the last, and one may ask for an iterator twice before it
    takes a batch (Lightning does both).
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.step = 0
        self._begun = False
        self._finished = False
        self._set_by_user = False
        self._any_taken = False
        self._told = False
        self._iteration = 0

    @property
    def coming(self) -> int:
        """The epoch that runs, or that the next iteration will be."""
        return self.epoch + 1 if self._finished else self.epoch

    @property
    def finished(self) -> bool:
        """Whether the last step of `epoch` is made, and the next epoch not begun."""
        return self._finished

    def set_epoch(self, epoch: int) -> None:
        """Stand at the start of an epoch, unless a loaded state stands inside it, or at its end, already."""
        if epoch != self.epoch or self._begun:
            self.epoch, self.step = epoch, 0
        self._begun, self._finished, self._set_by_user = False, False, True

    def load(self, epoch: int, step: int, *, finished: bool) -> None:
        """Stand at a step of an epoch, or at its end; the running iteration, if any, ends."""
        self.epoch, self.step = epoch, step
        self._begun, self._finished, self._set_by_user = False, finished, True
        self._iteration += 1

    def begin(self) -> int:
        """Start an iteration and return its first step."""
        if self._begun or self._finished:
            self.epoch, self.step = self.epoch + 1, 0
        self._begun = self._finished = False
        self._iteration += 1
        return self.step

    def follow(self, batches: Iterator[Batch], steps: int) -> Iterator[Batch]:
        """Pass the batches of the iteration on, moving along."""
        # The number is taken now, not with the first batch: by then, another iteration may have begun.
        return self._follow(batches, steps, self._iteration)

    def _follow(self, batches: Iterator[Batch], steps: int, iteration: int) -> Iterator[Batch]:
        while True:
            if iteration != self._iteration:
                raise ConfigError(
                    "this iteration of the loader is over: another was begun, or a state was loaded. Use the newest "
                    "iterator only, or one loader for each"
                )
            batch = next(batches, None)
            if batch is None:
                break
            if not self._begun:
                self._say_once()
                self._begun, self._set_by_user = True, False
            self.step = batch.step + 1
            self._finished = self.step >= steps
            yield batch
        self.epoch, self.step, self._begun, self._finished = self.epoch + 1, 0, False, False

    def _say_once(self) -> None:
        if not self._set_by_user and self._any_taken and not self._told:
            logger.warning("set_epoch was not called: going on with epoch %d by itself (said once)", self.epoch)
            self._told = True
        self._any_taken = True
