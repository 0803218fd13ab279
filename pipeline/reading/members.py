"""The members of an utterance by their endings: which is the audio, what its text and metadata are.

Our own shards have one audio member, `.json` and maybe `.txt`; adopted tars have what their tool wrote.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import DataError
from .codecs import AUDIO_EXTENSIONS

TEXT_ENDINGS = ("txt", "text", "transcript")
TEXT_FIELDS = ("text", "transcript", "transcription", "sentence")
"""Fields of a `.json` member that hold the text, where there is no member for it; the first that is there."""


def audio_members(endings: Iterable[str]) -> list[str]:
    """Return the endings that are audio.

    Example:
        >>> audio_members(["json", "1.flac", "txt"])
        ['1.flac']
    """
    return [ending for ending in endings if f".{ending.rpartition('.')[2]}" in AUDIO_EXTENSIONS]


def read_metadata(members: Mapping[str, bytes | memoryview]) -> dict[str, Any]:
    """Return the object in the `.json` member; empty if there is none, `{"json": …}` if it is no object.

    Raises:
        DataError: It is no JSON.
    """
    data = _last(members, "json")
    if data is None:
        return {}
    try:
        value = json.loads(bytes(data))
    except ValueError as error:
        raise DataError(f"its .json member is damaged ({error})") from error
    return value if isinstance(value, dict) else {"json": value}


def read_text(members: Mapping[str, bytes | memoryview], metadata: Mapping[str, Any]) -> str | None:
    """Return the transcript of an utterance of another tool, None if it has none.

    Raises:
        DataError: It is not UTF-8.
    """
    for ending in TEXT_ENDINGS:
        data = _last(members, ending)
        if data is not None:
            try:
                # The line end is the file's, as everywhere else where a text is a file of its own.
                return bytes(data).decode("utf-8-sig").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise DataError(f"its .{ending} member is damaged ({error})") from error
    return next((metadata[name] for name in TEXT_FIELDS if isinstance(metadata.get(name), str)), None)


def _last(members: Mapping[str, bytes | memoryview], ending: str) -> bytes | memoryview | None:
    """Return the member whose last ending is this one (`.txt` of `a.b.txt`, for tools that split at the last dot)."""
    if ending in members:
        return members[ending]
    return next((data for name, data in members.items() if name.rpartition(".")[2] == ending), None)
