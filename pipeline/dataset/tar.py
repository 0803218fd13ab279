"""Tar headers: walk the members of a whole tar or of one utterance's span, without copying a byte of them.

    offset  size  field                      a member: one 512-byte header, its data, zeros up to the next 512
         0   100  name                       an utterance's span: the members of one utterance, one after the other
       124    12  size (octal or base-256)   a tar ends with two blocks of zeros
       148     8  checksum of the header
       156     1  type (0 file, L and K GNU long name and link, x pax header of the next member, g pax global)
       257     6  magic
       345   155  prefix of the name (USTAR)

Our own shards hold plain USTAR files only; long names and pax headers are read because adopted tars have them.
Source: POSIX.1-1988 (ustar), POSIX.1-2001 (pax), GNU tar manual, "Basic Tar Format".
"""

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import DataError, StorageError

BLOCK = 512
RECORD = 20 * BLOCK
"""tar pads a whole archive to this; so do we, to give the bytes that other tools give."""

_PLAIN = struct.Struct("100s 24x 11s 21x c 188x c")
"""Name, octal digits of the size, type flag, first byte of the prefix."""

_ZERO_BLOCK = bytes(BLOCK)
_EXTENSIONS = "LKxg"
_WITHOUT_DATA = "123456"
"""Links, devices, folders and FIFOs: some archivers write the size of what they point to, none writes its data."""
_MAX_EXTENSION_BYTES = 1 << 20
"""A pax or long-name header above this is refused: the largest names anyone has are a few KB."""
_LONGEST_DECIMAL = 20
"""A number with more digits is above 2**63; int() refuses some thousands of them with an error of its own."""


class TarError(DataError):
    """A tar is damaged or is no tar; the message says at which offset."""


class TarEndError(TarError):
    """The members are whole, but what follows the last one is not the end of a tar."""


class Member(NamedTuple):
    """One member of a tar; all offsets count from the start of the buffer walked."""

    name: str
    header: int
    """Offset of its first header (a long-name or pax header before it, if it has one)."""
    start: int
    """Offset of its data."""
    size: int
    """Bytes of its data."""
    kind: str
    """The type flag: "0" for a file, "5" a folder, "1" and "2" links, …"""

    @property
    def end(self) -> int:
        """Offset after its padding: where the next header is."""
        return self.start + padded(self.size)


def map_tar(path: Path) -> memoryview:
    """Map a local tar into memory; it is unmapped when the last view of it goes.

    Raises:
        DataError: It does not exist.
        StorageError: It could not be opened.
    """
    try:
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:  # mmap refuses an empty file
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError as error:
        raise DataError(f"{path}: does not exist") from error
    except OSError as error:
        raise StorageError(f"{path}: could not be opened ({type(error).__name__}: {error})") from error


