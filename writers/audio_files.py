"""Opening the audio that a listing names: local file, fsspec address, bytes within a file, or command."""

import contextlib
import io
import os
import subprocess
from collections.abc import Iterator
from functools import lru_cache
from typing import BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq
from uttershard.pipeline.dataset.files import local_path
from uttershard.pipeline.errors import StorageError
from uttershard.pipeline.reading.codecs import AudioError

from .byte_files import RangeFile, ReusedBuffer, SeekableGzip, buffered, open_zip_member
from .listing import PIPE
from .locators import Place, parse_place
from .source_store import open_filesystem, source_identity

_STDERR_SHOWN = 300
_ARK_HEAD_BYTES = 16
_AHEAD_BYTES = 1 << 16

_VERDICTS = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
"""Errors that say something of the file, and nothing of the file system."""


class RowGroupError(AudioError):
    """A row group of a Parquet file can't be decoded, and with it none of its values."""


@contextlib.contextmanager
def open_audio(uri: str) -> Iterator[BinaryIO]:
    """Open audio for reading, seekable.

    Args:
        uri: As in a listing, one part of it (see `locators.parse_parts`).

    Raises:
        AudioError: It can't be had: missing, forbidden, damaged, or the command failed. Other errors of a file system
            may pass, so they are not turned into a verdict on the file; a task that meets one is tried again.
    """
    try:
        if uri.startswith(PIPE):
            yield io.BytesIO(_run(uri.removeprefix(PIPE)))
            return
        place = parse_place(uri)
        if place.kind == "cell":
            yield io.BytesIO(_read_cell(place))
        elif place.kind == "gzrange":
            offset, nbytes = place.numbers
            yield buffered(
                RangeFile(cast(BinaryIO, _gzip_stream(place.address, file_stamp(place.address))), offset, nbytes)
            )
        else:
            with open_address(place.address) as file:
                yield _open_place(file, place)
    except _VERDICTS as error:
        raise _unreadable(uri, error) from error


def read_audio(uri: str, buffer: ReusedBuffer) -> bytes | memoryview:
    """Return all bytes of audio (see `open_audio`); those of a local file hold until the buffer is used again."""
    path = local_path(uri)
    if path is None or "#" in path or uri.startswith(PIPE):
        with open_audio(uri) as file:
            return file.read()
    try:
        with open(path, "rb", buffering=0) as raw:  # noqa: PTH123
            return buffer.read(raw, os.fstat(raw.fileno()).st_size)
    except _VERDICTS as error:
        raise _unreadable(uri, error) from error


def _unreadable(uri: str, error: OSError) -> AudioError:
    return AudioError(f"the audio file {uri} can't be read ({error.strerror or error})")


def raise_if_it_may_come_back(error: AudioError | OSError, uri: str) -> None:
    """Tell a source that is away from one that is bad: the first is tried again, and never quarantined.

    A local file was there when the corpus was listed; gone now means a file server in trouble, or a changed corpus. So
    does a folder that may no longer be entered, as when the ticket for a file server has expired.

    Raises:
        StorageError: It is away.
    """
    path = local_path(uri)
    gone = path is not None and (
        isinstance(error.__cause__, FileNotFoundError)
        or (isinstance(error.__cause__, PermissionError) and not os.path.exists(path))  # noqa: PTH110
    )
    if gone or not isinstance(error, AudioError):
        raise StorageError(
            f"{uri} can't be read ({error.__cause__ if gone else error}), but it was there when the corpus was listed"
        ) from error


def is_damage(error: Exception) -> bool:
    """Tell bytes that Arrow can't decode from bytes that can't be read: it has an OSError without errno for the first.

    What the file under it raises passes through Arrow as it is, with its number or as a class of its own.
    """
    return not isinstance(error, OSError) or (type(error) is OSError and error.errno is None)


def with_address(reason: str, uri: str) -> str:
    """Add the file to a reason that does not name it: "empty file" alone helps nobody."""
    return reason if uri in reason or uri.startswith(PIPE) else f"{reason} ({uri})"


