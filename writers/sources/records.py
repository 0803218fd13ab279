"""One utterance given as a record of named fields: what JSONL and CSV have in common.

`offset` makes the record a segment of its file, `duration` seconds long (to the end without one). Without an `offset`,
`duration` is the length of the file as the corpus states it. Every field that is not one of these is metadata.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ..corpus_path import CorpusPath
from ..listing import ListingBuilder, encode_metadata
from .base import LocatorError, locate

ID_FIELDS = ("id", "utt_id", "key")


class BadRecordError(ValueError):
    """A record that can't be an utterance; the message is the reason, `key` the id if there is one."""

    def __init__(self, reason: str, key: str | None = None) -> None:
        super().__init__(reason)
        self.key = key


@dataclass(frozen=True)
class FieldNames:
    """What the fields of an utterance are called in a corpus."""

    audio: str = "audio_filepath"
    text: str = "text"
    duration: str = "duration"
    offset: str = "offset"
    id: str | None = None
    """None: the first of ID_FIELDS that the record has, else the stem of the audio file."""

    def id_field(self, present: Mapping[str, Any]) -> str | None:
        """Return which field of a record holds its id, or None if the stem of the file is the id."""
        if self.id is not None:
            return self.id
        return next((name for name in ID_FIELDS if present.get(name) is not None), None)


def add_record(
    names: FieldNames, builder: ListingBuilder, folder: CorpusPath, record: Mapping[str, Any], origin: str
) -> None:
    """Add one utterance.

    Args:
        names: What its fields are called.
        builder: Where it is added.
        folder: Relative audio paths are looked for here first.
        record: Its fields as JSON values; a missing field and a null are the same.
        origin: File and line, for messages.

    Raises:
        BadRecordError: A field is missing, not of its type, or names audio that does not exist.
    """
    id_field = names.id_field(record)
    audio = record.get(names.audio)
    key = _key(record, id_field, audio)
    if audio is None:
        raise BadRecordError(f"no field {names.audio!r}", key)
    if not isinstance(audio, str) or not audio:
        raise BadRecordError(f"{names.audio!r} must be the path of a file, found {audio!r}", key)
    text = record.get(names.text)
    if text is not None and not isinstance(text, str):
        raise BadRecordError(f"{names.text!r} must be a string, found {text!r}", key)
    duration, offset = read_seconds(record, names.duration, key), read_seconds(record, names.offset, key)
    if duration is not None and duration <= 0:
        raise BadRecordError(f"{names.duration!r} must be more than 0 s, found {duration}", key)
    try:
        uri = locate(audio, folder)
    except LocatorError as error:
        raise BadRecordError(str(error), key) from error
    used = {names.audio, names.text, names.duration, names.offset, id_field}
    builder.add(
        key if key is not None else _stem(audio),
        uri,
        origin=origin,
        start=offset,
        end=None if offset is None or duration is None else offset + duration,
        duration=duration,
        text=text,
        metadata=encode_metadata({name: value for name, value in record.items() if name not in used}),
    )


def _key(record: Mapping[str, Any], id_field: str | None, audio: Any) -> str | None:
    if id_field is None:
        return _stem(audio) if isinstance(audio, str) else None
    value = record.get(id_field)
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is None:
        raise BadRecordError(f"no field {id_field!r} to be the id")
    raise BadRecordError(f"{id_field!r} must be a string or an integer, found {value!r}")


def _stem(audio: str) -> str:
    return PurePosixPath(audio).stem


def read_seconds(record: Mapping[str, Any], name: str, key: str | None) -> float | None:
    """Return a field that is seconds, None if it is missing.

    Raises:
        BadRecordError: It is no number, or not 0 or more.
    """
    value = record.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRecordError(f"{name!r} must be a number of seconds, found {value!r}", key)
    if not math.isfinite(value) or value < 0:
        raise BadRecordError(f"{name!r} must be 0 s or more, found {value}", key)
    return float(value)
