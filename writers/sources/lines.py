"""Lines of a text file with their numbers, read as bytes, so that one bad byte spoils one line and not the file."""

from collections.abc import Iterator
from dataclasses import dataclass

from uttershard.pipeline.errors import DataError

from ..byte_files import ArchiveError, SeekableGzip, buffered
from ..corpus_path import CorpusPath, open_path

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its end; `source` is `file:number`."""

    source: str
    data: bytes


class NotUtf8Error(ValueError):
    """A line is not UTF-8; the message names the byte and its place."""


def read_lines(path: CorpusPath, *, blank: bool = False) -> Iterator[Line]:
    """Yield the lines of a file.

    Args:
        path: The file; one called `.gz` is unpacked.
        blank: Whether blank lines are wanted, too (inside a quoted CSV field they are text).

    Raises:
        DataError: The file does not exist.
        StorageError: It can't be read.
    """
    with open_path(path) as file:
        name = path.name
        lines = buffered(SeekableGzip(file)) if path.name.endswith(".gz") else file
        try:
            for number, data in enumerate(lines, 1):
                line = data.removeprefix(_BOM) if number == 1 else data
                line = line.rstrip(b"\r\n")
                if blank or line.strip():
                    yield Line(f"{name}:{number}", line)
        except ArchiveError as error:
            raise DataError(f"{path}: {error}") from error


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
