"""Progress on standard error: a bar with hours, rates and time left; a line every few seconds in a log file."""

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from .output import as_bytes, as_duration

_LOG_SECONDS = 10.0
_TITLES = {
    "list": "listing",
    "probe": "probing",
    "pack": "packing",
    "verify": "verifying",
    "index": "indexing",
    "stats": "measuring",
}


class Bars:
    """Shows the phases of a job (the `Progress` of uttershard.writers)."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, markup=False, emoji=False)  # notes hold names of files
        self._progress: Progress | None = None

    def begin(self, phase: str, *, utterances: int | None, seconds: float | None) -> None:
        """Start a bar."""
        self._title, self._total, self._seconds_total = _TITLES.get(phase, phase), utterances, seconds
        self._utterances, self._seconds, self._nbytes, self._refused, self._retries = 0, 0.0, 0, 0, 0
        self._began = self._logged = time.monotonic()
        if self._console.is_terminal:
            self._progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rates]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._progress.start()
            self._task = self._progress.add_task(self._title, total=utterances, rates="")

    def advance(
        self, *, utterances: int = 0, seconds: float = 0.0, nbytes: int = 0, refused: int = 0, retries: int = 0
    ) -> None:
        """Move it on."""
        self._utterances += utterances
        self._seconds += seconds
        self._nbytes += nbytes
        self._refused += refused
        self._retries += retries
        if self._progress is not None:
            self._progress.update(self._task, completed=self._utterances, rates=self._rates())
        elif time.monotonic() - self._logged >= _LOG_SECONDS:
            self._logged = time.monotonic()
            self._log()

    def end(self) -> None:
        """Leave the finished bar, or its last line, behind."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
        elif self._utterances:
            self._log(over=True)

    def note(self, message: str) -> None:
        """Print it above the bar, or as a line of the log."""
        self._console.print(message, highlight=False, soft_wrap=True)

    def _rates(self) -> str:
        elapsed = max(1e-3, time.monotonic() - self._began)
        parts = [f"{self._utterances / elapsed:,.0f} utt/s"]
        if self._seconds:
            parts += [as_duration(self._seconds), f"{self._seconds / elapsed:,.0f}x real time"]
        if self._nbytes:
            parts += [as_bytes(self._nbytes), f"{as_bytes(self._nbytes / elapsed)}/s"]
        if self._refused:
            parts.append(f"{self._refused:,} refused")
        if self._retries:
            parts.append(f"{self._retries:,} retried")
        return ", ".join(parts)

    def _log(self, *, over: bool = False) -> None:
        elapsed = time.monotonic() - self._began
        of_all = f" of {self._total:,}" if self._total is not None else ""
        left = ""
        if not over and self._total and 0 < self._utterances < self._total:
            left = f", {as_duration(elapsed / self._utterances * (self._total - self._utterances))} left"
        line = f"{self._title}: {self._utterances:,}{of_all} utterances, {self._rates()}, {as_duration(elapsed)}{left}"
        print(line, file=sys.stderr, flush=True)


def bars(quiet: bool) -> Any:
    """Return what shows progress, or None for silence."""
    return None if quiet else Bars()
