"""Settings of ESPnet's batch types: what each of them uses, with ESPnet's defaults.

    unsorted  batch_size     dataset order
    sorted    batch_size     by length
    folded    batch_size     by length; fewer utterances the longer they are, in steps of fold_lengths
    length    batch_bins     by length; closed by the utterance that brings the sum of the lengths *over* batch_bins
    numel     batch_bins     the same, each length times the dimension of its features
    catbel    batch_size     drawn so that no category has more than its share of a batch
    catpow    batch_bins     drawn with probabilities by a power of the hours of a category

`bucket`, our own type, is not among them: it alone never exceeds its budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict, get_args

from ..errors import ConfigError
from .parse import parse_int

BatchType = Literal["bucket", "unsorted", "sorted", "folded", "length", "numel", "catbel", "catpow"]
Direction = Literal["ascending", "descending"]

BY_SIZE = ("unsorted", "sorted", "folded", "catbel")
"""Types that cut by batch_size."""
BY_BINS = ("length", "numel", "catpow")
"""Types that cut by batch_bins."""
DRAWN = ("catbel", "catpow")
"""Types that draw anew in every epoch, and leave out or repeat utterances."""

FRAMES = "frames"
"""The length column that planning counts itself."""

_SORTED = ("sorted", "folded", "length", "numel")
_USED_BY = {
    "min_batch_size": ("bucket", "folded", "length", "numel", "catpow"),
    "max_batch_size": ("catpow",),
    "drop_last": ("unsorted", "sorted", "folded", "length", "numel", "catpow"),
    "sort_in_batch": _SORTED,
    "sort_batch": _SORTED,
    "length_columns": (*_SORTED, "catpow"),
    "length_dims": ("numel",),
    "fold_lengths": ("folded",),
    "padded": ("length", "numel"),
    "category": ("folded", *DRAWN),
    "upsampling_factor": ("catpow",),
    "scaling_factor": ("catpow",),
}
_DEFAULTS: dict[str, Any] = {
    "min_batch_size": 1,
    "drop_last": False,
    "sort_in_batch": "descending",
    "sort_batch": "ascending",
    "length_columns": (FRAMES,),
    "padded": True,
    "upsampling_factor": 1.0,
    "scaling_factor": 1.2,
}
_SEVERAL_COLUMNS = ("folded", "length", "numel")


class RuleSettings(TypedDict, total=False):
    """The settings of ESPnet's batch types by name; see `EspnetRules`."""

    min_batch_size: int | None
    drop_last: bool | None
    sort_in_batch: Direction | None
    sort_batch: Direction | None
    length_columns: Sequence[str] | None
    length_dims: Sequence[int] | None
    fold_lengths: Sequence[int] | None
    padded: bool | None
    category: str | None
    upsampling_factor: float | None
    scaling_factor: float | None


