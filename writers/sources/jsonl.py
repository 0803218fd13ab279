"""JSONL manifests (NeMo's and others'): one JSON object a line, one line an utterance.

    {"audio_filepath": "a/b.flac", "text": "…", "duration": 3.2, "offset": 1.5, "id": "b", "speaker": "p1"}

`offset` makes the line a segment of its file, `duration` seconds long; without it `duration` is the length of the file
as the manifest states it. The id is `id`, `utt_id` or `key`, else the stem of the file. Every other field is metadata.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from uttershard.pipeline.errors import DataError

from ..corpus_path import CorpusPath, corpus_path, refused_members, root_of
from ..listing import Listing, ListingBuilder
from .base import is_file_called
from .lines import Line, batched, decode, read_lines
from .records import BadRecordError, FieldNames, add_record, add_records


@dataclass(frozen=True)
class JsonlSource:
    """A JSONL manifest; the options name the fields to read where they are not called as usual.

    Example:
        >>> JsonlSource("train.jsonl", audio="wav").list_utterances()  # doctest: +SKIP
    """

    address: str
    audio: str = "audio_filepath"
    text: str = "text"
    duration: str = "duration"
    offset: str = "offset"
    id: str | None = None
    """None: the first of `id`, `utt_id`, `key` that the line has, else the stem of the file."""

    name: ClassVar[str] = "jsonl"

    @classmethod
    def matches(cls, address: str) -> bool:
        """Whether it is a file called `.jsonl`, `.ndjson`, or `.json` (NeMo's ending for the same thing)."""
        return is_file_called(address, ".jsonl", ".ndjson", ".json")

    def list_utterances(self) -> Listing:
        """List the manifest in its order."""
        path = corpus_path(self.address)
        names = FieldNames(self.audio, self.text, self.duration, self.offset, self.id)
        builder = ListingBuilder(refused_members(path))
        folder = path.parent
        for lines in batched(read_json_lines(path)):
            records = parse_records(lines)
            if records is None or not add_records(names, builder, folder, records, [line.source for line in lines]):
                _add_one_by_one(names, builder, folder, lines)
        return builder.finish(root_of(folder), str(path))


def read_json_lines(path: CorpusPath) -> Iterator[Line]:
    """Yield the lines of a file of one JSON object a line.

    Raises:
        DataError: It is one JSON document instead; else as `read_lines`.
    """
    for line in read_lines(path):
        if line.number == 1 and (line.data[:1] == b"[" or line.data.strip() == b"{"):
            how = "-c '.[]'" if line.data[:1] == b"[" else "-c ."
            raise DataError(
                f"{path}: one JSON document, where one object a line is read. Convert it: jq {how} {path.name}"
            )
        yield line


def _add_one_by_one(names: FieldNames, builder: ListingBuilder, folder: CorpusPath, lines: Sequence[Line]) -> None:
    for line in lines:
        try:
            add_record(names, builder, folder, parse_record(line), line.source)
        except BadRecordError as error:
            builder.refuse(error.key, line.source, str(error))
        except ValueError as error:  # not UTF-8, or a number of thousands of digits
            builder.refuse(None, line.source, str(error))


def parse_records(lines: Sequence[Line]) -> list[dict[str, Any]] | None:
    """Return the records of some lines, or None if one has to be looked at more closely."""
    scan, records = _DECODER.scan_once, []
    try:
        for _, _, data in lines:
            text = data.decode("utf-8")
            record, end = scan(text, 0)
            if end != len(text):
                return None
            records.append(record)
    except (StopIteration, ValueError, RecursionError):
        return None
    return records if set(map(type, records)) == {dict} else None


def parse_record(line: Line) -> dict[str, Any]:
    """Read one line of JSON.

    Raises:
        BadRecordError: It is not a JSON object.
        NotUtf8Error: It is not UTF-8.
    """
    text = decode(line.data)
    try:
        record = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise BadRecordError(f"not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise BadRecordError("not JSON that can be read: nested too deeply") from error
    if not isinstance(record, dict):
        raise BadRecordError(f"a JSON object expected, found {type(record).__name__}")
    return record


def _refuse_constant(text: str) -> NoReturn:
    raise BadRecordError(f"not JSON: {text} is no JSON number")


# Made once: json.loads would make one for each of a million lines.
_DECODER: Any = json.JSONDecoder(parse_constant=_refuse_constant)
