"""Runs the measurements: each in a process of its own, rounds interleaved, with progress on standard error."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from uttershard.pipeline.errors import UttershardError

_TIMEOUT_SECONDS = 600


@dataclass(frozen=True)
class Spread:
    """Median, lowest and highest over the rounds."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarise the values of all rounds."""
        return cls(statistics.median(values), min(values), max(values))


class Meter:
    """Tells how far the whole run is, a line a measurement."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._began = time.monotonic()

    def tell(self, what: str) -> None:
        """Say what has just been measured, and how long the rest will take."""
        self._done += 1
        elapsed = time.monotonic() - self._began
        left = elapsed / self._done * (self._total - self._done)
        print(f"[{self._done}/{self._total}, {elapsed:.0f} s, {left:.0f} s left] {what}", file=sys.stderr, flush=True)


def measure_apart(name: str, arguments: Mapping[str, Any]) -> Any:
    """Measure one subject in a fresh process; returns JSON values."""
    command = [sys.executable, "-m", f"{__package__}.subjects", name, json.dumps(arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise UttershardError(f"{name!r} did not finish within {_TIMEOUT_SECONDS} s: choose a smaller size") from error
    if done.returncode:
        raise UttershardError(f"{name!r} could not be measured:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure_in_rounds(
    names: Sequence[str], arguments: Mapping[str, Any], rounds: int, meter: Meter
) -> dict[str, list[dict[str, Any]]]:
    """Measure all of them, one after the other, as many times over: what the machine does meanwhile hits all alike.

    Returns:
        By name, a result a round.
    """
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            result = measure_apart(name, arguments)
            results[name].append(result)
            meter.tell(f"{name}: {result['utterances_per_second']:,.0f} utterances/s")
    return results
