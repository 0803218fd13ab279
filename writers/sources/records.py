"""One utterance given as a record of named fields: what JSONL and CSV have in common.

`offset` makes the record a segment of its file, `duration` seconds long (to the end without one). Without an `offset`,
`duration` is the length of the file as the corpus states it. Every field that is not one of these is metadata.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ..corpus_path import CorpusPath
from ..listing import ListingBuilder
from .base import LocatorError, locate

ID_FIELDS = ("id", "utt_id", "key")

_NONE = type(None)
_SMALLEST = sys.float_info.min
_LARGEST = sys.float_info.max


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

    def roles(self, id_field: str | None) -> tuple[str, ...]:
        """Return the fields that are not metadata, each once, if `id_field` is the one of the id."""
        fields = (self.audio, self.text, self.duration, self.offset, id_field or self.audio)
        return tuple(dict.fromkeys(fields))


def add_record(
    names: FieldNames, builder: ListingBuilder, folder: CorpusPath, record: dict[str, Any], origin: str
) -> None:
    """Add one utterance.

    Args:
        names: What its fields are called.
        builder: Where it is added.
        folder: Relative audio paths are looked for here first.
        record: Its fields as JSON values; a missing field and a null are the same. What is left in it is metadata.
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
    for name in names.roles(id_field):
        record.pop(name, None)
    builder.add(
        key if key is not None else _stem(audio),
        uri,
        origin=origin,
        start=offset,
        end=None if offset is None or duration is None else offset + duration,
        duration=duration,
        text=text,
        metadata=builder.encode(record),
    )


def add_records(
    names: FieldNames,
    builder: ListingBuilder,
    folder: CorpusPath,
    records: Sequence[dict[str, Any]],
    origins: Sequence[str],
) -> bool:
    """Add many utterances column by column, a third of the cost of one by one, if nothing about them is doubtful.

    Returns:
        Whether they were added. If not, none was, and the records are spoiled: make them anew and add one by one.
    """
    id_field = names.id_field(records[0])
    earlier = ID_FIELDS[: ID_FIELDS.index(id_field)] if id_field in ID_FIELDS else () if id_field else ID_FIELDS
    if names.id is None and any(name in record for name in earlier for record in records):
        return False
    columns = {name: [record.pop(name, None) for record in records] for name in names.roles(id_field)}
    return add_columns(names, builder, folder, columns, id_field, records, origins)


def add_columns(
    names: FieldNames,
    builder: ListingBuilder,
    folder: CorpusPath,
    columns: Mapping[str, Sequence[Any]],
    id_field: str | None,
    rest: Sequence[Mapping[str, Any]],
    origins: Sequence[str],
) -> bool:
    """Add utterances of which each field is a column, as `add_records` does.

    Args:
        names: What the fields are called.
        builder: Where they are added.
        folder: Relative audio paths are looked for here first.
        columns: The values of `names.roles(id_field)`, None where there is none.
        id_field: Which of them is the id; None for the stem of the file.
        rest: The metadata.
        origins: File and line of each.
    """
    if len(columns) < 4 + (id_field is not None):  # one field in two roles
        return False
    audio, texts, durations, offsets = (
        columns[name] for name in (names.audio, names.text, names.duration, names.offset)
    )
    good = (
        set(map(type, audio)) == {str}
        and {str, _NONE}.issuperset(map(type, texts))
        and _are_seconds(durations, least=_SMALLEST)
        and _are_seconds(offsets, least=0.0)
    )
    keys = columns[id_field] if id_field is not None else list(map(_stem, audio)) if good else []
    uris = locate_all(audio, folder) if good and set(map(type, keys)) == {str} and "" not in audio else None
    if uris is None:
        return False
    try:
        return builder.add_columns(
            key=keys,
            uri=uris,
            start=offsets,
            end=_ends(offsets, durations),
            duration=durations,
            text=texts,
            metadata=list(map(builder.encode, rest)),
            origin=origins,
        )
    except ValueError:  # a number that JSON can't hold, or a lone surrogate
        return False


def _are_seconds(values: Sequence[Any], least: float) -> bool:
    kinds = set(map(type, values))
    if kinds == {_NONE}:
        return True
    known = [value for value in values if value is not None] if _NONE in kinds else values
    # Not finite is neither at least the least nor at most the most.
    return kinds <= {float, int, _NONE} and all(least <= value <= _LARGEST for value in known)


def _ends(offsets: Sequence[float | None], durations: Sequence[float | None]) -> list[float | None]:
    return [
        None if offset is None or duration is None else float(offset) + float(duration)
        for offset, duration in zip(offsets, durations, strict=True)
    ]


def locate_all(audio: Sequence[str], folder: CorpusPath) -> Sequence[str] | None:
    """Return where the files are, or None if one is nowhere."""
    together = "\n".join(audio)
    if together.count("\n/") == len(audio) - 1 and together.startswith("/") and ":" not in together:
        return audio  # absolute local paths, which `locate` gives back as they are
    try:
        return [locate(name, folder) for name in audio]
    except LocatorError:
        return None


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
    name = audio[audio.rfind("/") + 1 :]
    dot = name.rfind(".")
    # pathlib knows the odd cases (a trailing slash, a dot at either end), and takes ten times as long for the others.
    return name[:dot] if 0 < dot < len(name) - 1 else PurePosixPath(audio).stem


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
    if not 0 <= value <= _LARGEST:  # so neither infinite, nor NaN, nor an integer that no float holds
        raise BadRecordError(f"{name!r} must be 0 s or more, found {value}", key)
    return float(value)