def padded(size: int) -> int:
    """Round a data size up to whole blocks."""
    return -(-size // BLOCK) * BLOCK


def split_name(name: str) -> tuple[str, str]:
    """Split a member's name at the first dot of its last part, as WebDataset does.

    Example:
        >>> split_name("a/b.c.FLAC")
        ('a/b', 'c.flac')
    """
    folder, slash, base = name.rpartition("/")
    stem, _, ending = base.partition(".")
    return folder + slash + stem, ending.lower()


def walk_span(buffer: memoryview) -> Iterator[Member]:
    """Yield the members of one utterance's span; the span ends where its last member does.

    Header checksums are not tested: the span's own checksum has been.
    """
    position, length = 0, len(buffer)
    while position < length:
        member = _read_plain(buffer, position) or _read_member(buffer, position, verify=False)
        if member is None:
            raise TarError(f"an empty block at offset {position} inside an utterance's span")
        yield member
        position = member.end


def walk_tar(buffer: memoryview) -> Iterator[Member]:
    """Yield all members of a whole tar, testing each header, and raise TarError where it is damaged or cut."""
    position = 0
    while True:
        if position == len(buffer):
            raise TarEndError(f"the tar ends at byte {position} without its end mark: it has been cut")
        if position + BLOCK > len(buffer):
            raise TarError(f"the tar ends at byte {len(buffer)} without its end mark: it has been cut")
        member = _read_member(buffer, position, verify=True)
        if member is None:
            _check_end(buffer[position:], position)
            return
        yield member
        position = member.end


def _check_end(rest: memoryview, position: int) -> None:
    if len(rest) < 2 * BLOCK:
        where = position + len(rest)
        raise TarEndError(f"the tar ends at byte {where} inside its end mark: it has been cut")
    if bytes(rest).count(0) != len(rest):
        raise TarEndError(f"data after an empty block at offset {position}: the tar is damaged")


def _read_plain(buffer: memoryview, position: int) -> Member | None:
    """Read the header of a plain file as our shards have them, in half the time; None for anything else."""
    start = position + BLOCK
    if start > len(buffer):
        return None
    name, digits, kind, prefix = _PLAIN.unpack_from(buffer, position)
    if kind != b"0" or prefix != b"\0" or digits.strip(b"01234567"):
        return None
    size = int(digits, 8)
    if start + size > len(buffer):
        return None
    return Member(name.partition(b"\0")[0].decode("utf-8", "surrogateescape"), position, start, size, kind="0")


def _read_member(buffer: memoryview, position: int, *, verify: bool) -> Member | None:
    header_at, name, size_override, is_sparse = position, None, None, False
    while True:
        header = bytes(buffer[position : position + BLOCK])
        if len(header) < BLOCK:
            raise TarError(f"the tar ends inside a header at offset {position}: it has been cut")
        if header == _ZERO_BLOCK and position == header_at:
            return None
        if verify:
            _check_header(header, position)
        kind = chr(header[156]) if header[156] else "0"
        size = _number(header[124:136], position)
        start = position + BLOCK
        if kind not in _EXTENSIONS:
            size = size if size_override is None else size_override
            size = 0 if kind in _WITHOUT_DATA else size
            start += _sparse_map_bytes(buffer, header, start) if kind == "S" else 0
            if start + size > len(buffer):
                raise TarError(
                    f"the member at offset {header_at} promises {size} bytes, only {len(buffer) - start} follow: "
                    "the tar has been cut"
                )
            return Member(name or _ustar_name(header), header_at, start, size, "S" if is_sparse else kind)
        if size > _MAX_EXTENSION_BYTES or start + size > len(buffer):
            raise TarError(f"an extended header at offset {position} promises {size} bytes: the tar is damaged")
        data = bytes(buffer[start : start + size])
        if kind == "L":
            name = data.rstrip(b"\0").decode("utf-8", "surrogateescape")
        elif kind == "x":
            fields = _pax_fields(data, position)
            is_sparse = is_sparse or any(field.startswith("GNU.sparse.") for field in fields)
            name = fields.get("GNU.sparse.name") or fields.get("path", name)
            size_override = _decimal(fields["size"], position) if "size" in fields else size_override
        position = start + padded(size)


def _sparse_map_bytes(buffer: memoryview, header: bytes, start: int) -> int:
    """Return the size of the blocks that go on with the map of a GNU sparse file, between its header and its data."""
    nbytes, more = 0, header[482]
    while more:
        block = bytes(buffer[start + nbytes : start + nbytes + BLOCK])
        if len(block) < BLOCK:
            raise TarError(f"the tar ends inside the map of a sparse file at offset {start}: it has been cut")
        nbytes, more = nbytes + BLOCK, block[504]
    return nbytes


def _check_header(header: bytes, position: int) -> None:
    stored = _number(header[148:156], position)
    # The checksum field itself counts as eight spaces.
    if stored != sum(header) - sum(header[148:156]) + 8 * 0x20:
        raise TarError(f"the header at offset {position} is damaged (its checksum does not match)")


def _number(field: bytes, position: int) -> int:
    if field[0] == 0x80:  # base-256, GNU's form for sizes of 8 GiB and more
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b"\0 ")
    if digits.strip(b"01234567"):  # int() would also take signs and underscores
        raise TarError(f"the header at offset {position} is damaged (not a number: {field!r})")
    return int(digits or b"0", 8)


def _decimal(digits: str, position: int) -> int:
    if not (digits.isascii() and digits.isdigit() and len(digits) < _LONGEST_DECIMAL):
        raise TarError(f"the pax header at offset {position} is damaged (not a number: {digits[:40]!r})")
    return int(digits)


def _ustar_name(header: bytes) -> str:
    name = header[:100].split(b"\0", 1)[0]
    if header[257:263] == b"ustar\0":
        prefix = header[345:500].split(b"\0", 1)[0]
        name = prefix + b"/" + name if prefix else name
    return name.decode("utf-8", "surrogateescape")


def _pax_fields(data: bytes, position: int) -> dict[str, str]:
    """Parse `<length> <key>=<value>\\n` records; the length counts the whole record."""
    fields: dict[str, str] = {}
    at = 0
    while at < len(data):
        digits, space, _ = data[at:].partition(b" ")
        length = _decimal(digits[:_LONGEST_DECIMAL].decode("ascii", "replace"), position)
        if not space or not len(digits) + 1 < length <= len(data) - at:
            raise TarError(f"the pax header at offset {position} is damaged")
        record = data[at + len(digits) + 1 : at + length - 1]
        key, _, value = record.partition(b"=")
        fields[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        at += length
    return fields
