"""Tars of other tools: which members are one utterance, which of them is its audio, what its text and metadata are.

    webdataset, nemo   the key ends at the first dot of the file's name:  a/b.c.flac -> a/b, c.flac
    wenet              at the last one:                                    a/b.c.flac -> a/b.c, flac

Members of one key stand one after the other, or they are not of one utterance. The text is the member `.txt` (or
`.text`, `.transcript`), else the first of the fields `text`, `transcript`, `transcription`, `sentence` that a `.json`
member has; the metadata is what else is in that.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from uttershard.pipeline.dataset.tar import Member
from uttershard.pipeline.errors import ConfigError, DataError
from uttershard.pipeline.reading.members import audio_members

from .archives import name_problem

NAMINGS = ("webdataset", "wenet", "nemo")

_MOST_TEXT_BYTES = 16 << 20
_FILE_KINDS = "07"
_NO_FILES = "5DV"
"""Folders, GNU's lists of what an incremental archive left out, and volume labels."""


@dataclass(frozen=True)
class Group:
    """Adjacent members of one key; `problem` says why they are no utterance."""

    key: str
    members: dict[str, Member]
    """By ending, lower case."""
    problem: str | None = None

    @property
    def begin(self) -> int:
        """Offset of the first header."""
        return next(iter(self.members.values())).header

    @property
    def end(self) -> int:
        """Offset behind the last member."""
        return max(member.end for member in self.members.values())

    @property
    def audio(self) -> Member:
        """The audio."""
        return self.members[audio_members(self.members)[0]]


def split_key(name: str, naming: str) -> tuple[str, str]:
    """Split a member's name into key and ending.

    Example:
        >>> split_key("a/b.c.FLAC", "webdataset"), split_key("a/b.c.FLAC", "wenet")
        (('a/b', 'c.flac'), ('a/b.c', 'flac'))
    """
    if naming not in NAMINGS:
        raise ConfigError(f"naming is {naming!r}; it can be {', '.join(NAMINGS)}")
    folder, slash, base = name.removeprefix("./").rpartition("/")
    stem, _, ending = base.rpartition(".") if naming == "wenet" else base.partition(".")
    return folder + slash + stem, ending.lower()


def group_members(members: Iterable[Member], naming: str) -> Iterator[Group]:
    """Group the members of a tar into utterances, in its order; each group that is none says why."""
    seen: dict[str, int] = {}
    for key, group in _adjacent(members, naming):
        first = seen.setdefault(key, group[0].header)
        parts: dict[str, Member] = {}
        problem = None
        for member in group:
            problem = problem or _member_problem(member)
            ending = split_key(member.name, naming)[1]
            if ending in parts:
                problem = problem or f"the member {member.name!r} is there twice"
            parts[ending] = member
        if problem is None and any(before.end != after.header for before, after in itertools.pairwise(group)):
            problem = "its members are not adjacent: something else is between them"
        if problem is None and first != group[0].header:
            problem = f"its members are not adjacent: others of the same key are at offset {first}"
        yield Group(key, parts, problem or _audio_problem(parts))


def read_small(file: BinaryIO, member: Member) -> bytes:
    """Read a member that is text.

    Raises:
        DataError: It is too large to be one.
    """
    if member.size > _MOST_TEXT_BYTES:
        raise DataError(f"the member {member.name!r} has {member.size} bytes; text has {_MOST_TEXT_BYTES} at most")
    file.seek(member.start)
    return file.read(member.size)


def _adjacent(members: Iterable[Member], naming: str) -> Iterator[tuple[str, list[Member]]]:
    key, group = "", list[Member]()
    for member in members:
        if member.kind in _NO_FILES or member.name.rpartition("/")[2].startswith("__"):
            continue  # `__…__` is what WebDataset calls its own files, and skips
        found = split_key(member.name, naming)[0]
        if group and found != key:
            yield key, group
            group = []
        key = found
        group.append(member)
    if group:
        yield key, group


def _member_problem(member: Member) -> str | None:
    if member.kind not in _FILE_KINDS:
        return f"the member {member.name!r} is a link or no file (type {member.kind!r})"
    problem = name_problem(member.name)
    return None if problem is None else f"the member {member.name!r}: {problem}"


def _audio_problem(parts: dict[str, Member]) -> str | None:
    audio = audio_members(parts)
    if len(audio) == 1:
        return None
    return f"one audio member expected, found {len(audio)} among {', '.join(parts) or 'members without an ending'}"
