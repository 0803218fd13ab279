"""Lengths in frames, counted in exact integers.

    frames = max(1, round(num_samples / sample_rate / frame_shift))        halves to the even neighbour

A float quotient would put an utterance on one side of a bucket's edge here and on the other side elsewhere.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import ConfigError, DataError
from .hashing import CHUNK

_INT32_MAX = (1 << 31) - 1
_INT64_MAX = (1 << 63) - 1

_MAX_DENOMINATOR = 1_000_000
"""Makes 0.01 exactly 1/100 and 256/22050 exactly 128/11025, and keeps products with sample counts within int64."""


def exact_frame_shift(frame_shift: float | Fraction) -> Fraction:
    """Return the frame shift in seconds as the fraction it stands for (0.01 is 1/100).

    Raises:
        ConfigError: it is not a number of seconds between 1 microsecond and 10 seconds.
    """
    try:
        exact = Fraction(str(frame_shift)).limit_denominator(_MAX_DENOMINATOR)
    except ValueError:
        exact = Fraction(0)
    if isinstance(frame_shift, bool | str) or not 0 < exact <= 10:
        raise ConfigError(
            f"frame_shift={frame_shift!r} is not a frame shift: give seconds, above 0 and up to 10, such as 0.01"
        )
    return exact


def count_frames(
    num_samples: ArrayLike, sample_rate: ArrayLike, frame_shift: float | Fraction = 0.01
) -> NDArray[np.int32]:
    """Return the length of each utterance in frames, at least 1.

    Args:
        num_samples: int[n], samples of one channel.
        sample_rate: int[n], or one rate for all, in Hz.
        frame_shift: seconds of one frame; 0.01 is the shift of nearly every speech front end.

    Raises:
        ConfigError: the frame shift makes no sense.
        DataError: a count or a rate makes no sense, or an utterance has more than 2**31 - 1 frames.

    Example:
        >>> count_frames([160, 240, 400, 16_000], 16_000)
        array([  1,   2,   2, 100], dtype=int32)
    """
    shift = exact_frame_shift(frame_shift)
    samples = np.asarray(num_samples)
    rates = np.broadcast_to(np.asarray(sample_rate), samples.shape)
    if samples.size == 0:
        return np.zeros(0, np.int32)
    most = _INT64_MAX // (4 * shift.denominator)
    for name, column, low, high in (
        ("num_samples", samples, 0, most),
        ("sample_rate", rates, 1, _INT64_MAX // (4 * shift.numerator)),
    ):
        if column.min() < low or column.max() > high:
            bad = int(np.flatnonzero((column < low) | (column > high))[0])
            raise DataError(f"utterance {bad} has {name}={column[bad]}: expected {low} to {high}; rebuild its sidecar")
    frames = np.empty(samples.shape, np.int32)
    for start in range(0, samples.size, CHUNK):
        part = slice(start, start + CHUNK)
        frames[part] = _round_half_even(samples[part], rates[part], shift, start)
    return frames


def _round_half_even(
    samples: NDArray[np.int64], rates: NDArray[np.int64], shift: Fraction, first: int
) -> NDArray[np.int64]:
    numerator = samples.astype(np.int64) * shift.denominator
    denominator = rates.astype(np.int64) * shift.numerator
    quotient, rest = np.divmod(numerator, denominator)
    rest *= 2
    up = (rest > denominator) | ((rest == denominator) & (quotient & 1 == 1))
    quotient += up
    if quotient.max() > _INT32_MAX:
        bad = int(quotient.argmax())
        raise DataError(
            f"utterance {first + bad} has {samples[bad]} samples at {rates[bad]} Hz, {quotient[bad]} frames of "
            f"{float(shift):g} s: more than {_INT32_MAX} frames; use a longer frame_shift, or rebuild its sidecar"
        )
    return np.maximum(quotient, 1, out=quotient)
