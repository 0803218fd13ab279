"""Addresses of audio that is not a file of its own, as a listing holds them.

    /data/x.tar#range=1536+32044                 bytes of a file: <offset>+<bytes>
    /data/x.tar.gz#gzrange=1536+32044            the same, of what the file unpacks to
    /data/x.zip#zip=60+900+1200+8+3735928559     a member of a zip: <local header>+<packed>+<bytes>+<method>+<crc32>
    /data/x.ark#ark=5                            an entry of a Kaldi ark, at its offset
    /data/x.parquet#cell=0+17+audio.bytes        a value of a Parquet file: <row group>+<row in it>+<column>
    <any>#channels=0,2                           only these channels of it
    join:["<any>","<any>"]                       the channels of the first, then those of the second

An address before the mark is a local path or anything fsspec knows. Each form says all that is needed to read just
those bytes, so a worker opens no directory of an archive, and the address of a corpus stays at the front of it.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

JOIN = "join:"
"""Prefix of an address that joins channels; local paths in a listing are absolute, so none begins with it."""

_PLACE = re.compile(r"(.+)#(range|gzrange|zip|ark|cell)=([0-9][^#/]*)", re.DOTALL)
_CHANNELS = re.compile(r"(.+)#channels=([0-9]+(?:,[0-9]+)*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a file the bytes are; `kind` is empty if they are the whole file."""

    address: str
    kind: str = ""
    numbers: tuple[int, ...] = ()
    column: str = ""
    """Of a `cell`."""


@dataclass(frozen=True, slots=True)
class Part:
    """Channels of one encoded file; all of them if `channels` is None."""

    uri: str
    channels: tuple[int, ...] | None = None


def range_uri(address: str, offset: int, nbytes: int) -> str:
    """Name some bytes of a file.

    Example:
        >>> range_uri("s3://bucket/x.tar", 1536, 32044)
        's3://bucket/x.tar#range=1536+32044'
    """
    return f"{address}#range={offset}+{nbytes}"


def gzip_range_uri(address: str, offset: int, nbytes: int) -> str:
    """Name some bytes of what a gzip file unpacks to."""
    return f"{address}#gzrange={offset}+{nbytes}"


def zip_uri(address: str, header: int, packed: int, nbytes: int, method: int, crc: int) -> str:
    """Name a member of a zip."""
    return f"{address}#zip={header}+{packed}+{nbytes}+{method}+{crc}"


def ark_uri(address: str, offset: int) -> str:
    """Name an entry of a Kaldi ark."""
    return f"{address}#ark={offset}"


def cell_uri(address: str, group: int, row: int, column: str) -> str:
    """Name a value of a Parquet file."""
    return f"{address}#cell={group}+{row}+{column}"


def channels_uri(uri: str, channels: Sequence[int]) -> str:
    """Name some channels of audio.

    Example:
        >>> channels_uri("/data/call.wav", [1])
        '/data/call.wav#channels=1'
    """
    return f"{uri}#channels={','.join(map(str, channels))}"


def join_uri(uris: Sequence[str]) -> str:
    """Name the channels of several files, one after the other, as one audio."""
    return uris[0] if len(uris) == 1 else JOIN + json.dumps(list(uris), ensure_ascii=False, separators=(",", ":"))


def parse_place(uri: str) -> Place:
    """Take an address apart (without channels).

    Example:
        >>> parse_place("/data/x.tar#range=1536+32044")
        Place(address='/data/x.tar', kind='range', numbers=(1536, 32044), column='')
        >>> parse_place("/data/odd#name.wav")
        Place(address='/data/odd#name.wav', kind='', numbers=(), column='')
    """
    match = _PLACE.fullmatch(uri)
    if match is None:
        return Place(uri)
    address, kind, rest = match.groups()
    if kind == "cell":
        group, row, column = rest.split("+", 2)
        return Place(address, kind, (int(group), int(row)), column)
    fields = rest.split("+")
    return Place(address, kind, tuple(map(int, fields))) if all(map(str.isdigit, fields)) else Place(uri)


def parse_parts(uri: str) -> tuple[Part, ...]:
    """Return the files and channels that an address is made of; one part with all channels for most.

    Example:
        >>> parse_parts('join:["/a.wav","/b.wav#channels=1"]')
        (Part(uri='/a.wav', channels=None), Part(uri='/b.wav', channels=(1,)))
    """
    if uri.startswith(JOIN):
        return tuple(part for inner in json.loads(uri.removeprefix(JOIN)) for part in parse_parts(inner))
    match = _CHANNELS.fullmatch(uri)
    if match is None:
        return (Part(uri),)
    return (Part(match[1], tuple(map(int, match[2].split(",")))),)