@dataclass(frozen=True)
class EspnetRules:
    """One of ESPnet's batch types and its settings; None is ESPnet's default where the type uses the setting.

    Attributes:
        batch_type: which.
        min_batch_size: least utterances of a batch; a smaller last batch is spread over the others.
        drop_last: leave the last, incomplete batch out.
        sort_in_batch: order of the lengths in a batch, "descending" by default.
        sort_batch: order of the batches, "ascending" by default; the loader's `shuffle` takes them in any order.
        length_columns: columns that give the lengths: "frames", or any column of whole numbers, e.g. "text_chars" or
            "num_samples"; utterances are sorted by the first.
        length_dims: numbers of one time step of each column (80 for an 80-dimensional feature); 1 by default.
        fold_lengths: for each column, the length at which the batch is half as large.
        padded: lengths are summed as padded: number of utterances times the length of the last.
        category: column that is balanced; or, with "folded", of which a batch has one value only.
        max_batch_size: most utterances of a batch.
        upsampling_factor: power of the share of a category in all frames; 1 draws all utterances alike, 0 all
            categories.
        scaling_factor: how many times the dataset an epoch draws, 1 or more.

    Raises:
        ConfigError: the type does not use a setting, needs one, or a value is out of range.
    """

    batch_type: BatchType
    min_batch_size: int | None = None
    drop_last: bool | None = None
    sort_in_batch: Direction | None = None
    sort_batch: Direction | None = None
    length_columns: tuple[str, ...] | None = None
    length_dims: tuple[int, ...] | None = None
    fold_lengths: tuple[int, ...] | None = None
    padded: bool | None = None
    category: str | None = None
    max_batch_size: int | None = None
    upsampling_factor: float | None = None
    scaling_factor: float | None = None

    def __post_init__(self) -> None:
        check_batch_type(self.batch_type)
        for name, types in _USED_BY.items():
            if getattr(self, name) is None:
                if self.batch_type in types and name in _DEFAULTS:
                    object.__setattr__(self, name, _DEFAULTS[name])
            elif self.batch_type not in types:
                raise unused(name, getattr(self, name), self.batch_type)
        self._check_values()
        self._check_columns()

    def _check_values(self) -> None:
        for name in ("min_batch_size", "max_batch_size"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, parse_int(name, getattr(self, name), 1))
        for name in ("drop_last", "padded"):
            if getattr(self, name) is not None and not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}={getattr(self, name)!r} is no truth value: give True or False")
        for name in ("sort_in_batch", "sort_batch"):
            if getattr(self, name) not in (None, *get_args(Direction)):
                raise ConfigError(f"{name}={getattr(self, name)!r}: choose 'ascending' or 'descending'")
        for name, least in (("upsampling_factor", 0.0), ("scaling_factor", 1.0)):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= 100:
                raise ConfigError(f"{name}={value!r} is out of range: give a number of {least:g} or more, up to 100")
            object.__setattr__(self, name, float(value))
        if self.batch_type in DRAWN and not self.category:
            raise ConfigError(f"batch_type={self.batch_type!r} balances a column: name it, e.g. category='language'")

    def _check_columns(self) -> None:
        columns = _names(self.length_columns)
        if self.length_columns is not None:
            object.__setattr__(self, "length_columns", columns)
            if len(columns) > 1 and self.batch_type not in _SEVERAL_COLUMNS:
                raise ConfigError(
                    f"length_columns={columns!r}: batch_type={self.batch_type!r} looks at one length only; "
                    f"{', '.join(_SEVERAL_COLUMNS)} take several"
                )
        if self.batch_type == "numel" and self.length_dims is None:
            object.__setattr__(self, "length_dims", (1,) * len(columns))
        if self.batch_type == "folded" and self.fold_lengths is None:
            raise ConfigError("batch_type='folded' needs fold_lengths=, one length for each of length_columns")
        for name in ("length_dims", "fold_lengths"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _numbers(name, getattr(self, name), columns))


def parse_rules(batch_type: BatchType, max_batch_size: int | None, settings: RuleSettings) -> EspnetRules | None:
    """Return the rules of an ESPnet batch type; None for "bucket", which has none of these settings.

    Raises:
        ConfigError: "bucket" does not use a setting, or as for `EspnetRules`.
        TypeError: a setting that there is not.
    """
    check_batch_type(batch_type)
    for name in settings:
        if name not in RuleSettings.__annotations__:
            raise TypeError(f"got an unexpected keyword argument {name!r}")
    if batch_type != "bucket":
        given: dict[str, Any] = dict(settings)
        return EspnetRules(batch_type, max_batch_size=max_batch_size, **given)
    for name, value in settings.items():
        if value is not None and batch_type not in _USED_BY[name]:
            raise unused(name, value, batch_type)
    return None


def check_batch_type(batch_type: Any) -> None:
    """Raise ConfigError for what is no batch type."""
    if batch_type not in get_args(BatchType):
        raise ConfigError(
            f"batch_type={batch_type!r} is unknown: choose one of {', '.join(map(repr, get_args(BatchType)))}"
        )


def unused(name: str, value: Any, batch_type: str, *, used_by: Sequence[str] = ()) -> ConfigError:
    """Return the error for a setting that a batch type does not use."""
    types = used_by or _USED_BY[name]
    return ConfigError(
        f"{name}={value!r} is not used by batch_type={batch_type!r}, but by {', '.join(map(repr, types))}: leave it "
        "out, or choose another batch_type"
    )


def described(rules: EspnetRules) -> dict[str, Any]:
    """Return rules as JSON values, without those that the type does not use."""
    values = {field.name: getattr(rules, field.name) for field in fields(rules)}
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in values.items() if value is not None
    }


def _names(value: Any) -> tuple[str, ...]:
    columns = (value,) if isinstance(value, str) else tuple(value or ())
    if value is not None and not (columns and all(isinstance(name, str) and name for name in columns)):
        raise ConfigError(f"length_columns={value!r}: give names of columns, such as ('frames', 'text_chars')")
    return columns


def _numbers(name: str, values: Any, columns: tuple[str, ...]) -> tuple[int, ...]:
    numbers = tuple(parse_int(name, value, 1) for value in ((values,) if isinstance(values, int) else values))
    if len(numbers) != len(columns):
        raise ConfigError(
            f"{name}={numbers!r} has {len(numbers)} entries, length_columns={columns!r} has {len(columns)}: give one "
            "for each column"
        )
    return numbers
