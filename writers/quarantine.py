"""Refused utterances: counted against what is allowed, and listed in `errors.jsonl` beside the manifest."""

import json
from collections.abc import Sequence

from uttershard.pipeline.errors import DataError

from .error_limits import ErrorLimits
from .listing import Refusal
from .targets.base import Target

ERRORS_NAME = "errors.jsonl"

_SHOWN = 3


class Quarantine:
    """What was refused so far.

    Args:
        target: Where the dataset is written.
        limits: Whether to go on, and how far.
        corpus: How many utterances there are in all.
    """

    def __init__(self, target: Target, limits: ErrorLimits, corpus: int) -> None:
        self.path = target.where(ERRORS_NAME)
        self._target = target
        self._limits = limits
        self._corpus = corpus
        self._refused: list[Refusal] = []

    def __len__(self) -> int:
        return len(self._refused)

    def add(self, refused: Sequence[Refusal]) -> None:
        """Take more in.

        Raises:
            DataError: It is the first and the job is to stop there, or they are more than allowed. errors.jsonl is
                written before, for the person who has to look into it.
        """
        self._refused += refused
        if not self._refused:
            return
        if self._limits.on_error == "raise":
            self.write()
            raise DataError(f"refused: {_show(self._sorted()[0])}")
        allowed = self._limits.allowed(self._corpus)
        if len(self._refused) > allowed:
            self.write()
            shown = "; ".join(_show(refusal) for refusal in self._sorted()[:_SHOWN])
            raise DataError(
                f"{len(self._refused)} of {self._corpus} utterances refused, max_errors={self._limits.max_errors} "
                f"allows {allowed}. First: {shown}. All so far are in {self.path}"
            )

    def exceeds(self, refused: int) -> bool:
        """Whether so many more are too many."""
        return len(self._refused) + refused > self._limits.allowed(self._corpus)

    def write(self) -> None:
        """Write errors.jsonl, in an order that does not depend on who found what first; no errors, no file."""
        if self._refused:
            lines = "".join(f"{refusal.as_json()}\n" for refusal in self._sorted())
            self._target.put(ERRORS_NAME, lines.encode("utf-8"))
        else:
            self._target.delete(ERRORS_NAME)

    def _sorted(self) -> list[Refusal]:
        return sorted(self._refused, key=lambda refusal: (refusal.key or "", refusal.source, refusal.reason))


def count_refused(target: Target) -> int:
    """Return how many utterances the errors.jsonl of a finished dataset lists."""
    return sum(1 for line in (target.read(ERRORS_NAME) or b"").splitlines() if json.loads(line))


def _show(refusal: Refusal) -> str:
    return f"{refusal.key or 'no id'} ({refusal.source}): {refusal.reason}"
