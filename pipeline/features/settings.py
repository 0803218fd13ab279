"""Checks that the settings of several transforms share."""

from collections.abc import Iterable

from ..errors import ConfigError

LARGEST = 2**31 - 1
"""Of whole numbers: torch's kernels count in 32 bits here and there."""

LARGEST_NUMBER = 1e300
MOST_BINS = 10_000
HIGHEST_RATE = 10_000_000
"""Hz: what records ultrasound has a tenth of it."""


def whole(name: str, value: object, least: int = 1, most: int = LARGEST) -> int:
    """Return a setting that must be a whole number between two limits, both included."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        upto = f"of {least} or more" if most == LARGEST else f"from {least} to {most}"
        raise ConfigError(f"{name}={value!r}: give a whole number {upto}")
    return value


def number(name: str, value: object, low: float, high: float = LARGEST_NUMBER) -> float:
    """Return a setting that must be a finite number between two limits, both included."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        upto = f"a number from {low:g} to {high:g}" if high < LARGEST_NUMBER else f"a finite number of {low:g} or more"
        raise ConfigError(f"{name}={value!r}: give {upto}")
    return float(value)


def switch(name: str, value: object) -> bool:
    """Return a setting that must be True or False: any other value that Python takes for true may be a mistake."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r}: give True or False")
    return value


def choice(name: str, value: object, choices: Iterable[str | None]) -> None:
    """Refuse a setting that is none of some names."""
    known = list(choices)
    if not isinstance(value, str | None) or value not in known:
        raise ConfigError(f"{name}={value!r}: choose one of {', '.join(map(repr, known))}")


def band(low: float, high: float | None, sample_rate: int) -> tuple[float, float]:
    """Return the frequencies between which mel filters lie, in Hz; the upper one is half the rate by default."""
    nyquist = sample_rate / 2
    upper = nyquist if high is None else number("high_freq", high, 0)
    if not 0 <= number("low_freq", low, 0) < upper <= nyquist:
        raise ConfigError(
            f"low_freq={low} and high_freq={high}: must rise, and end at half of sample_rate={sample_rate} at most"
        )
    return float(low), upper
