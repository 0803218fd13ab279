"""Checks that the settings of several transforms share."""

import math

from ..errors import ConfigError


def whole(name: str, value: object, least: int = 1) -> int:
    """Return a setting that must be a whole number."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name}={value!r}: give a whole number of {least} or more")
    return value


def number(name: str, value: object, low: float, high: float = math.inf) -> float:
    """Return a setting that must be a number between two limits, both included."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        upto = f"from {low:g} to {high:g}" if high < math.inf else f"of {low:g} or more"
        raise ConfigError(f"{name}={value!r}: give a number {upto}")
    return float(value)


def band(low: float, high: float | None, sample_rate: int) -> tuple[float, float]:
    """Return the frequencies between which mel filters lie, in Hz; the upper one is half the rate by default."""
    nyquist = sample_rate / 2
    upper = nyquist if high is None else number("high_freq", high, 0)
    if not 0 <= number("low_freq", low, 0) < upper <= nyquist:
        raise ConfigError(
            f"low_freq={low} and high_freq={high}: must rise, and end at half of sample_rate={sample_rate} at most"
        )
    return float(low), upper
