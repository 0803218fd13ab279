"""Lines of Lhotse's manifests as Arrow columns, at a third of the cost of one by one.

Nearly all cuts and supervisions are alike: of one channel, of one file, with one text. Lines in which anything else is
said (channels, commands, `custom` fields, transforms, …) are not taken here; they are read one by one.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as pyarrow_json

from ..corpus_path import CorpusPath
from ..listing import SCHEMA, ListingBuilder
from .lines import Line
from .records import locate_all

_SOURCE = pa.struct([("type", pa.string()), ("channels", pa.list_(pa.int64())), ("source", pa.string())])
_NAMED = ("speaker", "language", "gender")

RECORDING = pa.schema(
    [
        ("id", pa.string()),
        ("sources", pa.list_(_SOURCE)),
        ("sampling_rate", pa.int64()),
        ("num_samples", pa.int64()),
        ("duration", pa.float64()),
        ("channel_ids", pa.list_(pa.int64())),
    ]
)
SUPERVISION = pa.schema(
    [
        ("id", pa.string()),
        ("recording_id", pa.string()),
        ("start", pa.float64()),
        ("duration", pa.float64()),
        ("channel", pa.int64()),
        ("text", pa.string()),
        *((name, pa.string()) for name in _NAMED),
    ]
)
CUT = pa.schema(
    [
        ("id", pa.string()),
        ("start", pa.float64()),
        ("duration", pa.float64()),
        ("channel", pa.int64()),
        ("supervisions", pa.list_(pa.struct(list(SUPERVISION)))),
        ("recording", pa.struct(list(RECORDING))),
        ("type", pa.string()),
    ]
)


def read_columns(lines: Sequence[Line], schema: pa.Schema) -> pa.RecordBatch | None:
    """Read lines of one JSON object each, or return None if one is no such line, or says more than the schema."""
    data = b"\n".join(line.data for line in lines)
    # Arrow takes two objects on a line, and one on two lines.
    if data[:1] != b"{" or data.count(b"}\n") != len(lines) - 1 or data.count(b"\n{") != len(lines) - 1:
        return None
    try:
        data.decode("utf-8")
        table = pyarrow_json.read_json(
            io.BytesIO(data),
            pyarrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            pyarrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error"),
        )
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    batches = table.combine_chunks().to_batches()
    return batches[0] if len(batches) == 1 and table.num_rows == len(lines) else None


def flat_recordings(recordings: pa.RecordBatch) -> pa.Table | None:
    """Return id, file, channel, rate and length of recordings, or None if one is not one file of one channel."""
    sources = _only_items(recordings.column("sources"))
    channels = None if sources is None else _only_items(sources.field("channels"))
    if sources is None or channels is None:
        return None
    kinds = pc.unique(sources.field("type")).to_pylist()
    flat = pa.table(
        {
            "recording": recordings.column("id"),
            "source": sources.field("source"),
            "source_channel": channels,
            "rate": recordings.column("sampling_rate"),
            "total": recordings.column("num_samples"),
        }
    )
    return flat if kinds == ["file"] and _has_no_null(flat) else None


def flat_cuts(cuts: pa.RecordBatch) -> pa.Table | None:
    """Return the cuts with the fields of their one supervision and one recording, or None if one is not so simple."""
    spoken, recordings = _only_items(cuts.column("supervisions")), cuts.column("recording")
    if spoken is None or recordings.null_count or pc.unique(cuts.column("type")).to_pylist() != ["MonoCut"]:
        return None
    flat = flat_recordings(pa.RecordBatch.from_struct_array(recordings))
    if flat is None:
        return None
    for name in ("id", "start", "duration", "channel"):
        flat = flat.append_column(name, cuts.column(name))
    for name in ("text", *_NAMED):
        flat = flat.append_column(name, spoken.field(name))
    return flat


@dataclass
class Recordings:
    """Recordings by their ids: rows of columns where they are simple, else the objects."""

    _place: dict[str, int | dict[str, Any]] = field(default_factory=dict)
    _parts: list[pa.Table] = field(default_factory=list)

    def add_flat(self, recordings: pa.Table) -> bool:
        """Add what `flat_recordings` gives, or nothing if an id is known already, and say whether it was added."""
        added = {key: row for row, key in enumerate(recordings["recording"].to_pylist(), sum(map(len, self._parts)))}
        if len(added) < len(recordings) or not self._place.keys().isdisjoint(added):
            return False
        self._place |= added
        self._parts.append(recordings.drop_columns("recording"))
        return True

    def add(self, recording: dict[str, Any]) -> str | None:
        """Add a recording as Lhotse writes it; return what is wrong if it can't be."""
        key = recording.get("id")
        if not isinstance(key, str):
            return "a recording without an id"
        if key in self._place:
            return "a recording of this id is there already"
        self._place[key] = recording
        return None

    def get(self, key: Any) -> dict[str, Any] | None:
        """Return a recording as Lhotse writes it, as much of it as is of use."""
        found = self._place.get(key) if isinstance(key, str) else None
        if not isinstance(found, int):
            return found
        row = self._flat.slice(found, 1).to_pylist()[0]
        source = {"type": "file", "channels": [row["source_channel"]], "source": row["source"]}
        return {"id": key, "sources": [source], "sampling_rate": row["rate"], "num_samples": row["total"]}

    def join(self, supervisions: pa.RecordBatch) -> pa.Table | None:
        """Return supervisions with the recording of each, or None if one has none, or one that is not simple."""
        rows = [self._place.get(key) for key in supervisions.column("recording_id").to_pylist()]
        if set(map(type, rows)) != {int}:
            return None
        flat = self._flat.take(pa.array(rows, pa.int64()))
        for name in supervisions.schema.names:
            flat = flat.append_column(name, supervisions.column(name))
        return flat

    @cached_property
    def _flat(self) -> pa.Table:
        """One chunk, since taking rows of many would copy all of them each time; asked for when all are added."""
        flat = pa.concat_tables(self._parts).combine_chunks()
        self._parts.clear()
        return flat


