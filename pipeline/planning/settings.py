"""Settings of a plan: one frozen dataclass for each concern, validated on creation, the only home of its defaults."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..errors import ConfigError, ShardingError
from .batch_types import BY_BINS, BY_SIZE, BatchType, EspnetRules, RuleSettings, described, parse_rules, unused
from .parse import parse_int as parse_int
from .where import Where, parse_where

Oversize = Literal["error", "drop", "alone"]
EqualSteps = Literal["split", "drop", "pad", "off"]

_NARROWEST_BUCKET = 0.001
_UINT64_MAX = (1 << 64) - 1


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
        rules = list(where) if isinstance(where, Sequence) and not isinstance(where, str | Where) else [where]
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
        min_batch_size: fewest utterances of a batch. An utterance that so many of would exceed batch_bins counts as
            too long (see `oversize`), and a rank's last utterances that make no batch are left out and counted.
        quadratic: frames Q at which the quadratic part of a model (attention) costs as much as the linear one. An
            utterance of L frames then counts as `L + L * L / Q` frames, rounded up, against batch_bins.
        longest_first: the heaviest batch is step 0, so that out-of-memory shows at once.
        oversize: what to do with an utterance that is longer than batch_bins: "error", "drop" it and count it, or
            put it "alone" in a batch that is over the budget.
        equal_steps: how all ranks come to the same number of steps: "split" (poorer ranks cut finer; nothing lost
            or repeated), "drop" (richer ranks leave batches out), "pad" (poorer ranks repeat batches), or "off".
        bucket_width: relative width of a length bucket; 0.0125 keeps padding well under 1 % with room to shuffle.
        windows: parts of an epoch that batches do not mix, each reading a few tars only; for data larger than the
            cache. None for one.
        shuffle: other batches in every epoch, in random order. Without, every epoch that reads the same utterances
            has the same batches, from long to short (or as ESPnet's batch types order them): for validation.
        rules: one of ESPnet's batch types with its settings; None for "bucket". Their rules, not batch_bins, say how
            large a batch gets: `length` and `numel` exceed it by the utterance that closes a batch.

    Raises:
        ConfigError: a value is out of range, or two settings conflict.
    """

    batch_bins: int | None = None
    batch_size: int | None = None
    max_batch_size: int | None = None
    min_batch_size: int | None = None
    quadratic: int | None = None
    longest_first: bool = False
    oversize: Oversize = "error"
    equal_steps: EqualSteps = "split"
    bucket_width: float = 0.0125
    windows: int | None = None
    shuffle: bool = True
    rules: EspnetRules | None = None

    def __post_init__(self) -> None:
        if self.rules is not None:
            self._check_rules(self.rules)
        elif (self.batch_bins is None) == (self.batch_size is None):
            raise ConfigError(
                f"batch_bins={self.batch_bins} and batch_size={self.batch_size}: give exactly one of them, batch_bins "
                "for a budget in frames (padding included) or batch_size for a fixed number of utterances"
            )
        for name in ("batch_bins", "batch_size", "max_batch_size", "min_batch_size", "quadratic", "windows"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, parse_int(name, value, 1))
        _check_choice("oversize", self.oversize, get_args(Oversize))
        _check_choice("equal_steps", self.equal_steps, get_args(EqualSteps))
        for name in ("longest_first", "shuffle"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}={getattr(self, name)!r} is no truth value: give True or False")
        self._check_fewest()
        if not self.shuffle:
            self._check_fixed()
        width = self.bucket_width
        if isinstance(width, bool) or not isinstance(width, int | float) or not _NARROWEST_BUCKET <= width <= 1:
            raise ConfigError(
                f"bucket_width={width!r} is out of range: give a relative width from {_NARROWEST_BUCKET} to 1"
            )
        if self.batch_size is not None and self.rules is None:
            for name, default in (("max_batch_size", None), ("quadratic", None), ("oversize", "error")):
                value = getattr(self, name)
                if value != default:
                    raise ConfigError(
                        f"{name}={value!r} has no meaning with batch_size={self.batch_size}: leave it out, or give "
                        "batch_bins instead of batch_size"
                    )

    def _check_rules(self, rules: EspnetRules) -> None:
        bins = rules.batch_type in BY_BINS
        used, other = ("batch_bins", "batch_size") if bins else ("batch_size", "batch_bins")
        if getattr(self, other) is not None:
            types = BY_SIZE if bins else BY_BINS
            raise unused(other, getattr(self, other), rules.batch_type, used_by=("bucket", *types))
        if getattr(self, used) is None:
            raise ConfigError(f"batch_type={rules.batch_type!r} needs {used}=")
        for name in ("max_batch_size", "quadratic", "oversize", "bucket_width", "windows"):
            value = getattr(self, name)
            if value != _DEFAULTS[name]:
                raise unused(name, value, rules.batch_type, used_by=("bucket",))
        if self.equal_steps == "split":
            raise ConfigError(
                f"equal_steps='split' would cut the batches of batch_type={rules.batch_type!r} finer than ESPnet's "
                "rule does: choose 'pad' (ranks with fewer batches repeat some, marked as filler), 'drop' or 'off'"
            )

    def _check_fewest(self) -> None:
        for name in ("max_batch_size", "batch_size"):
            most = getattr(self, name)
            if most is not None and most < self.fewest:
                raise ConfigError(f"min_batch_size={self.min_batch_size} is above {name}={most}: lower it")
        if self.fewest > 1 and self.oversize == "alone":
            raise ConfigError(
                f"oversize='alone' makes batches of one utterance, which min_batch_size={self.min_batch_size} rules "
                "out: choose 'drop' or 'error'"
            )

    def _check_fixed(self) -> None:
        if self.longest_first:
            raise ConfigError("longest_first=True has no meaning with shuffle=False, where the order is fixed already")
        if self.equal_steps == "drop":
            raise ConfigError(
                "equal_steps='drop' with shuffle=False would leave out the same utterances in every epoch: choose "
                "'split', 'pad' or 'off'"
            )
        if self.rules is not None and self.rules.batch_type in ("catbel", "catpow"):
            raise ConfigError(
                f"shuffle=False has no meaning with batch_type={self.rules.batch_type!r}, which draws at random"
            )

    def describe(self) -> dict[str, Any]:
        """Return the settings as JSON values, equal for equal settings; without those that are not set."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["rules"] = None if self.rules is None else described(self.rules)
        return {name: value for name, value in values.items() if value is not None}

    def hashed_epoch(self, epoch: int) -> int:
        """Return the epoch as hashes know it: without shuffling, all are alike."""
        return epoch if self.shuffle else 0

    @property
    def batch_type(self) -> BatchType:
        """The kind of batches."""
        return "bucket" if self.rules is None else self.rules.batch_type

    @property
    def budget_frames(self) -> int | None:
        """Frames that no batch exceeds; None if nothing is promised."""
        return self.batch_bins if self.rules is None else None

    @property
    def longest_frames(self) -> int | None:
        """Longest utterance that fits the budget, in frames (0: none does); None if there is no hard budget."""
        if self.batch_bins is None or self.rules is not None:
            return None
        share = self.batch_bins // self.fewest
        return bisect.bisect_right(range(1, share + 1), share, key=self.cost_of)

    @property
    def fewest(self) -> int:
        """Fewest utterances of a batch."""
        return self.min_batch_size or 1

    def cost_of(self, frames: int) -> int:
        """Return what an utterance of so many frames counts against batch_bins."""
        return frames if self.quadratic is None else frames - (-frames * frames // self.quadratic)

    def costs_of(self, frames: NDArray[np.int32]) -> NDArray[np.int32] | NDArray[np.int64]:
        """Return `cost_of` for each length; without `quadratic` that is the array itself."""
        if self.quadratic is None:
            return frames
        wide = frames.astype(np.int64)
        return wide - (-wide * wide // self.quadratic)


_DEFAULTS = {field.name: field.default for field in fields(Batching)}


def make_batching(
    batch_type: BatchType,
    rules: RuleSettings,
    *,
    max_batch_size: int | None = None,
    equal_steps: EqualSteps | None = None,
    **settings: Any,
) -> Batching:
    """Return the batching of any batch type.

    Args:
        batch_type: "bucket", or one of ESPnet's.
        rules: settings of ESPnet's types by name.
        max_batch_size: most utterances of a batch.
        equal_steps: None for "split" with "bucket", and "pad" with ESPnet's types, whose batches are not to be cut.
        settings: others of `Batching`.

    Raises:
        ConfigError: as for `Batching` and `EspnetRules`.
        TypeError: a setting of `rules` that there is not.
    """
    parsed = parse_rules(batch_type, max_batch_size, rules)
    if parsed is None:
        return Batching(
            max_batch_size=max_batch_size,
            min_batch_size=rules.get("min_batch_size"),
            equal_steps=equal_steps or "split",
            **settings,
        )
    return Batching(equal_steps=equal_steps or "pad", rules=parsed, **settings)


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is unknown: choose one of {', '.join(map(repr, choices))}")
