"""What every codec is made of: one record of functions, one record of facts, one error.

A codec is one file of this package that ends in a `Codec`; the package's `CODECS` tuple is the only list of them.
"""

from __future__ import annotations

import mmap
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from .read_only import ReadOnlyFile

Depth: TypeAlias = Literal["PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"]
DType: TypeAlias = Literal["int16", "float32"]
Samples: TypeAlias = NDArray[np.int16] | NDArray[np.float32]
Exact: TypeAlias = Samples | NDArray[np.int32] | NDArray[np.float64]
Scratch: TypeAlias = NDArray[np.int16] | NDArray[np.float32] | None


_LARGEST_IN_MEMORY = 64 << 20
_COPIED_AT_ONCE = 8 << 20


class AudioError(DataError):
    """Encoded audio is empty, cut, damaged or no audio; a short reason, to which the caller adds whose it is."""


@dataclass(frozen=True, slots=True)
class AudioInfo:
    """What is known of one encoded file before its samples are decoded.

    Attributes:
        codec: The codec's name, as in `CODECS`.
        num_samples: Samples of each channel that `decode` will deliver.
        sample_rate: In Hz.
        channels: Number of channels.
        dtype: Of the decoded samples: "int16" where the source holds at most 16-bit integers, else "float32".
    """

    codec: str
    num_samples: int
    sample_rate: int
    channels: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class Codec:
    """One way of storing audio.

    Attributes:
        name: As the sidecar's column `codec` has it.
        extension: Ending of its members in a tar, without the dot.
        endings: File endings, lower case with the dot, under which it is commonly found.
        matches: Whether a file that starts with these bytes (any ID3 tag already skipped) is of this codec.
        measure: Facts of a whole file in memory, checked against its bytes.
        probe: Facts of a seekable file, read from as few of its bytes as can be trusted.
        decode: (data, num_samples, channels, scratch) to samples, [n] or [n, channels].
        peek_dtype: Type of the decoded samples, from the first bytes.
        packable: Whether its files stand in our shards as they are; others are decoded and packed as FLAC or WAV.
        cut: Samples from first to last of a seekable file, holding no more of them in memory; None where libsndfile
            seeks to the sample. As int32 or float64 where the file's depth is PCM_32 or DOUBLE, of which `decode` gives
            what float32 holds.
        blocks: All samples as `cut` gives them, some at a time, of codecs in which a part can't be cut without decoding
            all before it.
        depth: What keeps all that a file's samples hold; None for FLAC, whose dtype says it, and lossy codecs.
        full_scale: Largest sample that a file's format can hold, counting 16 bits at most; None for floats and lossy
            codecs alone.
    """

    name: str
    extension: str
    endings: frozenset[str]
    matches: Callable[[memoryview], bool]
    measure: Callable[[memoryview], AudioInfo]
    probe: Callable[[BinaryIO], AudioInfo]
    decode: Callable[[memoryview, int, int, Scratch], Samples]
    peek_dtype: Callable[[memoryview], DType]
    packable: bool = True
    cut: Callable[[BinaryIO, int, int], Exact] | None = None
    blocks: Callable[[BinaryIO], Iterator[Exact]] | None = None
    depth: Callable[[BinaryIO], Depth] | None = None
    full_scale: Callable[[memoryview], float] | None = None


def as_bytes_view(data: bytes | bytearray | memoryview) -> memoryview:
    """A view of single bytes on `data`, without a copy."""
    view = memoryview(data)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def shaped(samples: NDArray[Any], channels: int) -> NDArray[Any]:
    """Interleaved samples as [n] for one channel, [n, channels] for more."""
    return samples if channels == 1 else samples.reshape(-1, channels)


def file_size(file: BinaryIO) -> int:
    """Bytes of a seekable file."""
    return file.seek(0, 2)


def read_at(file: BinaryIO, start: int, count: int) -> memoryview:
    """Up to `count` bytes of a seekable file from `start`; fewer only at its end."""
    file.seek(start)
    return memoryview(file.read(count))


def whole(file: BinaryIO) -> memoryview:
    """All bytes of a seekable file, mapped, so that memory holds no more of them than is being read.

    A file that is none of the operating system's (in a store, in an archive) is read if it is small, else copied to a
    temporary file, which is gone with the view.
    """
    file.seek(0)
    try:
        return _mapped(file.fileno())
    except OSError:
        if file_size(file) <= _LARGEST_IN_MEMORY:
            file.seek(0)
            return memoryview(file.read())
    file.seek(0)
    with tempfile.TemporaryFile(prefix="uttershard-") as copy:
        shutil.copyfileobj(file, copy, _COPIED_AT_ONCE)
        copy.flush()
        return _mapped(copy.fileno())


def _mapped(descriptor: int) -> memoryview:
    return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))


class ViewFile(ReadOnlyFile):
    """Bytes in memory as a file, without a copy of them, which `io.BytesIO` makes."""

    def __init__(self, data: memoryview) -> None:
        super().__init__(len(data))
        self._data = data

    def _piece(self, position: int, count: int) -> memoryview:
        return self._data[position : position + count]


def read_frames(file: BinaryIO, data_start: int, frame_bytes: int, first: int, last: int) -> memoryview:
    """Uncompressed samples `first` to `last` of all channels.

    Raises:
        AudioError: The file ends before them.
    """
    data = read_at(file, data_start + first * frame_bytes, (last - first) * frame_bytes)
    if len(data) < (last - first) * frame_bytes:
        raise AudioError(f"truncated: {last - first} samples wanted from {first} on, found {len(data) // frame_bytes}")
    return data


def require_samples(info: AudioInfo) -> AudioInfo:
    """`info`, unless it describes an audio file with nothing in it.

    Raises:
        AudioError: It holds no samples.
    """
    if info.num_samples < 1:
        raise AudioError("no samples: the header is there, but no audio follows")
    return info


def require_count(found: int, wanted: int, *, more: bool = False) -> None:
    """Check a decoder's sample count against the promised one; several decoders come up short without a word.

    Raises:
        AudioError: The counts differ, or more samples follow than were asked for.
    """
    if more:
        raise AudioError(f"decoded more than the {wanted} samples that were promised")
    if found != wanted:
        raise AudioError(f"decoded {found} samples where {wanted} were promised")


def require_channels(found: int, wanted: int) -> None:
    """Check the channels of the bytes at hand against the promised ones.

    Raises:
        AudioError: They differ.
    """
    if found != wanted:
        raise AudioError(f"holds {found} channels where {wanted} were promised")


def truncated(promised: int, found: int) -> AudioError:
    """The error for a file that does not hold the samples its header promises, but mostly fewer."""
    problem = "truncated" if found < promised else "damaged"
    return AudioError(f"{problem}: the header promises {promised} samples, the file holds {found}")