def add_cuts(builder: ListingBuilder, folder: CorpusPath, cuts: pa.Table, origins: Sequence[str]) -> bool:
    """Add cuts.

    Args:
        builder: Where they are added.
        folder: Relative paths of audio are looked for here first.
        cuts: As of `flat_cuts`.
        origins: File and line of each.

    Returns:
        Whether they were added; if not, none was, since there is something about one of them.
    """
    if not _has_no_null(cuts.select(["id", "start", "duration", "channel"])):
        return False
    starts, seconds, rates = (cuts[name].to_numpy() for name in ("start", "duration", "rate"))
    if not (
        np.isfinite(starts).all() and np.isfinite(seconds).all() and cuts["channel"].equals(cuts["source_channel"])
    ):
        return False
    uris = cuts["source"].combine_chunks()
    if not pc.all(pc.match_substring_regex(uris, "^/[^:\n]*$")).as_py():
        located = locate_all(uris.to_pylist(), folder)
        if located is None:
            return False
        uris = pa.array(located, pa.string())
    is_whole = (np.rint(starts * rates) == 0) & (np.rint(seconds * rates) >= cuts["total"].to_numpy())
    builder.add_table(
        pa.table(
            [
                cuts["id"],
                uris,
                pa.array(starts, mask=is_whole),
                pa.array(starts + seconds, mask=is_whole),
                cuts["duration"],
                cuts["text"],
                pa.array(_metadata(builder, cuts), pa.string()),
                pa.array(origins, pa.string()),
            ],
            schema=SCHEMA,
        )
    )
    return True


def _metadata(builder: ListingBuilder, cuts: pa.Table) -> list[str | None]:
    names = [name for name in _NAMED if cuts[name].null_count < len(cuts)]
    rows = zip(*(cuts[name].to_pylist() for name in names), strict=True) if names else [()] * len(cuts)
    fields: dict[str, Any]
    encoded = []
    for row in rows:
        fields = {name: value for name, value in zip(names, row, strict=True) if value is not None}
        encoded.append(builder.encode(fields))
    return encoded


def _only_items(lists: pa.Array) -> pa.Array | None:
    """Return the one item of each list, or None if one has not just one."""
    items = lists.flatten()
    lengths = pc.list_value_length(lists)
    is_one = not lengths.null_count and pc.all(pc.equal(lengths, 1)).as_py()
    return items if is_one and not items.null_count else None


def _has_no_null(table: pa.Table) -> bool:
    return not any(column.null_count for column in table.columns)
