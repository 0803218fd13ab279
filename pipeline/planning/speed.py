"""Speed perturbation that a plan knows of: lengths change before batches are cut, so that the budget holds.

An utterance of rate r that is played f times as fast is an utterance of rate `round(r * f)`: it is that much shorter in
seconds, and resampling it to r is what makes it sound so. Nothing else in planning or reading has to know of speeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .hashing import CHUNK, Stream, hash_ordinals, stream_key

_SLOWEST, _FASTEST = Fraction(1, 10), Fraction(10)


@dataclass(frozen=True, init=False)
class Speed:
    """Speeds that utterances are played at, one drawn for each utterance and epoch.

    Args:
        factors: each as likely as another; 1.1 is faster, shorter and higher, 1.0 leaves an utterance as it is.

    Raises:
        ConfigError: there is none, or one is out of range.
    """

    factors: tuple[Fraction, ...]

    def __init__(self, factors: Sequence[float]) -> None:
        if not isinstance(factors, tuple | list) or not factors:
            raise ConfigError(f"speed={factors!r}: give a sequence of factors, such as (0.9, 1.0, 1.1)")
        object.__setattr__(self, "factors", tuple(_parse_factor(factor) for factor in factors))

    @property
    def slowest(self) -> Speed:
        """The speed at which every utterance is as long as it can get."""
        return Speed([float(min(self.factors))])

    def played_rates(
        self, sample_rate: NDArray[np.int32], ordinals: NDArray[np.int64], *, seed: int, epoch: int
    ) -> NDArray[np.int32]:
        """Return the rate at which the samples of each utterance are played in an epoch.

        Args:
            sample_rate: int32[n], rate of each utterance.
            ordinals: int64[n], which utterances.
            seed: of the run.
            epoch: number of the epoch.
        """
        key = stream_key(Stream.SPEED, seed, epoch)
        numerators = np.array([factor.numerator for factor in self.factors])
        denominators = np.array([factor.denominator for factor in self.factors])
        played = np.empty(ordinals.size, np.int32)
        for start in range(0, ordinals.size, CHUNK):
            part = slice(start, start + CHUNK)
            upper = hash_ordinals(key, ordinals[part]) >> np.uint64(32)
            chosen = ((upper * np.uint64(len(self.factors))) >> np.uint64(32)).astype(np.intp)
            doubled = 2 * denominators[chosen]
            played[part] = (2 * sample_rate[part] * numerators[chosen] + denominators[chosen]) // doubled
        return played

    def describe(self) -> list[str]:
        """Return the speeds as JSON values."""
        return [str(factor) for factor in self.factors]


def _parse_factor(value: Any) -> Fraction:
    try:
        # The decimal that a person wrote, not the binary float next to it.
        factor = Fraction(str(value)).limit_denominator(1000)
    except ValueError:
        factor = Fraction(0)
    if isinstance(value, bool | str) or not _SLOWEST <= factor <= _FASTEST:
        raise ConfigError(f"speed factor {value!r}: give a number from {float(_SLOWEST)} to {float(_FASTEST)}")
    return factor
