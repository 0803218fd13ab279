"""Codecs that are a header and uncompressed samples behind it (AIFF, SPHERE): all but the header is the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from .base import (
    AudioInfo,
    Codec,
    Depth,
    DType,
    Exact,
    Samples,
    Scratch,
    file_size,
    read_at,
    read_frames,
    require_channels,
    require_count,
    require_samples,
    shaped,
    truncated,
)
from .pcm import (
    ALAW,
    LARGEST_ALAW,
    LARGEST_MULAW,
    MULAW,
    depth_of_floats,
    depth_of_integers,
    exact,
    from_floats,
    from_integers,
    full_scale_of_integers,
)

ReadAt = Callable[[int, int], memoryview]
"""Bytes of a file, (start, count); fewer only at its end."""


@dataclass(frozen=True, slots=True)
class PcmLayout:
    """Where the samples are and what they are."""

    kind: str
    """`int`, `uint` (of one byte), `float`, `mulaw` or `alaw`."""
    width: int
    """Bytes of a sample."""
    big_endian: bool
    channels: int
    sample_rate: int
    data_start: int
    num_samples: int | None
    """Of each channel; None if the header leaves it open: then all that follows is samples."""

    @property
    def frame_bytes(self) -> int:
        """Bytes of one sample of all channels."""
        return self.width * self.channels

    @property
    def dtype(self) -> DType:
        """Type of the decoded samples."""
        return "int16" if (self.kind, self.width) == ("int", 2) else "float32"

    @property
    def depth(self) -> Depth:
        """What keeps all that the samples hold."""
        if self.kind == "float":
            return depth_of_floats(self.width)
        return depth_of_integers(self.width)

    @property
    def full_scale(self) -> float:
        """Largest sample of formats of at most 16 bits."""
        codes = {"mulaw": LARGEST_MULAW, "alaw": LARGEST_ALAW}
        return codes[self.kind] if self.kind in codes else full_scale_of_integers(8 * self.width)

    def count(self, file_bytes: int) -> int:
        """Samples of each channel in a file of that many bytes.

        Raises:
            AudioError: The header promises more.
        """
        found = max(0, file_bytes - self.data_start) // self.frame_bytes
        if self.num_samples is None:
            return found
        if found < self.num_samples:
            raise truncated(self.num_samples, found)
        return self.num_samples

    def decode(self, data: memoryview) -> Samples:
        """Samples of whole frames."""
        raw = np.frombuffer(data, np.uint8)
        if self.kind == "float":
            samples: Samples = from_floats(raw, self.width, big_endian=self.big_endian)
        elif self.kind == "mulaw":
            samples = MULAW[raw]
        elif self.kind == "alaw":
            samples = ALAW[raw]
        elif self.kind == "uint":
            samples = from_integers(raw ^ np.uint8(0x80), 1, big_endian=False)
        else:
            samples = from_integers(raw, self.width, big_endian=self.big_endian)
        return shaped(samples, self.channels)


def pcm_codec(
    name: str,
    endings: frozenset[str],
    matches: Callable[[memoryview], bool],
    parse: Callable[[ReadAt, int], PcmLayout],
) -> Codec:
    """A codec whose files `parse` finds the samples of, given how to read and the size of the file."""

    def parse_memory(data: memoryview) -> PcmLayout:
        return parse(lambda start, count: data[start : start + count], len(data))

    def parse_file(file: BinaryIO) -> PcmLayout:
        return parse(lambda start, count: read_at(file, start, count), file_size(file))

    def info(layout: PcmLayout, file_bytes: int) -> AudioInfo:
        count = layout.count(file_bytes)
        return require_samples(AudioInfo(name, count, layout.sample_rate, layout.channels, layout.dtype))

    def measure(data: memoryview) -> AudioInfo:
        return info(parse_memory(data), len(data))

    def probe(file: BinaryIO) -> AudioInfo:
        return info(parse_file(file), file_size(file))

    def decode(data: memoryview, num_samples: int, channels: int, scratch: Scratch) -> Samples:
        layout = parse_memory(data)
        require_channels(layout.channels, channels)
        require_count(layout.count(len(data)), num_samples)
        end = layout.data_start + num_samples * layout.frame_bytes
        return layout.decode(data[layout.data_start : end])

    def cut(file: BinaryIO, first: int, last: int) -> Exact:
        layout = parse_file(file)
        data = read_frames(file, layout.data_start, layout.frame_bytes, first, last)
        if layout.depth in ("PCM_32", "DOUBLE"):
            samples = exact(np.frombuffer(data, np.uint8), layout.depth, big_endian=layout.big_endian)
            return shaped(samples, layout.channels)
        return layout.decode(data)

    return Codec(
        name=name,
        extension=name,
        endings=endings,
        matches=matches,
        measure=measure,
        probe=probe,
        decode=decode,
        peek_dtype=lambda data: parse_memory(data).dtype,
        packable=False,
        cut=cut,
        depth=lambda file: parse_file(file).depth,
        full_scale=lambda data: parse_memory(data).full_scale,
    )
