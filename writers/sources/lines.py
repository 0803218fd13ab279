"""Lines of a text file with their numbers, read as bytes, so that one bad byte spoils one line and not the file."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from uttershard.pipeline.errors import DataError

from ..byte_files import ArchiveError, SeekableGzip, buffered
from ..corpus_path import CorpusPath, open_path

_T = TypeVar("_T")
BOM = b"\xef\xbb\xbf"
"""What some tools of Windows begin a text file with."""


_UTF16 = (b"\xff\xfe", b"\xfe\xff")


class Line(NamedTuple):
    """A line without its end; a tuple, since a million of them are made in a loop."""

    file: str
    number: int
    data: bytes

    @property
    def source(self) -> str:
        """Return `file:number`."""
        return f"{self.file}:{self.number}"


class NotUtf8Error(ValueError):
    """A line is not UTF-8; the message names the byte and its place."""


def read_lines(path: CorpusPath, *, blank: bool = False) -> Iterator[Line]:
    """Yield the lines of a file.

    Args:
        path: The file; one called `.gz` is unpacked.
        blank: Whether blank lines are wanted, too (inside a quoted CSV field they are text).

    Raises:
        DataError: The file does not exist, or is UTF-16.
        StorageError: It can't be read.
    """
    with open_path(path) as file:
        name = path.name
        lines = buffered(SeekableGzip(file)) if path.name.endswith(".gz") else file
        try:
            for number, data in enumerate(lines, 1):
                if number == 1:
                    refuse_utf16(path, data)
                line = data.removeprefix(BOM) if number == 1 else data
                line = line.rstrip(b"\r\n")
                if blank or (line and not line.isspace()):
                    yield Line(name, number, line)
        except ArchiveError as error:
            raise DataError(f"{path}: {error}") from error


def batched(lines: Iterator[_T], count: int = 4096) -> Iterator[list[_T]]:
    """Yield runs of up to `count`."""
    while batch := list(itertools.islice(lines, count)):
        yield batch


def refuse_utf16(path: CorpusPath, head: bytes) -> None:
    """Look at the beginning of a text file, so that one of UTF-16 gets one message and not one for each line.

    Raises:
        DataError: It is of UTF-16 (or UTF-32), which shows in its byte order mark, or in zeros between its letters.
    """
    if head.startswith(_UTF16) or (b"\0" in head[1:2] and head[:1] != b"\0"):
        raise DataError(
            f"{path}: not UTF-8 but UTF-16. Convert it: iconv -f UTF-16 -t UTF-8 {path.name} > utf8-{path.name}"
        )


def decode(data: bytes) -> str:
    """Decode UTF-8.

    Raises:
        NotUtf8Error: It is not.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotUtf8Error(f"not UTF-8: byte 0x{data[error.start]:02x} at position {error.start + 1}") from error


def show(data: bytes) -> str:
    """Return bytes as text for a message, what is not UTF-8 as escapes."""
    return data.decode("utf-8", "backslashreplace")
