"""What commands print: JSON on standard output with `--json`, tables and sentences for people otherwise."""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

_WIDE = 160

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


def print_json(value: Any) -> None:
    """Print a JSON value, readable by people too."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; the first column is text, the others are numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    _console().print(table)


def print_pairs(title: str, pairs: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one pair a line."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, value)
    _console().print(table)


def _console() -> Console:
    """Print to the terminal's width, and to a file or a pipe without cutting anything; [x] and :x: are no markup."""
    console = Console(markup=False, emoji=False)
    return console if console.is_terminal else Console(markup=False, emoji=False, width=_WIDE)


def as_duration(seconds: float) -> str:
    """Write a duration for people.

    Example:
        >>> as_duration(4.25), as_duration(75), as_duration(36_000)
        ('4.2 s', '1 min 15 s', '10.00 h')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    return f"{seconds / 3600:,.2f} h"


def as_bytes(count: float) -> str:
    """Write a size for people.

    Example:
        >>> as_bytes(512), as_bytes(512_000_000)
        ('512 B', '512.0 MB')
    """
    if count < 1000:
        return f"{count:.0f} B"
    power = min(4, int(math.log10(count)) // 3)
    return f"{count / 1000**power:,.1f} {'kMGT'[power - 1]}B"


def as_count(number: int, noun: str) -> str:
    """Write a number of things.

    Example:
        >>> as_count(1, "shard"), as_count(1200, "utterance")
        ('1 shard', '1,200 utterances')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def as_share(value: float | None) -> str:
    """Write a share as a percentage."""
    return "-" if value is None else f"{100 * value:.2f} %"
