"""Settings from outside become the types that planning works with, or an error that names them."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ..errors import ConfigError


def parse_int(name: str, value: Any, low: int, high: int | None = None, error: type[ConfigError] = ConfigError) -> int:
    """Return a setting as an int; bool and float are refused, since both are slips where a count is meant."""
    expected = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    if isinstance(value, bool | np.bool_):
        raise error(f"{name}={value!r} is a truth value: give {expected}")
    try:
        number = operator.index(value)
    except TypeError as cause:
        raise error(f"{name}={value!r} is a {type(value).__name__}: give {expected}") from cause
    if number < low or (high is not None and number > high):
        raise error(f"{name}={number} is out of range: give {expected}")
    return number
