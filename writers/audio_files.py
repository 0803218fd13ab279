"""Opening the audio that a listing names: local file, fsspec address or command."""

import contextlib
import io
import subprocess
from collections.abc import Iterator
from typing import BinaryIO, cast

import fsspec
from uttershard.pipeline.dataset.files import local_path
from uttershard.pipeline.reading.codecs import AudioError

from .listing import PIPE

_STDERR_SHOWN = 300


@contextlib.contextmanager
def open_audio(uri: str) -> Iterator[BinaryIO]:
    """Open audio for reading, seekable.

    Raises:
        AudioError: It can't be had: missing, forbidden, or the command failed. Other errors of a file system may pass,
            so they are not turned into a verdict on the file; a task that meets one is tried again.
    """
    try:
        if uri.startswith(PIPE):
            yield io.BytesIO(_run(uri.removeprefix(PIPE)))
            return
        path = local_path(uri)
        with open(path, "rb") if path is not None else fsspec.open(uri, "rb") as file:  # noqa: PTH123
            yield cast(BinaryIO, file)
    except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
        raise AudioError(f"the audio file {uri} can't be read ({error.strerror or error})") from error


def with_address(reason: str, uri: str) -> str:
    """Add the file to a reason that does not name it: "empty file" alone helps nobody."""
    return reason if uri in reason or uri.startswith(PIPE) else f"{reason} ({uri})"


def _run(command: str) -> bytes:
    # A pipe in wav.scp is a shell command by definition; it gets here only if the user allowed pipes.
    result = subprocess.run(command, shell=True, capture_output=True, stdin=subprocess.DEVNULL, check=False)  # noqa: S602
    if result.returncode:
        tail = result.stderr.decode("utf-8", "backslashreplace").strip()[-_STDERR_SHOWN:]
        raise AudioError(f"the command failed with status {result.returncode}: {command!r}: {tail or 'no message'}")
    if not result.stdout:
        raise AudioError(f"the command gave no audio: {command!r}")
    return result.stdout
