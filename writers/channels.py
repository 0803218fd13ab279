"""Audio whose channels come from several files, or are some of a file's: what its header says, and a stretch of it."""

from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from uttershard.pipeline.reading.codecs import AudioError, AudioInfo, DType, probe
from uttershard.pipeline.reading.convert import to_floats

from .audio_files import open_audio
from .locators import Part, parse_parts

Cut = Callable[[BinaryIO, AudioInfo, int, int], NDArray[Any]]
"""Returns samples `first` to `last` of an open file, [n] or [n, channels]."""


def probe_channels(uri: str) -> tuple[AudioInfo, int]:
    """Return what the headers say of the audio at an address, and the bytes of its files.

    Raises:
        AudioError: A file can't be read, has no such channel, or does not go with the others.
    """
    infos, nbytes = [], 0
    parts = parse_parts(uri)
    for part in parts:
        with open_audio(part.uri) as file:
            infos.append(probe(file))
            nbytes += file.seek(0, 2)
    return _joined(parts, infos), nbytes


def cut_channels(uri: str, first: int, last: int, cut: Cut) -> NDArray[Any]:
    """Return a stretch of the audio at an address, [n] for one channel, else [n, channels].

    Each file is cut before its channels are picked, so that memory holds the stretch and no recording.
    """
    columns = []
    for part in parse_parts(uri):
        with open_audio(part.uri) as file:
            info = probe(file)
            samples = cut(file, info, first, last).reshape(last - first, info.channels)
            columns.append(samples[:, _picked(part, info)])
    if len({column.dtype for column in columns}) > 1:
        columns = [to_floats(column) for column in columns]
    whole = np.concatenate(columns, axis=1)
    return whole[:, 0] if whole.shape[1] == 1 else whole


def _joined(parts: tuple[Part, ...], infos: list[AudioInfo]) -> AudioInfo:
    first = infos[0]
    for part, info in zip(parts, infos, strict=True):
        if (info.sample_rate, info.num_samples) != (first.sample_rate, first.num_samples):
            raise AudioError(
                f"channels that don't go together: {parts[0].uri} has {first.num_samples} samples at "
                f"{first.sample_rate} Hz, {part.uri} {info.num_samples} at {info.sample_rate} Hz"
            )
    channels = sum(len(_picked(part, info)) for part, info in zip(parts, infos, strict=True))
    dtype: DType = "int16" if all(info.dtype == "int16" for info in infos) else "float32"
    return AudioInfo(first.codec, first.num_samples, first.sample_rate, channels, dtype)


def _picked(part: Part, info: AudioInfo) -> list[int]:
    channels = list(range(info.channels) if part.channels is None else part.channels)
    missing = [channel for channel in channels if channel >= info.channels]
    if missing:
        raise AudioError(f"no channel {missing[0]} in {part.uri}, which has {info.channels} (counted from 0)")
    return channels
