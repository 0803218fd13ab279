"""Files of `<id> <rest>` lines, Kaldi's tables, as Arrow columns; a million lines are split by array arithmetic.

Line ends may be CR LF. What separates id and rest, and may stand before and behind them, is any run of ASCII blanks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from uttershard.pipeline.errors import DataError

from ..byte_files import ArchiveError
from ..corpus_path import CorpusPath, open_path
from .lines import BOM, NotUtf8Error, decode, refuse_utf16, show

Refuse = Callable[[str, str, str], None]
"""Takes the id, `file:line` and the reason of a line that can't be read."""

_BLOCK_BYTES = 1 << 20
_NEWLINE = ord("\n")
_IS_BLANK = np.isin(np.arange(256), list(b" \t\n\r\v\f"))
_SHOWN_BYTES = 80

_Columns = tuple[pa.Array, pa.Array, NDArray[np.int32]]


@dataclass(frozen=True)
class KaldiTable:
    """A table; ids may repeat."""

    file: str
    keys: pa.Array
    values: pa.Array
    """What follows the id, without blanks at its ends; maybe empty."""
    lines: NDArray[np.int32]
    """Number of each line, from 1."""

    def __len__(self) -> int:
        return len(self.lines)

    def source(self, row: int) -> str:
        """Return `file:line` of a row."""
        return f"{self.file}:{self.lines[row]}"

    def sources(self) -> pa.Array:
        """Return `file:line` of all rows."""
        return pc.binary_join_element_wise(self.file, pa.array(self.lines).cast(pa.string()), ":")

    def where(self, kept: NDArray[np.bool_]) -> KaldiTable:
        """Return the rows where `kept` is true."""
        if kept.all():
            return self
        mask = pa.array(kept)
        return KaldiTable(self.file, self.keys.filter(mask), self.values.filter(mask), self.lines[kept])

    def lookup(self, keys: pa.Array) -> pa.Array:
        """Return the value of each key, null where there is none."""
        if self.keys.equals(keys):
            return self.values
        return self.values.take(pc.index_in(keys, self.keys))


def empty_table(file: str) -> KaldiTable:
    """Return a table without rows."""
    nothing = pa.array([], pa.string())
    return KaldiTable(file, nothing, nothing, np.zeros(0, np.int32))


def read_table(path: CorpusPath, refuse: Refuse) -> KaldiTable:
    """Read a table; lines that are not UTF-8 are refused, blank ones passed by.

    Raises:
        DataError: The file does not exist, or the archive that it is in is damaged.
        StorageError: It can't be read.
    """
    blocks = []
    number = 1
    for block in _blocks(path):
        try:
            block.decode("utf-8")
        except UnicodeDecodeError:
            blocks.append(_split_lines(block, number, path.name, refuse))
        else:
            blocks.append(_split_block(np.frombuffer(block, np.uint8), number))
        number += block.count(b"\n")
    if not blocks:
        return empty_table(path.name)
    keys, values, lines = zip(*blocks, strict=True)
    return KaldiTable(path.name, pa.concat_arrays(keys), pa.concat_arrays(values), np.concatenate(lines))


def _blocks(path: CorpusPath) -> Iterator[bytes]:
    """Yield whole lines, some megabytes at a time."""
    with open_path(path) as file:
        rest = b""
        is_first = True
        try:
            while data := file.read(_BLOCK_BYTES):
                if is_first:
                    refuse_utf16(path, data)
                    data, is_first = data.removeprefix(BOM), False
                end = data.rfind(b"\n") + 1
                if end:
                    yield rest + data[:end]
                    rest = data[end:]
                else:
                    rest += data
        except ArchiveError as error:
            raise DataError(f"{path}: {error}") from error
        if rest:
            yield rest


def _split_block(data: NDArray[np.uint8], number: int) -> _Columns:
    """Split lines that are UTF-8.

    data    r e c 1     h e l l o   w o r l d \\n
    words   [     )     [         ) [         )     their begins and ends
    key     [     )     first word of a line
    value               [                     )     begin of the second to end of the last
    """
    blank = np.concatenate(([True], _IS_BLANK[data], [True]))
    edges = np.flatnonzero(blank[1:] != blank[:-1])
    begins, ends = edges[0::2], edges[1::2]
    newlines = np.flatnonzero(data == _NEWLINE)
    # Words are counted up to each newline; what differs between two newlines is of the line between them.
    upto = np.searchsorted(begins, np.append(newlines, len(data)))
    first = np.concatenate(([0], upto[:-1]))
    lines = np.flatnonzero(upto > first)
    first, last = first[lines], upto[lines] - 1
    has_value = last > first
    stop = np.where(has_value, ends[last], 0)
    start = np.where(has_value, begins[np.minimum(first + 1, len(begins) - 1)], 0)
    keys, values = _gather(data, begins[first], ends[first]), _gather(data, start, stop)
    return keys, values, (lines + number).astype(np.int32)


def _gather(data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]) -> pa.Array:
    """Return slices of the data, which don't touch each other, as strings."""
    offsets = np.zeros(len(begins) + 1, np.int32)
    np.cumsum(ends - begins, out=offsets[1:])
    inside = np.zeros(len(data) + 1, np.int8)
    filled = ends > begins
    inside[begins[filled]] = 1
    inside[ends[filled]] = -1
    kept = np.cumsum(inside[:-1], dtype=np.int8).view(np.bool_)
    return pa.StringArray.from_buffers(len(begins), pa.py_buffer(offsets), pa.py_buffer(data[kept]))


def _split_lines(block: bytes, number: int, file: str, refuse: Refuse) -> _Columns:
    """Split lines of which some are not UTF-8, and refuse those."""
    rows: list[tuple[str, str, int]] = []
    for line_number, line in enumerate(block.split(b"\n"), number):
        fields: list[bytes] = line.split(None, 1)
        if not fields:
            continue
        try:
            value = decode(fields[1].rstrip()) if len(fields) > 1 else ""
            rows.append((decode(fields[0]), value, line_number))
        except NotUtf8Error as error:
            shown = show(line.rstrip(b"\r")[:_SHOWN_BYTES])
            refuse(show(fields[0]), f"{file}:{line_number}", f"{error} of the {file} line {shown!r}")
    columns: tuple[Any, ...] = tuple(zip(*rows, strict=True)) or ((), (), ())
    keys, values, lines = columns
    return pa.array(keys, pa.string()), pa.array(values, pa.string()), np.array(lines, np.int32)
