"""Writing a shard's tar, byte for byte what `webdataset.TarWriter(stream, mtime=0, encoder=False)` writes.

Headers are made by the standard library's tarfile and written here, for two reasons: webdataset imports torch, which
would cost every packing process two seconds and 200 MB, and the checksum of a span needs the bytes of just that span.
"""

import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

import xxhash
from uttershard.pipeline.dataset.digest import FileDigest
from uttershard.pipeline.dataset.tar import BLOCK, RECORD, padded

_END_BLOCKS = 2
_ZEROS = bytes(RECORD)


@dataclass(frozen=True, slots=True)
class Span:
    """Where an utterance lies in its tar, and the xxh3_64 of those bytes."""

    offset: int
    nbytes: int
    checksum: int


class ShardTar:
    """A tar being written to a stream: utterance after utterance, then `close`."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._digest = FileDigest()

    @property
    def nbytes(self) -> int:
        """Bytes written so far."""
        return self._digest.nbytes

    def add(self, name: str, members: Mapping[str, bytes]) -> Span:
        """Write one utterance.

        Args:
            name: Of its members, without ending.
            members: Ending -> data; written in the order of their endings.
        """
        offset = self._digest.nbytes
        checksum = xxhash.xxh3_64()
        for ending in sorted(members):
            data = members[ending]
            for piece in (_header(f"{name}.{ending}", len(data)), data, _ZEROS[: padded(len(data)) - len(data)]):
                self._stream.write(piece)
                self._digest.update(piece)
                checksum.update(piece)
        return Span(offset, self._digest.nbytes - offset, checksum.intdigest())

    def close(self) -> str:
        """Write the end mark and return the digest of the whole file."""
        tail = end_mark(self._digest.nbytes)
        self._stream.write(tail)
        self._digest.update(tail)
        return self._digest.text()


def end_mark(nbytes: int) -> bytes:
    """Return what ends a tar whose members take `nbytes`: two empty blocks, then zeros up to a whole record."""
    end = nbytes + _END_BLOCKS * BLOCK
    return bytes(-(-end // RECORD) * RECORD - nbytes)


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o444, 0
    info.uname = info.gname = "bigdata"
    return info.tobuf(tarfile.USTAR_FORMAT)
