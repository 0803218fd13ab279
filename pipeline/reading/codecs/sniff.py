"""Which codec a file is, by content: names lie, and tars of other tools have their own endings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import BinaryIO

from .base import AudioError, Codec, file_size, read_at

# Enough for the largest two MP3 frames (2 x 2,881 bytes) behind the zero padding that some taggers leave.
HEAD_BYTES = 16_384

_ID3_HEADER_BYTES = 10
_ID3_FOOTER_FLAG = 0x10


def _id3_bytes(head: memoryview) -> int:
    """Bytes of the ID3v2 tag that `head` starts with, 0 if there is none."""
    if len(head) < _ID3_HEADER_BYTES or bytes(head[:3]) != b"ID3":
        return 0
    sizes = head[6:10]
    if any(byte & 0x80 for byte in sizes):
        return 0
    # "Synchsafe": seven bits a byte, so that no tag contains an MP3 frame sync.
    body = sizes[0] << 21 | sizes[1] << 14 | sizes[2] << 7 | sizes[3]
    footer = _ID3_HEADER_BYTES if head[5] & _ID3_FOOTER_FLAG else 0
    return _ID3_HEADER_BYTES + body + footer


def id3_end(data: memoryview) -> int:
    """Where the audio starts behind any ID3v2 tags; most files have none."""
    end = 0
    while step := _id3_bytes(data[end : end + _ID3_HEADER_BYTES]):
        end += step
    return end


def id3_end_of_file(file: BinaryIO) -> int:
    """As `id3_end`, for a seekable file."""
    end = 0
    while step := _id3_bytes(read_at(file, end, _ID3_HEADER_BYTES)):
        end += step
    return end


def sniff(data: memoryview, codecs: Iterable[Codec]) -> Codec:
    """The codec of a whole file in memory.

    Raises:
        AudioError: It is empty or none of `codecs`.
    """
    if not len(data):
        raise AudioError("empty file")
    start = id3_end(data)
    return _match(data[start : start + HEAD_BYTES], codecs)


def sniff_file(file: BinaryIO, codecs: Iterable[Codec]) -> Codec:
    """The codec of a seekable file.

    Raises:
        AudioError: It is empty or none of `codecs`.
    """
    if not file_size(file):
        raise AudioError("empty file")
    return _match(read_at(file, id3_end_of_file(file), HEAD_BYTES), codecs)


def _match(head: memoryview, codecs: Iterable[Codec]) -> Codec:
    for codec in codecs:
        if codec.matches(head):
            return codec
    if not len(head):
        raise AudioError("truncated: the file ends within its ID3 tag")
    raise AudioError(f"not audio: starts with {bytes(head[:12])!r}, which no supported codec does")
