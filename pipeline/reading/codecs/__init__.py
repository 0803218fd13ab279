"""Encoded audio in, samples out; numpy only, no torch.

>>> from uttershard.pipeline.reading.codecs import decode, measure
>>> import io, soundfile
>>> file = io.BytesIO()
>>> soundfile.write(file, [0.0, 0.5], 16_000, format="WAV", subtype="PCM_16")
>>> audio = file.getvalue()
>>> info = measure(audio)
>>> info.codec, info.num_samples, info.sample_rate, info.channels, info.dtype
('wav', 2, 16000, 1, 'int16')
>>> decode(info.codec, audio, info.num_samples, info.channels)
array([    0, 16384], dtype=int16)

A codec is one file of this package, listed in `CODECS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import BinaryIO

from ...errors import ConfigError
from . import aiff, ffmpeg, flac, mp3, ogg, sphere, wav
from .base import AudioError, AudioInfo, Codec, DType, Samples, Scratch, as_bytes_view
from .pcm import full_scale_of_integers
from .sniff import sniff, sniff_file

__all__ = [
    "AUDIO_EXTENSIONS",
    "CODECS",
    "EXTENSIONS",
    "AudioError",
    "AudioInfo",
    "DType",
    "Samples",
    "Scratch",
    "decode",
    "full_scale",
    "measure",
    "peek_dtype",
    "probe",
]

_ALL = (
    wav.CODEC,
    flac.CODEC,
    ogg.OPUS,
    ogg.VORBIS,
    aiff.CODEC,
    sphere.CODEC,
    ffmpeg.CODEC,
    mp3.CODEC,
)

CODECS: Mapping[str, Codec] = MappingProxyType({codec.name: codec for codec in _ALL})
"""Every codec by name, in the order in which a file is held against them; MP3, the least certain, is last."""

EXTENSIONS: Mapping[str, str] = MappingProxyType(
    {name: codec.extension for name, codec in CODECS.items() if codec.packable}
)
"""Ending of a codec's members in our tars, without the dot; of those codecs that stand in them."""

AUDIO_EXTENSIONS: frozenset[str] = frozenset().union(*(codec.endings for codec in CODECS.values()))
"""File endings taken for audio, lower case, with the dot."""


def measure(data: bytes | bytearray | memoryview) -> AudioInfo:
    """Facts of a whole encoded file in memory; what its header says is checked against its bytes.

    Args:
        data: The file, whole; its codec is found by content.

    Returns:
        Its codec, samples, rate, channels and the type that its samples decode to.

    Raises:
        AudioError: It is empty, truncated, or no audio that a codec here decodes.
    """
    view = as_bytes_view(data)
    return sniff(view, CODECS.values()).measure(view)


def probe(file: BinaryIO) -> AudioInfo:
    """As `measure`, for a seekable file, reading only what it must: a few kilobytes where the header can be trusted.

    Args:
        file: Opened for reading bytes; its position changes.

    Raises:
        AudioError: As for `measure`.
    """
    return sniff_file(file, CODECS.values()).probe(file)


def decode(
    codec: str,
    data: bytes | bytearray | memoryview,
    num_samples: int,
    channels: int,
    scratch: Scratch = None,
) -> Samples:
    """Samples of one encoded file.

    The heavy part runs without the interpreter lock, so threads decode side by side.

    Args:
        codec: Its codec's name, as `measure` gave it.
        data: The file, whole.
        num_samples: Samples of each channel that it must hold, as `measure` gave them.
        channels: Channels that it must have.
        scratch: A contiguous 1-d array that may be decoded into where it is long enough and the codec can: FLAC, into
            int16 where that is what it gives, into float32 always (the same samples, in [-1, 1)).

    Returns:
        [num_samples] for one channel, else [num_samples, channels]; int16 or float32 as `measure` says, or float32
        because `scratch` is.
        Maybe a view of `data` (read-only if that is) or of `scratch`: use it before either changes.

    Raises:
        AudioError: It is damaged, or holds another number of samples or channels than promised.
        ConfigError: No such codec.
    """
    return _codec(codec).decode(as_bytes_view(data), num_samples, channels, scratch)


def peek_dtype(codec: str, data: bytes | bytearray | memoryview) -> DType:
    """Type of the samples that `decode` gives, from the first kilobytes of the file.

    Raises:
        AudioError: They are no header of that codec.
        ConfigError: No such codec.
    """
    return _codec(codec).peek_dtype(as_bytes_view(data))


def full_scale(codec: str, data: bytes | bytearray | memoryview) -> float:
    """Largest sample that a file's format can hold, in [-1, 1]; that of 16 bits for more bits, floats and lossy codecs.

    127 / 128 for 8-bit PCM, 32124 / 32768 for mu-law, 32256 / 32768 for A-law, 32767 / 32768 for most.

    Raises:
        AudioError: It is damaged.
        ConfigError: No such codec.
    """
    find = _codec(codec).full_scale
    return full_scale_of_integers(16) if find is None else find(as_bytes_view(data))


def _codec(name: str) -> Codec:
    try:
        return CODECS[name]
    except KeyError:
        raise ConfigError(f"no codec {name!r}: choose one of {', '.join(CODECS)}") from None