def open_address(address: str) -> contextlib.AbstractContextManager[BinaryIO]:
    """Open a local file, or a remote one that reads little more than it is asked for.

    The default of s3fs is to read 50 MB ahead, which turns the headers of a tar into all of it.
    """
    path = local_path(address)
    if path is not None:
        return open(path, "rb")  # noqa: PTH123
    filesystem, inner = open_filesystem(address)
    opened = filesystem.open(inner, "rb", block_size=_AHEAD_BYTES, cache_type="readahead")
    return cast("contextlib.AbstractContextManager[BinaryIO]", opened)


def _open_place(file: BinaryIO, place: Place) -> BinaryIO:
    if place.kind == "range":
        return buffered(RangeFile(file, *place.numbers))
    if place.kind == "zip":
        return open_zip_member(file, *place.numbers)
    if place.kind == "ark":
        return buffered(RangeFile(file, *_find_in_ark(file, place.numbers[0])))
    return file


def _find_in_ark(file: BinaryIO, offset: int) -> tuple[int, int]:
    """Return offset and size of the encoded audio of an ark's entry.

        RIFF <size u32> …                  a WAV as it is (Kaldi's wav-copy)
        fLaC …                             FLAC, to the end of the ark
        AUDIO <n: u8> <size: n bytes> …    kaldiio's container of any encoded file

    All else in arks is matrices: features, or samples without their rate.
    """
    size = file.seek(0, 2)
    file.seek(offset)
    head = file.read(_ARK_HEAD_BYTES)
    if head[:4] == b"RIFF":
        stated = int.from_bytes(head[4:8], "little") + 8
        return offset, min(stated, size - offset)
    if head[:4] == b"fLaC":
        return offset, size - offset
    if head[:5] == b"AUDIO" and len(head) > 5 + head[5]:
        start = 6 + head[5]
        return offset + start, int.from_bytes(head[6:start], "little")
    raise AudioError(f"no audio at byte {offset} of the ark: starts with {head[:5]!r} (a matrix of features?)")


def file_stamp(address: str) -> tuple[int, int]:
    """Return what changes when a local file does, so that a cached index of it is not used for another."""
    path = local_path(address)
    if path is None:
        return 0, source_identity()
    found = os.stat(path)  # noqa: PTH116
    return found.st_size, found.st_mtime_ns


@lru_cache(maxsize=4)
def _gzip_stream(address: str, stamp: tuple[int, int]) -> SeekableGzip:
    """Keep a packed archive open: its snapshots make the next member cheap."""
    return SeekableGzip(open_address(address).__enter__())


@lru_cache(maxsize=1)
def _row_group(address: str, stamp: tuple[int, int], group: int, column: str) -> pa.ChunkedArray:
    """Keep the row group read last: values are read in the order of their groups."""
    with open_address(address) as file:
        try:
            with pq.ParquetFile(file) as parquet:
                table = parquet.read_row_group(group, columns=[column], use_threads=False)
        except (OSError, pa.ArrowException) as error:
            if not is_damage(error):
                raise
            reason = " ".join(str(error).split())  # Arrow's has several lines
            raise RowGroupError(f"row group {group} of {address} is damaged ({reason})") from error
    values = table.column(0)
    for name in column.split(".")[1:]:
        values = pa.chunked_array([chunk.field(name) for chunk in values.chunks])
    return values


def read_row_group(place: Place) -> pa.ChunkedArray:
    """Return all values of the column and row group of a cell."""
    return _row_group(place.address, file_stamp(place.address), place.numbers[0], place.column)


def _read_cell(place: Place) -> bytes:
    group, row = place.numbers
    data = read_row_group(place)[row].as_py()
    if not data:
        raise AudioError(f"no audio in row {row} of row group {group} of {place.address}")
    return bytes(data)


def _run(command: str) -> bytes:
    # A pipe in wav.scp is a shell command by definition; it gets here only if the user allowed pipes.
    result = subprocess.run(command, shell=True, capture_output=True, stdin=subprocess.DEVNULL, check=False)  # noqa: S602
    if result.returncode:
        tail = result.stderr.decode("utf-8", "backslashreplace").strip()[-_STDERR_SHOWN:]
        raise AudioError(f"the command failed with status {result.returncode}: {command!r}: {tail or 'no message'}")
    if not result.stdout:
        raise AudioError(f"the command gave no audio: {command!r}")
    return result.stdout
