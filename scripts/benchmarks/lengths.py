"""Utterance lengths like those of LibriSpeech's training sets."""

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE = 16_000

_LONG_SHARE = 0.62
_LONG = (11.5, 14.8, 16.7)
_SHORT = (1.3, 13.0)


def librispeech_like(count: int, seed: int = 0) -> NDArray[np.int64]:
    """Return lengths in samples at 16 kHz: 62 % triangular 11.5-14.8-16.7 s, the rest uniform from 1.3 to 13 s."""
    random = np.random.default_rng(seed)
    long = random.triangular(*_LONG, count)
    short = random.uniform(*_SHORT, count)
    seconds = np.where(random.random(count) < _LONG_SHARE, long, short)
    samples: NDArray[np.int64] = np.rint(seconds * SAMPLE_RATE).astype(np.int64)
    return samples
