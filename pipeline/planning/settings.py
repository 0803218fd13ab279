"""Settings of a plan: one frozen dataclass for each concern, validated on creation, the only home of its defaults."""

from __future__ import annotations

import bisect
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..errors import ConfigError, ShardingError
from .where import Where, parse_where

Oversize = Literal["error", "drop", "alone"]
EqualSteps = Literal["split", "drop", "pad", "off"]

_NARROWEST_BUCKET = 0.001
_UINT64_MAX = (1 << 64) - 1


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


def parse_seed(value: Any) -> int:
    """Return the seed of a run as an int of 64 bits."""
    return parse_int("seed", value, 0, _UINT64_MAX)


@dataclass(frozen=True, init=False)
class Sharding:
    """Who reads: this rank, of how many, over how many logical shards.

    Args:
        rank: from 0 up to world_size - 1, as in torch.distributed.
        world_size: number of ranks.
        total_shards: number of logical shards, a multiple of world_size; world_size by default, which makes an
            epoch the whole dataset.

    Raises:
        ShardingError: a value is out of range, or total_shards is no multiple of world_size.
    """

    rank: int
    world_size: int
    total_shards: int

    def __init__(self, rank: int = 0, world_size: int = 1, total_shards: int | None = None) -> None:
        world_size = parse_int("world_size", world_size, 1, error=ShardingError)
        rank = parse_int("rank", rank, 0, world_size - 1, error=ShardingError)
        if total_shards is None:
            total_shards = world_size
        total_shards = parse_int("total_shards", total_shards, 1, error=ShardingError)
        if total_shards % world_size:
            below = total_shards - total_shards % world_size
            nearest = f"{below} or {below + world_size}" if below else f"{world_size}"
            raise ShardingError(
                f"total_shards={total_shards} is no multiple of world_size={world_size}, so that some ranks would "
                f"read a logical shard twice in a cycle: use total_shards={nearest}, or another world_size"
            )
        object.__setattr__(self, "rank", rank)
        object.__setattr__(self, "world_size", world_size)
        object.__setattr__(self, "total_shards", total_shards)

    @property
    def epochs_per_cycle(self) -> int:
        """Number of epochs after which every logical shard has been read once."""
        return self.total_shards // self.world_size


@dataclass(frozen=True, init=False)
class Filters:
    """Which utterances are left out before anything else is planned.

    Args:
        min_seconds: shortest duration kept, inclusive and exact.
        max_seconds: longest duration kept, inclusive and exact.
        where: rules over sidecar columns that an utterance must pass: a string such as
            `'language == "de" and seconds < 20'`, a `pyarrow.compute.Expression`, or a sequence of those.

    Raises:
        ConfigError: a limit is no duration, min_seconds is above max_seconds, or a rule does not parse.
    """

    min_seconds: Fraction | None
    max_seconds: Fraction | None
    where: tuple[Where, ...]

    def __init__(
        self,
        min_seconds: float | Fraction | None = None,
        max_seconds: float | Fraction | None = None,
        where: str | pc.Expression | Where | Sequence[str | pc.Expression | Where] = (),
    ) -> None:
        shortest = _parse_seconds("min_seconds", min_seconds)
        longest = _parse_seconds("max_seconds", max_seconds)
        if shortest is not None and longest is not None and shortest > longest:
            raise ConfigError(
                f"min_seconds={min_seconds} is above max_seconds={max_seconds}, which keeps nothing: swap them"
            )
        rules = [where] if isinstance(where, str | pc.Expression | Where) else list(where)
        object.__setattr__(self, "min_seconds", shortest)
        object.__setattr__(self, "max_seconds", longest)
        object.__setattr__(self, "where", tuple(parse_where(rule) for rule in rules))

    @property
    def columns(self) -> frozenset[str] | None:
        """Columns that the rules name, derived ones included; None if a ready expression may name any."""
        named: set[str] = set()
        for rule in self.where:
            if rule.columns is None:
                return None
            named |= rule.columns
        return frozenset(named)

    def describe(self) -> dict[str, Any]:
        """Return the filters as JSON values, equal for equal filters."""
        return {
            "min_seconds": None if self.min_seconds is None else str(self.min_seconds),
            "max_seconds": None if self.max_seconds is None else str(self.max_seconds),
            "where": [rule.text for rule in self.where],
        }


