"""WeNet's `data.list`: one JSON object an utterance (raw), or one tar a line (shard).

    raw    {"key": "a", "wav": "/data/a.wav", "txt": "…"}   and maybe "start" and "end" in seconds
    shard  /data/shards/shards_000000000.tar                 members `<key>.txt`, `<key>.wav`, split at the last dot

Source: https://github.com/wenet-e2e/wenet, tools/make_raw_list.py and make_shard_list.py
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from ..corpus_path import CorpusPath, corpus_path, read_path, refused_members, root_of
from ..listing import Listing, ListingBuilder, encode_metadata
from ..parts import each
from .base import LocatorError, is_file_called, locate
from .jsonl import parse_record
from .lines import NotUtf8Error, decode, read_lines
from .records import BadRecordError, read_seconds
from .webdataset import list_tar

_USED = frozenset({"key", "wav", "txt", "start", "end"})


@dataclass(frozen=True)
class WenetSource:
    """A `data.list` of WeNet, raw or shard.

    Example:
        >>> WenetSource("data/train/data.list").list_utterances()  # doctest: +SKIP
    """

    address: str

    name: ClassVar[str] = "wenet"

    @classmethod
    def matches(cls, address: str) -> bool:
        """Whether it is a file called `.list`."""
        return is_file_called(address, ".list")

    def list_utterances(self) -> Listing:
        """List the file in its order."""
        path = corpus_path(self.address)
        builder = ListingBuilder(refused_members(path))
        is_raw = read_path(path).lstrip()[:1] == b"{"
        tars: list[str] = []
        for line in read_lines(path):
            try:
                if is_raw:
                    _add(builder, path.parent, parse_record(line), line.source)
                else:
                    tars.append(locate(decode(line.data).strip(), path.parent))
            except BadRecordError as error:
                builder.refuse(error.key, line.source, str(error))
            except (NotUtf8Error, ValueError, LocatorError) as error:
                builder.refuse(None, line.source, str(error))
        for part in each(partial(list_tar, "wenet"), tars):
            builder.extend(part)
        return builder.finish(root_of(path.parent), str(path))


def _add(builder: ListingBuilder, folder: CorpusPath, record: dict[str, Any], origin: str) -> None:
    key, audio, text = record.get("key"), record.get("wav"), record.get("txt")
    if not isinstance(key, str):
        raise BadRecordError(f"'key' must be a string, found {key!r}")
    if not isinstance(audio, str) or not audio:
        raise BadRecordError(f"'wav' must be the path of a file, found {audio!r}", key)
    if text is not None and not isinstance(text, str):
        raise BadRecordError(f"'txt' must be a string, found {text!r}", key)
    start, end = read_seconds(record, "start", key), read_seconds(record, "end", key)
    try:
        uri = locate(audio, folder)
    except LocatorError as error:
        raise BadRecordError(str(error), key) from error
    metadata = encode_metadata({name: value for name, value in record.items() if name not in _USED})
    builder.add(key, uri, origin=origin, start=start, end=end, text=text, metadata=metadata)
