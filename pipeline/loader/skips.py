"""What `on_error="skip"` means for a whole run: steps never change, and there is an end to it."""

from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..errors import DataError
from ..reading.batch import Batch, SkippedUtterance

_LISTED = 100
"""Skipped utterances that are kept for metrics(); the last ones."""


@dataclass
class SkipLog:
    """Counts the utterances that were left out, and stops when there are too many.

    Args:
        limit: Most that may be.
    """

    limit: int
    count: int = 0
    last: "deque[SkippedUtterance]" = field(default_factory=lambda: deque(maxlen=_LISTED))

    def add(self, batch: Batch) -> None:
        """Count what was left out of a batch.

        Raises:
            DataError: That is too much by now.
        """
        if not batch.skipped:
            return
        self.count += len(batch.skipped)
        self.last.extend(batch.skipped)
        if self.count > self.limit:
            worst = "; ".join(f"{one.key!r} in {one.shard} ({one.reason})" for one in list(self.last)[-3:])
            raise DataError(
                f"{self.count} utterances could not be read, max_skipped allows {self.limit}. The last ones: {worst}. "
                "`uttershard verify` lists all that is damaged; raise max_skipped if that is how the data is"
            )

    def describe(self) -> list[dict[str, Any]]:
        """Return the last ones as dictionaries."""
        return [asdict(one) for one in self.last]


def never_empty(batch: Batch, steps: int, decode: Callable[[int], Batch]) -> Batch:
    """Return a batch, or if nothing of it could be read, the nearest other batch of the epoch as filler in its place.

    A trainer can't take a step without utterances, and with fewer steps than other ranks it would hang them. Which
    batch comes instead depends on the plan and the data alone, so that a resumed run gets the same.

    Args:
        batch: The batch.
        steps: Steps of the epoch.
        decode: Makes the batch of a step.

    Raises:
        DataError: No batch of the epoch has an utterance that can be read.
    """
    if len(batch):
        return batch
    for distance in range(1, steps):
        for step in (batch.step - distance, batch.step + distance):
            other = decode(step) if 0 <= step < steps else batch
            if len(other):
                return replace(other, step=batch.step, filler=True, skipped=batch.skipped)
    first = batch.skipped[0]
    raise DataError(
        f"not one utterance of epoch {batch.epoch} could be read; of this batch the first is {first.key!r} in "
        f"{first.shard}: {first.reason}"
    )