def _parse_seconds(name: str, value: Any) -> Fraction | None:
    if value is None:
        return None
    try:
        # The decimal that a person wrote, not the binary float next to it.
        seconds = Fraction(str(value))
    except ValueError:
        seconds = Fraction(-1)
    if isinstance(value, bool | str) or seconds < 0:
        raise ConfigError(f"{name}={value!r} is no duration: give seconds, 0 or more, or None for no limit")
    return seconds


@dataclass(frozen=True)
class Batching:
    """How the utterances of a rank become batches.

    Args:
        batch_bins: frames a batch may hold, padding included: `len(batch) * longest <= batch_bins`.
        batch_size: utterances of every batch, instead of batch_bins.
        max_batch_size: most utterances of a batch, besides batch_bins.
        quadratic: frames Q at which the quadratic part of a model (attention) costs as much as the linear one. An
            utterance of L frames then counts as `L + L * L / Q` frames, rounded up, against batch_bins.
        longest_first: the heaviest batch is step 0, so that out-of-memory shows at once.
        oversize: what to do with an utterance that is longer than batch_bins: "error", "drop" it and count it, or
            put it "alone" in a batch that is over the budget.
        equal_steps: how all ranks come to the same number of steps: "split" (poorer ranks cut finer; nothing lost
            or repeated), "drop" (richer ranks leave batches out), "pad" (poorer ranks repeat batches), or "off".
        bucket_width: relative width of a length bucket; 0.015 keeps padding under 1 % with room to shuffle.
        windows: parts of an epoch that batches do not mix, each reading a few tars only; for data larger than the
            cache. None for one.

    Raises:
        ConfigError: a value is out of range, or two settings conflict.
    """

    batch_bins: int | None = None
    batch_size: int | None = None
    max_batch_size: int | None = None
    quadratic: int | None = None
    longest_first: bool = False
    oversize: Oversize = "error"
    equal_steps: EqualSteps = "split"
    bucket_width: float = 0.015
    windows: int | None = None

    def __post_init__(self) -> None:
        if (self.batch_bins is None) == (self.batch_size is None):
            raise ConfigError(
                f"batch_bins={self.batch_bins} and batch_size={self.batch_size}: give exactly one of them, batch_bins "
                "for a budget in frames (padding included) or batch_size for a fixed number of utterances"
            )
        for name in ("batch_bins", "batch_size", "max_batch_size", "quadratic", "windows"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, parse_int(name, value, 1))
        _check_choice("oversize", self.oversize, get_args(Oversize))
        _check_choice("equal_steps", self.equal_steps, get_args(EqualSteps))
        if not isinstance(self.longest_first, bool):
            raise ConfigError(f"longest_first={self.longest_first!r} is no truth value: give True or False")
        width = self.bucket_width
        if isinstance(width, bool) or not isinstance(width, int | float) or not _NARROWEST_BUCKET <= width <= 1:
            raise ConfigError(
                f"bucket_width={width!r} is out of range: give a relative width from {_NARROWEST_BUCKET} to 1"
            )
        if self.batch_size is not None:
            for name, unused in (("max_batch_size", None), ("quadratic", None), ("oversize", "error")):
                value = getattr(self, name)
                if value != unused:
                    raise ConfigError(
                        f"{name}={value!r} has no meaning with batch_size={self.batch_size}: leave it out, or give "
                        "batch_bins instead of batch_size"
                    )

    @property
    def longest_frames(self) -> int | None:
        """Longest utterance that fits the budget, in frames (0: none does); None with batch_size."""
        if self.batch_bins is None:
            return None
        return bisect.bisect_right(range(1, self.batch_bins + 1), self.batch_bins, key=self.cost_of)

    def cost_of(self, frames: int) -> int:
        """Return what an utterance of so many frames counts against batch_bins."""
        return frames if self.quadratic is None else frames - (-frames * frames // self.quadratic)

    def costs_of(self, frames: NDArray[np.int32]) -> NDArray[np.int32] | NDArray[np.int64]:
        """Return `cost_of` for each length; without `quadratic` that is the array itself."""
        if self.quadratic is None:
            return frames
        wide = frames.astype(np.int64)
        return wide - (-wide * wide // self.quadratic)


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is unknown: choose one of {', '.join(map(repr, choices))}")
