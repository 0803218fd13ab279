"""`uttershard cache`: look at the cache of a node, make room in it, hold it against its digests."""

import time
from pathlib import Path
from typing import Annotated

import typer
from uttershard.pipeline.errors import ConfigError
from uttershard.pipeline.storage.cache_files import CacheFolder, Entry
from uttershard.pipeline.storage.eviction import remove, shrink
from uttershard.writers.settings import parse_size

from .output import Json, as_bytes, as_count, as_duration, print_json, print_table

cache = typer.Typer(
    help="The cache of remote tars on this node: list it, make room, check it.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Folder = Annotated[Path, typer.Argument(help="The folder that training names as cache=.")]


@cache.command("ls")
def ls(folder: Folder, json: Json = False) -> None:
    """List the tars in the cache, those used last first."""
    entries = sorted(_open(folder).entries(), key=lambda entry: -entry.last_used)
    if json:
        print_json({"folder": str(folder), "bytes": _bytes(entries), "entries": [_as_json(entry) for entry in entries]})
        return
    now = time.time()
    print_table(
        f"{folder}: {as_count(len(entries), 'file')}, {as_bytes(_bytes(entries))}",
        ("digest", "size", "last used", "in the cache for"),
        [
            (
                entry.digest + (" (being fetched, or left by a killed job)" if entry.is_part else ""),
                as_bytes(entry.nbytes),
                f"{as_duration(now - entry.last_used)} ago",
                as_duration(now - entry.admitted),
            )
            for entry in entries
        ],
    )


@cache.command("prune")
def prune(
    folder: Folder,
    to: Annotated[str, typer.Option(help="Size to keep at most, e.g. 500GB; those used last stay.")] = "0",
    json: Json = False,
) -> None:
    """Throw out the tars used longest ago, and what killed jobs have left. Safe while jobs read from the cache."""
    opened = _open(folder)
    gone = shrink(opened, parse_size(to))
    if json:
        print_json({"folder": str(folder), "removed": [_as_json(entry) for entry in gone], "bytes": opened.nbytes()})
        return
    typer.echo(
        f"{folder}: {as_count(len(gone), 'file')} removed, {as_bytes(_bytes(gone))}; {as_bytes(opened.nbytes())} left"
    )


@cache.command("verify")
def verify(folder: Folder, json: Json = False) -> None:
    """Read every tar in the cache and remove those that are damaged. Exit status 0 only if none was."""
    opened = _open(folder)
    tars = [entry for entry in opened.entries() if not entry.is_part]
    damaged = [entry for entry in tars if not opened.is_right(entry) and remove(entry)]
    if json:
        print_json({"folder": str(folder), "checked": len(tars), "removed": [_as_json(entry) for entry in damaged]})
    else:
        for entry in damaged:
            typer.echo(f"{entry.path}: damaged, removed; it is fetched again when it is needed")
        typer.echo(
            f"{folder}: {as_count(len(tars), 'tar')} checked, {as_bytes(_bytes(tars))}, {len(damaged):,} damaged"
        )
    if damaged:
        raise typer.Exit(1)


def _open(folder: Path) -> CacheFolder:
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; name the one that training names as cache=")
    return CacheFolder(folder)


def _bytes(entries: list[Entry]) -> int:
    return sum(entry.nbytes for entry in entries)


def _as_json(entry: Entry) -> dict[str, str | int | float | bool]:
    return {
        "digest": entry.digest,
        "bytes": entry.nbytes,
        "last_used": entry.last_used,
        "admitted": entry.admitted,
        "part": entry.is_part,
    }
