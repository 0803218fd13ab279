"""Changes of sampling rate, channels and sample type; numpy and soxr, no torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray

from ..errors import ConfigError, DataError

_INT16_SCALE = 32768.0
_INT32_SCALE = 2147483648.0


def to_float32(samples: NDArray[Any]) -> NDArray[np.float32]:
    """Samples in [-1, 1) as soundfile scales them; float32 comes back as it is.

    Args:
        samples: int16, int32, float32 or float64, of any shape.
    """
    if samples.dtype == np.float32:
        return samples
    if samples.dtype == np.int16:
        return samples * np.float32(1 / _INT16_SCALE)
    if samples.dtype == np.int32:
        return samples.astype(np.float32) * np.float32(1 / _INT32_SCALE)
    if samples.dtype == np.float64:
        return samples.astype(np.float32)
    raise ConfigError(f"samples of type {samples.dtype} are not supported: give int16, int32, float32 or float64")


def to_floats(samples: NDArray[Any]) -> NDArray[np.float32] | NDArray[np.float64]:
    """As `to_float32`, but in float64 what float32 can't hold: int32 and float64."""
    if samples.dtype == np.int32:
        return samples * (1 / _INT32_SCALE)
    return samples if samples.dtype == np.float64 else to_float32(samples)


def to_integers(samples: NDArray[Any], bits: int) -> NDArray[np.int32]:
    """Floats in [-1, 1) as integers of that many bits: rounded half to even, and clipped, never wrapped.

    Raises:
        DataError: Some are not a number, for which there is no integer.
    """
    full_scale = 2 ** (bits - 1)
    scaled = np.rint(samples.astype(np.float64) * full_scale)
    if np.isnan(scaled).any():
        raise DataError("the samples hold NaN (not a number), which cannot become integers")
    clipped: NDArray[np.int32] = np.clip(scaled, -full_scale, full_scale - 1).astype(np.int32)
    return clipped


def to_int16(samples: NDArray[Any]) -> NDArray[np.int16]:
    """Samples as int16, by `to_integers`; int16 comes back as it is.

    Args:
        samples: int16, int32, float32 or float64, of any shape.
    """
    if samples.dtype == np.int16:
        return samples
    return to_integers(to_floats(samples), 16).astype(np.int16)


def resampled_length(num_samples: int, rate_in: int, rate_out: int) -> int:
    """Samples after a change of rate: num_samples * rate_out / rate_in, half up, in exact integers."""
    return (2 * num_samples * rate_out + rate_in) // (2 * rate_in)


def resample(samples: NDArray[Any], rate_in: int, rate_out: int) -> NDArray[Any]:
    """Samples at another rate, by soxr in its quality HQ.

    Args:
        samples: [n] or [n, channels]; int16 or floats, which the result is too (int16 clips, never wraps).
        rate_in: Their rate in Hz.
        rate_out: The rate wanted; the same rate gives `samples` back.

    Returns:
        `resampled_length(n, rate_in, rate_out)` samples.
    """
    if rate_in < 1 or rate_out < 1:
        raise ConfigError(f"cannot resample from {rate_in} Hz to {rate_out} Hz: rates must be at least 1")
    if rate_in == rate_out:
        return samples
    length = resampled_length(len(samples), rate_in, rate_out)
    if samples.dtype == np.int16:
        # In floats, since soxr adds noise (dither) to integers.
        return to_int16(resample(to_float32(samples), rate_in, rate_out))
    result: NDArray[Any] = soxr.resample(samples, rate_in, rate_out, quality="HQ")
    # soxr's own length is off by one for some ratios; the sidecar's must not depend on its version.
    if len(result) < length:
        padding = [(0, length - len(result))] + [(0, 0)] * (samples.ndim - 1)
        result = np.pad(result, padding)
    return result[:length]


def mix_channels(samples: NDArray[Any], channels: int) -> NDArray[Any]:
    """Samples with another number of channels: many to one by their mean, one to many by copies.

    Args:
        samples: [n] or [n, channels]; int16 or floats, which the result is too (int16 means round half to even).
        channels: The number wanted.

    Returns:
        [n] for one channel, else [n, channels].

    Raises:
        ConfigError: From several channels to several others, which has no one meaning.
    """
    have = 1 if samples.ndim == 1 else samples.shape[1]
    if channels < 1:
        raise ConfigError(f"channels={channels}: must be at least 1")
    if have == channels:
        return samples.reshape(-1) if channels == 1 else samples
    if channels == 1:
        mean: NDArray[Any] = samples.mean(axis=1, dtype=np.float64)
        mean = np.rint(mean) if samples.dtype.kind == "i" else mean
        return mean.astype(samples.dtype)
    if have == 1:
        return np.repeat(samples.reshape(-1, 1), channels, axis=1)
    raise ConfigError(f"cannot make {channels} channels of {have}: only mixing to 1, or copying 1, is defined")
