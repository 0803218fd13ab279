"""What a source lists: an Arrow table with one row an utterance, and what it had to refuse.

    key       string           the id
    uri       string           where the audio is: a local path, an fsspec address, or `pipe:` and a shell command
    start     float64 or null  seconds; null: from the beginning
    end       float64 or null  seconds; null: to the end
    duration  float64 or null  seconds of the utterance, as the corpus states it
    text      string or null   transcript
    metadata  string or null   a JSON object, compact, keys sorted
    origin    string           where in the corpus it is listed: `wav.scp:12`

Rows are gathered in Arrow batches, so a million utterances cost their bytes and not a million dicts.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("uri", pa.string(), nullable=False),
        pa.field("start", pa.float64()),
        pa.field("end", pa.float64()),
        pa.field("duration", pa.float64()),
        pa.field("text", pa.string()),
        pa.field("metadata", pa.string()),
        pa.field("origin", pa.string(), nullable=False),
    ]
)

PIPE = "pipe:"
"""Prefix of a uri that is a shell command; local paths in a listing are absolute, so none begins with it."""

_BATCH_ROWS = 8192
"""Rows that are Python objects at a time: some 600 bytes each, against 175 in the table."""

_JOINED_BATCHES = 64
"""Batches that are copied into one: Arrow's allocator spends half as much again on small buffers as they hold."""

_MOST_KNOWN_METADATA = 65_536

_STRINGS = frozenset({str})

# Made once: json.dumps would make one for each of a million utterances.
_encode_json = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False).encode


class Refusal(NamedTuple):
    """An utterance that can't be packed, or a line of the corpus that can't be read."""

    key: str | None
    """The id, where one could be read."""
    source: str
    """File and line in the corpus, or the address of the audio."""
    reason: str

    def as_json(self) -> str:
        """Return the line of errors.jsonl."""
        return json.dumps(self._asdict(), ensure_ascii=False)


@dataclass
class Listing:
    """A corpus as listed."""

    utterances: pa.Table
    refused: list[Refusal]
    root: str
    """Folder of the corpus; addresses below it are fingerprinted relative to it, so that a corpus can move."""
    searched: str
    """Where the source looked, for the message that nothing was found."""
    changes: str = ""
    """Digest of when each local audio file was last changed (`take_inventory`). No part of the fingerprint: a corpus
    that was copied gives the same dataset."""
    notes: list[str] = field(default_factory=list)
    """What a person should know of the corpus; workers list it, and have nobody to tell."""

    def __len__(self) -> int:
        return int(self.utterances.num_rows)

    def rebuild(self, *steps: Callable[[Any], Any]) -> None:
        """Pass each column through these functions, one column at a time: there is memory for one corpus, not for two.

        Args:
            steps: Each takes a column and returns one.
        """
        names, columns = self.utterances.column_names, self.utterances.columns
        self.utterances = SCHEMA.empty_table()
        for place in range(len(columns)):
            for step in steps:
                columns[place] = step(columns[place])
                pa.default_memory_pool().release_unused()  # else freed columns stay resident beside their copies
        self.utterances = pa.table(columns, names=names)


@dataclass
class ListingBuilder:
    """Takes utterances one by one and makes the table."""

    refused: list[Refusal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _joined: list[pa.RecordBatch] = field(default_factory=list)
    _batches: list[pa.RecordBatch] = field(default_factory=list)
    _rows: list[tuple[Any, ...]] = field(default_factory=list)
    _encoded: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def add(
        self,
        key: str,
        uri: str,
        *,
        origin: str,
        start: float | None = None,
        end: float | None = None,
        duration: float | None = None,
        text: str | None = None,
        metadata: str | None = None,
    ) -> None:
        """List an utterance; text that is not valid Unicode (lone surrogates) is refused here."""
        for value in (key, uri, text, metadata):
            # Python knows of each string whether it is ASCII; only the others have to be looked at.
            if value is not None and not value.isascii():
                try:
                    value.encode("utf-8")
                except UnicodeEncodeError as error:
                    self.refuse(key, origin, f"not valid Unicode (a lone surrogate): {_around(error)}")
                    return
        self._rows.append((key, uri, start, end, duration, text, metadata, origin))
        if len(self._rows) == _BATCH_ROWS:
            self._flush()

    def add_columns(self, **columns: Sequence[Any]) -> bool:
        """List many utterances at once, each column in full.

        Returns:
            Whether they were listed; if not, none was, for a text of them is not valid Unicode (see `add`).
        """
        try:
            arrays = [pa.array(columns[field.name], field.type) for field in SCHEMA]
        except UnicodeEncodeError:
            return False
        self._flush()
        self._append(arrays)
        return True

    def add_table(self, utterances: pa.Table) -> None:
        """List utterances that are columns already, as of SCHEMA."""
        self._flush()
        for batch in utterances.to_batches():
            self._append(batch.columns)

    def extend(self, part: Listing) -> None:
        """Take over all that a part of the corpus lists, refuses and says."""
        self.add_table(part.utterances)
        self.refused += part.refused
        self.notes += part.notes

    def refuse(self, key: str | None, source: str, reason: str) -> None:
        """Note what could not be listed."""
        self.refused.append(Refusal(None if key is None else printable(key), printable(source), printable(reason)))

    def encode(self, fields: Mapping[str, Any]) -> str | None:
        """Return what `encode_metadata` does; what repeats (one speaker, many utterances) is encoded once."""
        if not _STRINGS.issuperset(map(type, fields.values())):
            return encode_metadata(fields)  # 1, 1.0 and True are the same key, and not the same JSON
        if not fields:
            return None
        items = tuple(fields.items())
        encoded = self._encoded.get(items)
        if encoded is None:
            if len(self._encoded) >= _MOST_KNOWN_METADATA:
                self._encoded.clear()
            encoded = self._encoded[items] = str(encode_metadata(fields))
        return encoded

    def finish(self, root: str, searched: str) -> Listing:
        """Return the listing of all that was added."""
        self._flush()
        table = pa.Table.from_batches([*self._joined, *self._batches], SCHEMA)
        return Listing(table, self.refused, root, searched, notes=self.notes)

    def _flush(self) -> None:
        if self._rows:
            columns = zip(*self._rows, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
            self._append(arrays)
            self._rows.clear()

    def _append(self, arrays: Sequence[pa.Array]) -> None:
        self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
        if len(self._batches) == _JOINED_BATCHES:
            self._joined.append(pa.concat_batches(self._batches))
            self._batches.clear()


def encode_metadata(fields: Mapping[str, Any]) -> str | None:
    """Return the JSON of an utterance's metadata, or None if there is none.

    A number that overflows to infinity, which JSON can't hold, is a ValueError.

    A field `id` would be hidden by the utterance's own id in the `.json` member: it is kept as `source_id`.

    Example:
        >>> encode_metadata({"speaker": "p1", "age": 30})
        '{"age":30,"speaker":"p1"}'
    """
    if not fields:
        return None
    if "id" in fields:
        fields = {**{name: value for name, value in fields.items() if name != "id"}, "source_id": fields["id"]}
    return _encode_json(fields)


def printable(text: str) -> str:
    """Return text that any UTF-8 file can hold: lone surrogates as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _around(error: UnicodeEncodeError) -> str:
    text = error.object[max(0, error.start - 10) : error.end + 10]
    return repr(text)
