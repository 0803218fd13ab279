"""Rows of the sidecar, made from the members of an utterance: one way for packing and for rebuilding an index."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from uttershard.pipeline.dataset.sidecar import sidecar_schema
from uttershard.pipeline.errors import DataError
from uttershard.pipeline.reading.codecs import EXTENSIONS, AudioInfo, measure

from .columns import column_values
from .tar_writer import Span

_AUDIO_MEMBERS = frozenset(EXTENSIONS.values())


# Made once: json.dumps would make one for each utterance.
_encode_json = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode


def make_record(key: str, metadata: str | None) -> dict[str, Any]:
    """Return what the `.json` member of an utterance holds: its metadata and, under `id`, its id."""
    return {**json.loads(metadata), "id": key} if metadata else {"id": key}


def encode_record(record: Mapping[str, Any]) -> bytes:
    """Return the bytes of a `.json` member."""
    return _encode_json(record).encode("utf-8")


def encode_members(
    record: Mapping[str, Any], info: AudioInfo, audio: bytes | memoryview, text: str | None
) -> dict[str, bytes | memoryview]:
    """Return the members of an utterance, by ending."""
    members: dict[str, bytes | memoryview] = {
        EXTENSIONS[info.codec]: audio,
        "json": encode_record(record),
    }
    if text is not None:
        members["txt"] = text.encode("utf-8")
    return members


def describe(record: Mapping[str, Any], info: AudioInfo, text_chars: int, columns: Mapping[str, str]) -> dict[str, Any]:
    """Return what the sidecar says of an utterance, all but its place in the tar.

    Args:
        record: What its `.json` member holds.
        info: Facts of its audio.
        text_chars: Characters of its transcript, 0 without one.
        columns: Metadata columns, name -> type.
    """
    return {
        "key": record["id"],
        "num_samples": info.num_samples,
        "sample_rate": info.sample_rate,
        "channels": info.channels,
        "codec": info.codec,
        "text_chars": text_chars,
        **column_values(record, columns),
    }


def describe_members(members: Mapping[str, bytes | memoryview], columns: Mapping[str, str]) -> dict[str, Any]:
    """Return the same, read from the members (ending -> data).

    Raises:
        DataError: The members are not those of an utterance of ours.
        AudioError: The audio can't be decoded.
    """
    record = read_record(members.get("json", b"null"))
    endings = [ending for ending in members if ending in _AUDIO_MEMBERS]
    if len(endings) != 1:
        raise DataError(f"one audio member expected, found {len(endings)} in {', '.join(members)}")
    info = measure(members[endings[0]])
    return describe(record, info, _count_characters(members.get("txt", b"")), columns)


def read_record(data: bytes | memoryview) -> dict[str, Any]:
    """Read a `.json` member: the metadata of an utterance and, under `id`, its id."""
    try:
        record = json.loads(bytes(data))
    except ValueError as error:
        raise DataError(f"its .json member is damaged ({error})") from error
    if not isinstance(record, dict) or not isinstance(record.get("id"), str):
        raise DataError("no .json member with the id")
    return record


def _count_characters(text: bytes | memoryview) -> int:
    try:
        return len(bytes(text).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"its .txt member is damaged ({error})") from error


@dataclass
class SidecarRows:
    """Rows of a sidecar as they come, made into its table at the end."""

    columns: Mapping[str, str]

    def __post_init__(self) -> None:
        self._schema = sidecar_schema(dict(self.columns))
        self._rows: list[dict[str, Any]] = []

    def add(self, description: Mapping[str, Any], span: Span) -> None:
        """Add an utterance and its place."""
        place = {"offset": span.offset, "nbytes": span.nbytes, "xxh3": span.checksum}
        self._rows.append({**description, **place})

    def drop(self, offsets: Collection[int]) -> None:
        """Leave out the utterances at these offsets, which turned out to be none."""
        if offsets:
            self._rows = [row for row in self._rows if row["offset"] not in offsets]

    def table(self) -> pa.Table:
        """Return the table, in the order of adding."""
        arrays = [pa.array([row[field.name] for row in self._rows], field.type) for field in self._schema]
        return pa.table(arrays, schema=self._schema)

    def without_text(self) -> int:
        """Return how many utterances have no transcript."""
        return sum(not row["text_chars"] for row in self._rows)
