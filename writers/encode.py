"""Samples in, one encoded file out, by libsndfile; equal samples give equal bytes.

Integers keep their depth where the codec has it. Floats that become integers are clipped, never wrapped.
"""

import io
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray
from uttershard.pipeline.errors import ConfigError
from uttershard.pipeline.reading.codecs.ogg_pages import with_serial
from uttershard.pipeline.reading.convert import mix_channels, resample, to_float32, to_floats, to_int16, to_integers

from .settings import OPUS_RATES

__all__ = ["encode", "mix_channels", "resample"]

# libsndfile draws the number of an Ogg stream at random; it only has to differ within one file, and ours hold one.
_OGG_SERIAL = 1

_WAV_HEAD_BYTES = 128

_FORMATS = {"flac": "FLAC", "wav": "WAV", "opus": "OGG"}

# What an array's own depth asks for: 32-bit integers come from 24-bit sources, and FLAC stops at 24.
_SUBTYPES = {
    "flac": {"int16": "PCM_16", "int32": "PCM_24", "float32": "PCM_16", "float64": "PCM_24"},
    "wav": {"int16": "PCM_16", "int32": "PCM_24", "float32": "FLOAT", "float64": "DOUBLE"},
    "opus": {"int16": "OPUS", "int32": "OPUS", "float32": "OPUS", "float64": "OPUS"},
}
_ALLOWED_SUBTYPES = {
    "flac": ("PCM_16", "PCM_24"),
    "wav": ("PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"),
    "opus": ("OPUS",),
}


def encode(samples: NDArray[Any], sample_rate: int, codec: str, *, subtype: str | None = None) -> bytes:
    """One encoded file of these samples.

    Args:
        samples: int16, int32 (full scale), float32 or float64 (-1 to 1), [n] or [n, channels].
        sample_rate: In Hz; Opus has 8, 12, 16, 24 and 48 kHz only.
        codec: "flac", "wav" or "opus".
        subtype: "PCM_16", "PCM_24" or, of WAV only, "PCM_32", "FLOAT" or "DOUBLE". By default as deep as the samples:
            int16 gives PCM_16, int32 PCM_24, float32 FLOAT in WAV and PCM_16 in FLAC, float64 DOUBLE and PCM_24.

    Raises:
        ConfigError: The codec, subtype, rate, type or shape is not one of those.
        DataError: Floats that should become integers are not numbers.

    Example:
        >>> from uttershard.pipeline.reading.codecs import measure
        >>> measure(encode(np.zeros(160, np.int16), 16_000, "flac")).num_samples
        160
    """
    if codec not in _FORMATS:
        raise ConfigError(f"cannot encode as {codec!r}: choose one of {', '.join(_FORMATS)}")
    if samples.ndim not in (1, 2) or str(samples.dtype) not in _SUBTYPES[codec]:
        raise ConfigError(
            f"cannot encode samples of type {samples.dtype} and shape {samples.shape}: "
            "give int16, int32, float32 or float64, [n] or [n, channels]"
        )
    if codec == "opus" and sample_rate not in OPUS_RATES:
        rates = ", ".join(map(str, OPUS_RATES))
        raise ConfigError(f"Opus has no sampling rate of {sample_rate} Hz: set sample_rate to one of {rates}")
    subtype = subtype or _SUBTYPES[codec][str(samples.dtype)]
    if subtype not in _ALLOWED_SUBTYPES[codec]:
        raise ConfigError(f"{codec} of subtype {subtype!r}: choose one of {', '.join(_ALLOWED_SUBTYPES[codec])}")
    target = io.BytesIO()
    try:
        soundfile.write(target, _fitted(samples, subtype), sample_rate, format=_FORMATS[codec], subtype=subtype)
    except soundfile.LibsndfileError as error:
        shape = f"{samples.shape[1] if samples.ndim == 2 else 1} channels at {sample_rate} Hz"
        raise ConfigError(f"{codec} cannot hold {shape}: {error.error_string}") from error
    if subtype in ("FLOAT", "DOUBLE"):
        # libsndfile writes down the time in a chunk of peaks before the data.
        with target.getbuffer() as view:
            time = bytes(view[:_WAV_HEAD_BYTES]).index(b"PEAK") + 12
            view[time : time + 4] = bytes(4)
    return with_serial(target.getvalue(), _OGG_SERIAL) if codec == "opus" else target.getvalue()


def _fitted(samples: NDArray[Any], subtype: str) -> NDArray[Any]:
    """Samples of the type from which libsndfile makes that subtype without wrapping or a conversion of its own."""
    if subtype == "PCM_16":
        return to_int16(samples)
    if subtype == "PCM_32":
        return samples if samples.dtype == np.int32 else to_integers(to_floats(samples), 32)
    if subtype == "PCM_24":
        # libsndfile takes the upper 24 bits of 32.
        return samples if samples.dtype.kind == "i" else to_integers(samples, 24) << 8
    if subtype == "DOUBLE":
        return to_floats(samples)
    return np.clip(to_float32(samples), -1.0, 1.0) if subtype == "OPUS" else to_float32(samples)
