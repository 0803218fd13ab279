"""Audio in Parquet files: to read one value, its row group is read, so those of a group are read together.

A shard holds utterances in shuffled order. The first that is packed of a row group reads the group; what else the
shard needs of it waits in a temporary file, which never gets larger than the shard. Memory holds one row group.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from tempfile import NamedTemporaryFile
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .audio_files import RowGroupError, read_row_group
from .locators import Place, parse_place, range_uri

_CELL = "#cell="

_Group = tuple[str, int, str]
"""File, row group and column."""


def has_cells(uris: pa.ChunkedArray) -> bool:
    """Say whether any of some addresses is a value of a Parquet file."""
    return bool(pc.any(pc.match_substring(uris, _CELL)).as_py())


def sort_cells(uris: Sequence[str]) -> list[int]:
    """Return the places of addresses in an order that reads row groups one after the other.

    Example:
        >>> sort_cells(["/b.parquet#cell=0+1+audio.bytes", "/a.wav", "/b.parquet#cell=0+0+audio.bytes"])
        [1, 2, 0]
    """
    places = [parse_place(uri) for uri in uris]
    return sorted(range(len(uris)), key=lambda number: (places[number].address, places[number].numbers))


@dataclass
class DamagedGroups:
    """Row groups that were found damaged: to find that out again for each of their values takes as long as reading."""

    _known: dict[_Group, RowGroupError] = field(default_factory=dict)

    def raise_if_known(self, uri: str) -> None:
        """Raise for a value what was noted for another of its group."""
        if self._known and _CELL in uri:
            error = self._known.get(_group_of(parse_place(uri)))
            if error is not None:
                raise error

    def note(self, uri: str, error: Exception) -> None:
        """Note what was raised for a value, if that is of its whole group."""
        if isinstance(error, RowGroupError):
            self._known[_group_of(parse_place(uri))] = error


@dataclass
class ShardCells:
    """The values of Parquet files that a shard needs."""

    _rows: dict[_Group, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))
    _waiting: dict[str, str] = field(default_factory=dict)
    _spool: Any = None

    @classmethod
    def of(cls, uris: pa.ChunkedArray) -> "ShardCells":
        """Find them among the addresses of a shard."""
        cells = cls()
        for uri in uris.filter(pc.match_substring(uris, _CELL)).to_pylist():
            place = parse_place(uri)
            if place.kind == "cell":
                cells._rows[_group_of(place)].append((uri, place.numbers[1]))
        return cells

    def address(self, uri: str) -> str:
        """Return where the audio can be read from now; the address itself, if it is not in a Parquet file."""
        if _CELL not in uri:
            return uri
        rows = self._rows.pop(_group_of(parse_place(uri)), None)
        if rows is not None:
            self._read(parse_place(uri), rows)
        return self._waiting.get(uri, uri)

    def _read(self, place: Place, rows: list[tuple[str, int]]) -> None:
        if self._spool is None:
            self._spool = NamedTemporaryFile(prefix="uttershard-")  # noqa: SIM115 - goes with the shard
        values = read_row_group(place)
        for uri, row in rows:
            data = values[row].as_py() if row < len(values) else None
            if data:  # what is null or empty says so when it is fetched
                self._waiting[uri] = range_uri(self._spool.name, self._spool.tell(), len(data))
                self._spool.write(data)
        self._spool.flush()


def _group_of(place: Place) -> _Group:
    return place.address, place.numbers[0], place.column
