"""What is in an archive: the names of its files and where their bytes are, read without unpacking it.

    .tar          the headers are walked; a member is a range of bytes
    .tar.gz, .tgz the stream is unpacked once, to find the headers; a member is a range of what it unpacks to
    .zip          the directory at its end; a member is found by its local header

Nothing is ever written, so no name can do harm; names that try to, links, and what claims an impossible size are
refused by name all the same: whoever unpacks such an archive later should know.
"""

import itertools
import posixpath
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO

from uttershard.pipeline.dataset.tar import TarError
from uttershard.pipeline.errors import DataError, StorageError

from .audio_files import open_address
from .byte_files import ArchiveError, SeekableGzip, buffered, zip_problem
from .listing import Refusal, printable
from .locators import gzip_range_uri, range_uri, zip_uri
from .tar_files import walk_tar_file

ARCHIVE_ENDINGS = (".tar", ".tar.gz", ".tgz", ".zip")

_GZIP = b"\x1f\x8b"
_FILE_KINDS = "07"
_LINK_KINDS = {"1": "a hard link", "2": "a symbolic link"}
_NO_FILES = "5DV"
"""Folders, GNU's lists of what an incremental archive left out, and volume labels."""


@dataclass(frozen=True)
class Archive:
    """The files of an archive: name -> address of its bytes, in the order of the archive."""

    address: str
    uris: dict[str, str] = field(default_factory=dict)
    refused: list[Refusal] = field(default_factory=list)

    def add(self, name: str, uri: str) -> None:
        """Take a file in, unless its name can't be trusted."""
        problem = name_problem(name)
        plain = posixpath.normpath(name)
        if problem is None and plain in self.uris:
            problem = "the archive has this name twice"
        if problem is not None:
            self.refuse(name, problem)
        else:
            self.uris[plain] = uri

    def refuse(self, name: str, reason: str) -> None:
        """Note a member that is not read."""
        self.refused.append(Refusal(None, printable(f"{self.address}: {name}"), printable(reason)))


def name_problem(name: str) -> str | None:
    """Say why the name of a member is refused.

    Example:
        >>> name_problem("a/b.wav"), name_problem("../../etc/passwd")
        (None, 'the name leaves the folder of the archive')
    """
    if not name.strip("/."):
        return "the name is empty"
    if "\0" in name:
        return "the name holds a zero byte"
    if name.startswith(("/", "\\")) or name[1:3] in (":\\", ":/"):
        return "the name is absolute"
    if ".." in name.replace("\\", "/").split("/"):
        return "the name leaves the folder of the archive"
    return None


def is_archive(address: str) -> bool:
    """Say whether an address has the ending of an archive."""
    return address.lower().endswith(ARCHIVE_ENDINGS)


def read_archive(address: str) -> Archive:
    """List an archive.

    Raises:
        DataError: It is damaged, cut, or a bomb.
        StorageError: It can't be read.
    """
    with open_file(address) as file:
        try:
            if address.lower().endswith(".zip"):
                return _read_zip(address, file)
            # Downloads are unpacked on the way and keep their name, or the other way round.
            if file.read(2) != _GZIP:
                return _read_tar(address, file, file.seek(0, 2))
            return _read_tar(address, buffered(SeekableGzip(file)), None)
        except (TarError, ArchiveError) as error:
            raise DataError(f"{address}: {error}") from error


@contextmanager
def open_file(address: str) -> Iterator[BinaryIO]:
    """Open a file of a corpus by its address.

    Raises:
        DataError: It does not exist.
        StorageError: It can't be read.
    """
    try:
        with open_address(address) as file:
            yield file
    except (FileNotFoundError, NotADirectoryError) as error:
        within = any(map(is_archive, address.split("/")[:-1]))
        why = "tars, Parquet and Arrow files can't be read within an archive: unpack it" if within else "does not exist"
        raise DataError(f"{address}: {why}") from error
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{address}: can't be read ({error.strerror or error})") from error


def _read_tar(address: str, file: BinaryIO, size: int | None) -> Archive:
    archive = Archive(address)
    make_uri = gzip_range_uri if size is None else range_uri
    for member in walk_tar_file(file, size):
        if member.kind in _LINK_KINDS:
            archive.refuse(member.name, f"{_LINK_KINDS[member.kind]}; links are not followed")
        elif member.kind in _FILE_KINDS:
            archive.add(member.name, make_uri(address, member.start, member.size))
        elif member.kind not in _NO_FILES:
            archive.refuse(member.name, f"a tar member of type {member.kind!r}, which is no file")
    return archive


def _read_zip(address: str, file: BinaryIO) -> Archive:
    archive = Archive(address)
    try:
        members = zipfile.ZipFile(file).infolist()
    except (zipfile.BadZipFile, ValueError, OverflowError, NotImplementedError) as error:
        raise DataError(f"{address}: not a zip, or a damaged one ({error})") from error
    _refuse_overlaps(members)
    for member in members:
        problem = zip_problem(member.compress_size, member.file_size, member.compress_type)
        if member.is_dir():
            continue
        if member.flag_bits & 1:
            problem = "encrypted"
        elif stat.S_ISLNK(member.external_attr >> 16):
            problem = "a symbolic link; links are not followed"
        if problem is not None:
            archive.refuse(member.filename, problem)
            continue
        place = (member.header_offset, member.compress_size, member.file_size, member.compress_type, member.CRC)
        archive.add(member.filename, zip_uri(address, *place))
    return archive


def _refuse_overlaps(members: list[zipfile.ZipInfo]) -> None:
    """Members that share their bytes are how a small zip comes to unpack to petabytes."""
    ordered = sorted(members, key=lambda member: member.header_offset)
    for member, after in itertools.pairwise(ordered):
        if member.header_offset + member.compress_size > after.header_offset:
            raise ArchiveError(f"{after.filename!r} lies within {member.filename!r}: taken for a bomb")
