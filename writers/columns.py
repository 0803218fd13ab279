"""Metadata columns of the sidecar: their types, found over the whole corpus, and the values of a row."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from uttershard.pipeline.errors import ConfigError

_ROWS = 65_536


def infer_columns(metadata: pa.ChunkedArray, names: Iterable[str]) -> dict[str, str]:
    """Return the type of each column: int64, float64 (numbers of both kinds), bool, else string.

    Args:
        metadata: JSON object or null of each utterance.
        names: The fields that become columns.

    Raises:
        ConfigError: A field that no utterance has.
    """
    wanted = {name: set[type]() for name in names}
    if not wanted:
        return {}
    fields: set[str] = set()
    for record in _records(metadata):
        fields.update(record)
        for name, kinds in wanted.items():
            value = record.get(name)
            if value is not None:
                kinds.add(_kind(value))
    for name, kinds in wanted.items():
        if not kinds:
            there = ", ".join(sorted(fields)) or "none"
            raise ConfigError(f"column {name!r}: no utterance has a metadata field of that name; there are: {there}")
    return {name: _type_name(kinds) for name, kinds in wanted.items()}


def column_values(record: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """Return the value of each column for one utterance, of the column's type; what is missing is None."""
    return {name: _convert(record.get(name), kind) for name, kind in columns.items()}


def _convert(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "string":
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
    return float(value) if kind == "float64" else value


def _kind(value: Any) -> type:
    """Return the type of a JSON value; an integer beyond 64 bits is stored as text."""
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:
        return str
    return type(value)


def _type_name(kinds: set[type]) -> str:
    if kinds == {bool}:
        return "bool"
    if kinds == {int}:
        return "int64"
    return "float64" if kinds <= {int, float} else "string"


def _records(metadata: pa.ChunkedArray) -> Iterable[dict[str, Any]]:
    for start in range(0, len(metadata), _ROWS):
        # Metadata repeats (one speaker, many utterances): parse each text once.
        for text in metadata.slice(start, _ROWS).unique().to_pylist():
            if text is not None:
                yield json.loads(text)
