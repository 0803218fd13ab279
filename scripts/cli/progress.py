"""Progress on standard error: a bar with hours, rates and time left; a line every few seconds in a log file."""

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text
from uttershard.writers.progress import Done

from .output import as_bytes, as_duration

_LOG_SECONDS = 10.0
_WIDE = 120
"""Columns of a terminal from which all rates and a bar find room beside the count and the times."""

_TITLES = {
    "list": "listing",
    "probe": "probing",
    "pack": "packing",
    "verify": "verifying",
    "index": "indexing",
    "stats": "measuring",
    "export": "exporting",
    "merge": "merging",
    "subset": "copying",
}


class Bars:
    """Shows the phases of a job (the `Progress` of uttershard.writers)."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, markup=False, emoji=False)  # notes hold names of files
        self._progress: Progress | None = None

    def begin(self, phase: str, *, utterances: int | None, seconds: float | None) -> None:
        """Start a bar, or lines in a log."""
        self._title, self._total = _TITLES.get(phase, phase), utterances
        self._done = self._kept = Done()
        self._began = time.monotonic()
        if self._console.is_terminal:
            self._progress = self._bar()
            self._progress.start()
            self._task = self._progress.add_task(self._title, total=utterances)
        else:
            self._over = threading.Event()
            self._lines = threading.Thread(target=self._log_now_and_then, daemon=True)
            self._lines.start()

    def advance(self, done: Done) -> None:
        """Move it on."""
        self._done += done
        if done.kept:
            self._kept += done
        if self._progress is not None:
            self._progress.update(self._task, completed=self._done.utterances)

    def end(self) -> None:
        """Leave the finished bar, or its last line, behind."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
            return
        self._over.set()
        self._lines.join()
        if self._done.utterances:
            self._log(over=True)

    def note(self, message: str) -> None:
        """Print it above the bar, or as a line of the log."""
        self._console.print(message, highlight=False, soft_wrap=True)

    def _bar(self) -> Progress:
        wide = self._console.width >= _WIDE
        return Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            *((BarColumn(),) if wide else ()),
            MofNCompleteColumn(),
            _Words(lambda: self._rates(short=not wide)),
            _Words(lambda: self._times(short=not wide)),
            console=self._console,
        )

    def _rates(self, *, short: bool = False) -> str:
        """Return what this run does in a second, without what an earlier one had done."""
        elapsed = max(1e-3, time.monotonic() - self._began)
        done, kept = self._done, self._kept
        parts = [f"{(done.utterances - kept.utterances) / elapsed:,.0f} utt/s"]
        if done.seconds:
            audio = [] if short else [f"{as_duration(done.seconds)} of audio"]
            parts += [*audio, f"{(done.seconds - kept.seconds) / elapsed:,.0f}x real time"]
        if done.nbytes and not short:
            parts += [as_bytes(done.nbytes), f"{as_bytes((done.nbytes - kept.nbytes) / elapsed)}/s"]
        if kept.utterances and not short:
            parts.append(f"{kept.utterances:,} kept")
        if done.refused:
            parts.append(f"{done.refused:,} refused")
        if done.retries:
            parts.append(f"{done.retries:,} retried")
        return ", ".join(parts)

    def _times(self, *, short: bool = False, over: bool = False) -> str:
        elapsed = time.monotonic() - self._began
        since = f"after {as_duration(elapsed)}"
        made = self._done.utterances - self._kept.utterances
        if over or not self._total or made <= 0 or self._done.utterances >= self._total:
            return since
        left = f"{as_duration(elapsed / made * (self._total - self._done.utterances))} left"
        return left if short else f"{since}, {left}"

    def _log_now_and_then(self) -> None:
        while not self._over.wait(_LOG_SECONDS):
            self._log()

    def _log(self, *, over: bool = False) -> None:
        of_all = f" of {self._total:,}" if self._total is not None else ""
        line = f"{self._title}: {self._done.utterances:,}{of_all} utterances, {self._rates()}, {self._times(over=over)}"
        print(line, file=sys.stderr, flush=True)


class _Words(ProgressColumn):
    """Text that is made anew whenever the bar is drawn, so that rates fall while nothing comes."""

    def __init__(self, words: Callable[[], str]) -> None:
        super().__init__()
        self._words = words

    def render(self, task: Task) -> Text:
        """Return the words of this moment."""
        return Text(self._words())


def bars(quiet: bool) -> Any:
    """Return what shows progress, or None for silence."""
    return None if quiet else Bars()
