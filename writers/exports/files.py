"""Text files of an export: each written under another name first, so that it appears whole or not at all."""

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from ..commit import storage_errors


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[TextIO]:
    """Open a UTF-8 text file that becomes `path` when the block ends, and vanishes if it fails."""
    unfinished = path.with_name(f".{path.name}.part")
    with storage_errors(path):
        try:
            with unfinished.open("w", encoding="utf-8", newline="\n") as file:
                yield file
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


def write_json_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object a line."""
    with new_file(path) as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def write_table(path: Path, rows: Iterable[tuple[str, str]]) -> None:
    """Write a Kaldi table: `<key> <value>` a line, sorted by the bytes of the key (LC_ALL=C), as its tools require."""
    with new_file(path) as file:
        for key, value in sorted(rows, key=lambda row: row[0].encode("utf-8")):
            file.write(f"{key} {value}\n")
