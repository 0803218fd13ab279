"""Tars of other tools: which members are one utterance, which of them is its audio, what its text and metadata are.

    webdataset    the key ends at the first dot of the file's name:  a/b.c.flac -> a/b, c.flac
    wenet, nemo   at the last one:                                    a/b.c.flac -> a/b.c, flac

Members of one key stand one after the other, or they are not of one utterance: a sample whose files are apart is none,
and of two whole samples of one key the second is none. Folders and hidden files (`._a.wav` is what macOS adds to each)
are passed by, as WebDataset does.

The text is the member `.txt` (or `.text`, `.transcript`), else the first of the fields `text`, `transcript`,
`transcription`, `sentence` that a `.json` member has; the metadata is what else is in that.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from uttershard.pipeline.dataset.tar import Member
from uttershard.pipeline.errors import ConfigError, DataError
from uttershard.pipeline.reading.members import TEXT_ENDINGS, audio_members

from .archives import name_problem

NAMINGS = ("webdataset", "wenet", "nemo")

_MOST_TEXT_BYTES = 16 << 20
_FILE_KINDS = "07"
_NO_FILES = "5DV"
"""Folders, GNU's lists of what an incremental archive left out, and volume labels."""
_OTHER_KINDS = {"1": "a hard link", "2": "a symbolic link", "S": "a sparse file"}


@dataclass(frozen=True)
class Group:
    """Adjacent members of one key; `problem` says why they are no utterance."""

    key: str
    members: dict[str, Member]
    """By ending, lower case."""
    problem: str | None = None
    rest_of: int | None = None
    """Offset of an earlier group that is no utterance either, since files of its sample are in this one."""

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
    stem, _, ending = base.partition(".") if naming == "webdataset" else base.rpartition(".")
    return folder + slash + stem, ending.lower()


def group_members(members: Iterable[Member], naming: str) -> Iterator[Group]:
    """Group the members of a tar into utterances, in its order; each group that is none says why."""
    seen: dict[str, tuple[int, bool]] = {}
    for key, group in _samples(members, naming):
        parts, problem = _parts(group, naming)
        begin, has_audio = group[0].header, bool(audio_members(parts))
        first, had_audio = seen.setdefault(key, (begin, has_audio))
        if first == begin:
            yield Group(key, parts, problem or _audio_problem(parts))
        elif has_audio and had_audio:
            yield Group(key, parts, f"the id is there twice: at offset {first} and at offset {begin}")
        else:
            apart = f"its members are not adjacent: some are at offset {first}, others at offset {begin}"
            yield Group(key, parts, apart, rest_of=first)


def _parts(group: list[Member], naming: str) -> tuple[dict[str, Member], str | None]:
    """Return the members by ending, and why they are no utterance."""
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
    return parts, problem


def read_small(file: BinaryIO, member: Member) -> bytes:
    """Read a member that is text.

    Raises:
        DataError: It is too large to be one.
    """
    if member.size > _MOST_TEXT_BYTES:
        raise DataError(f"the member {member.name!r} has {member.size} bytes; text has {_MOST_TEXT_BYTES} at most")
    file.seek(member.start)
    return file.read(member.size)


def read_texts(file: BinaryIO, group: Group) -> dict[str, bytes]:
    """Read those members of a group that are text or metadata."""
    return {
        ending: read_small(file, member)
        for ending, member in group.members.items()
        if ending.rpartition(".")[2] in ("json", *TEXT_ENDINGS)
    }


def _samples(members: Iterable[Member], naming: str) -> Iterator[tuple[str, list[Member]]]:
    """Yield members of one key; those of a whole sample that is there twice in a row, one copy at a time."""
    for key, group in _adjacent(members, naming):
        endings = [split_key(member.name, naming)[1] for member in group]
        size = len(set(endings))
        is_repeated = endings == endings[:size] * (len(endings) // size)
        for start in range(0, len(group), size if is_repeated else len(group)):
            yield key, group[start : start + size] if is_repeated else group


def _adjacent(members: Iterable[Member], naming: str) -> Iterator[tuple[str, list[Member]]]:
    key, group = "", list[Member]()
    for member in members:
        base = member.name.rpartition("/")[2]
        # `__…__` is what WebDataset calls its own files, and skips; old tars mark a folder by a slash alone.
        if member.kind in _NO_FILES or not base or base.startswith(("__", ".")):
            continue
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
        what = _OTHER_KINDS.get(member.kind, f"no file (type {member.kind!r})")
        return f"the member {member.name!r} is {what}: its bytes are not there as they are"
    problem = name_problem(member.name)
    return None if problem is None else f"the member {member.name!r}: {problem}"


def _audio_problem(parts: dict[str, Member]) -> str | None:
    audio = audio_members(parts)
    if len(audio) == 1:
        return None
    return f"one audio member expected, found {len(audio)} among {', '.join(parts) or 'members without an ending'}"
