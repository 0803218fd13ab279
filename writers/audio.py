"""The audio of one utterance as it is packed: the source's own bytes if nothing is to change, else made anew.

A 16-bit source stays 16-bit, a 24-bit one 24-bit, one of 32 bits or floats what it is (as WAV, for FLAC has neither)
unless a codec is asked for that can't hold it, which is counted; lossy sources are taken for 16-bit.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import numpy as np
import soundfile
from numpy.typing import NDArray
from uttershard.pipeline.errors import ConfigError
from uttershard.pipeline.reading.codecs import CODECS, AudioError, AudioInfo, decode, measure, probe
from uttershard.pipeline.reading.codecs.base import Depth, ViewFile
from uttershard.pipeline.reading.convert import to_floats

from .audio_files import open_audio, read_audio
from .byte_files import ReusedBuffer
from .channels import cut_channels, probe_channels
from .encode import encode, mix_channels, resample
from .locators import Part, parse_parts
from .one_pass import cut_in_one_pass
from .probe import TOLERANCE_SECONDS, segment_problem
from .settings import PackSettings

_DEPTHS: tuple[Depth, ...] = ("PCM_16", "PCM_24", "FLOAT", "PCM_32", "DOUBLE")
_WAV_ONLY = frozenset({"PCM_32", "FLOAT", "DOUBLE"})
_MOST_FLAC_CHANNELS = 8


@dataclass(frozen=True)
class PackedAudio:
    """One encoded file as it goes into the tar, and what is in it."""

    data: bytes | memoryview
    """Maybe in the buffer that it was read into, and gone with the next file."""
    info: AudioInfo
    reduced: bool = False
    """Whether it was rounded to 24 bits, and clipped at full scale, because a codec without more was asked for."""


def fetch(
    uri: str, start: float | None, end: float | None, settings: PackSettings, buffer: ReusedBuffer | None = None
) -> PackedAudio:
    """Read, and where asked cut, mix, resample and encode, one utterance.

    Args:
        uri: Where its audio is.
        start: Seconds; None for the beginning.
        end: Seconds; None for the end.
        settings: Codec, rate and channels wanted.
        buffer: May be read into; what is returned is then to be used before the next call.

    Raises:
        AudioError: It can't be had, decoded, cut there, or stored in the codec wanted.
    """
    parts = parse_parts(uri)
    if len(parts) > 1 or parts[0].channels is not None:
        info, _ = probe_channels(uri)
        first, last = _sample_range(start or 0.0, end, info)
        return _encode(cut_channels(uri, first, last, _cut), info, _depth_of_parts(parts), settings)
    if start is None and end is None:
        return _whole(read_audio(uri, buffer or ReusedBuffer()), settings)
    with open_audio(uri) as file:
        info = probe(file)
        first, last = _sample_range(start or 0.0, end, info)
        if first == 0 and last == info.num_samples:
            # A segment that is its whole recording needs no cut, so its bytes can be kept.
            file.seek(0)
            return _whole(file.read(), settings)
        samples = _cut(file, info, first, last)
        return _encode(samples, info, _depth(file, info), settings)


def fetch_spans(
    uri: str, spans: Sequence[tuple[float | None, float | None]], settings: PackSettings
) -> Iterator[tuple[int, PackedAudio]]:
    """Cut many segments of one recording while it is decoded once, as `fetch` would one by one.

    Args:
        uri: Of the recording.
        spans: Start and end of each segment.
        settings: As of `fetch`.

    Yields:
        The place of a segment in `spans` and its audio, in the order of their ends. Segments for which this is no way
        (of channels, of codecs that seek, whole recordings, and what `fetch` refuses) are left out.
    """
    parts = parse_parts(uri)
    if len(parts) > 1 or parts[0].channels is not None:
        return
    with open_audio(uri) as file:
        info = probe(file)
        blocks = CODECS[info.codec].blocks
        if blocks is None:
            return
        ranges: dict[int, tuple[int, int]] = {}
        for place, (start, end) in enumerate(spans):
            with contextlib.suppress(AudioError):  # which `fetch` raises again, for the utterance alone
                ranges[place] = _sample_range(start or 0.0, end, info)
        parts_of = {place: span for place, span in ranges.items() if span != (0, info.num_samples)}
        depth = _depth(file, info)
        for place, samples in cut_in_one_pass(blocks(file), parts_of):
            yield place, _encode(samples, info, depth, settings)


def _depth_of_parts(parts: Sequence[Part]) -> Depth:
    """Return the subtype that keeps all that the deepest of some files holds."""
    depths = []
    for part in parts:
        with open_audio(part.uri) as file:
            info = probe(file)
            depths.append(_depth(file, info))
    # Neither 32-bit integers nor floats hold the other.
    return "DOUBLE" if {"PCM_32", "FLOAT"} <= set(depths) else max(depths, key=_DEPTHS.index)


def _whole(data: bytes | memoryview, settings: PackSettings) -> PackedAudio:
    info = measure(data)
    if _stays(info, settings):
        return PackedAudio(data, info)
    file = cast(BinaryIO, ViewFile(memoryview(data)))
    depth = _depth(file, info)
    if depth in ("PCM_32", "DOUBLE"):
        return _encode(_cut(file, info, 0, info.num_samples), info, depth, settings)
    return _encode(decode(info.codec, data, info.num_samples, info.channels), info, depth, settings)


def _stays(info: AudioInfo, settings: PackSettings) -> bool:
    """Say whether a file is already what is asked for, and may stand in a shard."""
    return (
        CODECS[info.codec].packable
        and settings.codec in ("keep", info.codec)
        and settings.sample_rate in (None, info.sample_rate)
        and settings.channels in (None, info.channels)
    )


def _sample_range(start: float, end: float | None, info: AudioInfo) -> tuple[int, int]:
    total = info.num_samples / info.sample_rate
    if start >= total or (end is not None and end > total + TOLERANCE_SECONDS):
        raise AudioError(segment_problem(start, total if end is None else end, total))
    first = round(start * info.sample_rate)
    last = info.num_samples if end is None else min(round(end * info.sample_rate), info.num_samples)
    if last <= first:
        raise AudioError(f"the segment from {start:.6f} s has no sample at {info.sample_rate} Hz")
    return first, last


def _cut(file: BinaryIO, info: AudioInfo, first: int, last: int) -> NDArray[Any]:
    """Return samples `first` to `last`, holding no more than those in memory where the codec allows it."""
    cut = CODECS[info.codec].cut
    if cut is not None:
        return cut(file, first, last)
    file.seek(0)
    try:
        with soundfile.SoundFile(file) as source:
            source.seek(first)
            samples: NDArray[Any] = source.read(last - first, dtype=info.dtype)
    except soundfile.LibsndfileError as error:
        raise AudioError(f"can't be cut: {error.error_string}") from error
    if len(samples) != last - first:
        raise AudioError(f"truncated: {last - first} samples wanted from {first} on, found {len(samples)}")
    return samples


def _depth(file: BinaryIO, info: AudioInfo) -> Depth:
    """Return the subtype that keeps all that the source holds."""
    depth = CODECS[info.codec].depth
    if depth is not None:
        return depth(file)
    return "PCM_24" if info.codec == "flac" and info.dtype != "int16" else "PCM_16"


def _encode(samples: NDArray[Any], info: AudioInfo, depth: Depth, settings: PackSettings) -> PackedAudio:
    rate = settings.sample_rate or info.sample_rate
    channels = settings.channels or info.channels
    codec = settings.codec
    try:
        if rate != info.sample_rate or channels != info.channels:
            # In floats, so that rounding happens once, in the encoder.
            samples = resample(mix_channels(to_floats(samples), channels), info.sample_rate, rate)
        elif samples.dtype == np.int32 and not (samples & 0xFF).any():
            depth = "PCM_24"  # in 32 bits, as FFmpeg decodes ALAC and others
        if codec == "keep":
            codec = "wav" if depth in _WAV_ONLY or channels > _MOST_FLAC_CHANNELS else "flac"
        reduced = codec == "flac" and depth in _WAV_ONLY
        subtype = "OPUS" if codec == "opus" else "PCM_24" if reduced else depth
        data = encode(samples, rate, codec, subtype=subtype)
    except ConfigError as error:
        raise AudioError(str(error)) from error
    return PackedAudio(data, measure(data), reduced)
