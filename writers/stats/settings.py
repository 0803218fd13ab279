"""What is measured, and how: the only home of the defaults."""

import importlib
import inspect
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from uttershard.pipeline.dataset.digest import digest_bytes
from uttershard.pipeline.errors import ConfigError

FEATURES = ("fbank", "log_mel", "none")
_HIGHEST_RATE = 10_000_000
_NARROWEST_BAR = 0.01
"""Seconds: a histogram is a list, which a bar of nothing would make endless."""
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class StatsSettings:
    """What is measured of a dataset.

    Raises:
        ConfigError: A value is out of range, or names something that is not there.

    Example:
        >>> StatsSettings(feature_options={"num_mel_bins": 40}).features
        'fbank'
    """

    features: str = "fbank"
    """`fbank` or `log_mel` as `uttershard.pipeline` has them, `none`, or a function of yours, `module:function`, that
    is called with (audio float32 [n], sample_rate) and returns [frames, dimensions]."""
    feature_options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the feature transform, e.g. num_mel_bins."""
    sample_rate: int | None = 16_000
    """Hz that features are computed at; audio of another rate is resampled. None: each utterance at its own (only for
    a function of yours)."""
    columns: tuple[str, ...] = ()
    """Sidecar columns whose hours are counted for each value."""
    tokenizer: str | None = None
    """A SentencePiece model, or `module:function` that is called with a text and returns its tokens."""
    silence_dbfs: float = -60.0
    """A 10 ms frame whose mean power is below this is silent (decibels below a full-scale square wave)."""
    histogram_seconds: float = 1.0
    """Width of a bar of the length histogram."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", _names(self.columns))
        object.__setattr__(self, "feature_options", _as_read_back(self.feature_options))
        object.__setattr__(self, "tokenizer", _tokenizer(self.tokenizer))
        if self.features not in FEATURES and not (isinstance(self.features, str) and is_function(self.features)):
            raise ConfigError(
                f"features is {self.features!r}; it can be {', '.join(FEATURES)}, or module:function of yours"
            )
        if self.feature_options and self.features not in ("fbank", "log_mel"):
            raise ConfigError(f"feature_options are for fbank and log_mel; features {self.features!r} takes none")
        if self.features in ("fbank", "log_mel") and self.sample_rate is None:
            raise ConfigError(f"{self.features} needs a sample_rate: its filters depend on it")
        if self.sample_rate is not None and (
            type(self.sample_rate) is not int or not 1 <= self.sample_rate <= _HIGHEST_RATE
        ):
            raise ConfigError(
                f"sample_rate is {self.sample_rate!r}; it must be a whole number of Hz, from 1 to {_HIGHEST_RATE}"
            )
        if "sample_rate" in self.feature_options:
            raise ConfigError("sample_rate is a setting of its own, not one of feature_options")
        if not _is_finite(self.silence_dbfs) or self.silence_dbfs > 0:
            raise ConfigError(
                f"silence_dbfs is {self.silence_dbfs!r}; it must be a number of decibels, 0 or less, such as -60"
            )
        if not _is_finite(self.histogram_seconds) or not self.histogram_seconds >= _NARROWEST_BAR:
            raise ConfigError(
                f"histogram_seconds is {self.histogram_seconds!r}; it must be a number of {_NARROWEST_BAR} or more"
            )

    def told(self) -> str:
        """Name what runs on each utterance, for messages."""
        return f"features {self.features}" + (f", tokenizer {self.tokenizer}" if self.tokenizer is not None else "")

    def identity(self) -> dict[str, Any]:
        """Return all that decides the numbers, as JSON values; a tokenizer and a function of yours by their code.

        Raises:
            ConfigError: The tokenizer or the function is not there.
        """
        return {
            "features": self.features,
            "feature_options": dict(self.feature_options),
            "features_digest": _digest(self.features) if is_function(self.features) else None,
            "sample_rate": self.sample_rate,
            "columns": list(self.columns),
            "tokenizer": self.tokenizer if self.tokenizer is None or is_function(self.tokenizer) else "sentencepiece",
            "tokenizer_digest": None if self.tokenizer is None else _digest(self.tokenizer),
            "silence_dbfs": float(self.silence_dbfs),
            "histogram_seconds": float(self.histogram_seconds),
        }


def _as_read_back(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as the json of the statistics gives them back (a tuple as a list): they are compared with it."""
    try:
        read: dict[str, Any] = json.loads(json.dumps(dict(options), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"feature_options: numbers, strings and lists by name are expected ({error})") from error
    return read


def _names(columns: object) -> tuple[str, ...]:
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise ConfigError(f"columns is {columns!r}; give a list of names")
    names = tuple(columns)
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(f"columns names {name!r}; give the names of columns")
    return names


def _tokenizer(given: object) -> str | None:
    if given is not None and not isinstance(given, str | PathLike):
        raise ConfigError(f"tokenizer is {given!r}; give the path of a SentencePiece model, or a name: module:function")
    return None if given is None else fspath(given)


def _is_finite(number: object) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)


def is_function(name: str) -> bool:
    """Whether a name is `module:function`."""
    return _FUNCTION.fullmatch(name) is not None


def load_function(name: str) -> Any:
    """Import `module:function`.

    Raises:
        ConfigError: It is not there.
    """
    module, _, attribute = name.partition(":")
    problem = function = None
    try:
        function = getattr(importlib.import_module(module), attribute, None)
    except (Exception, SystemExit) as error:  # noqa: BLE001 (whatever the module does while it is imported)
        problem = f"{type(error).__name__}: {error}"
    if problem is not None:  # told without the error itself, which may be none that can be unpickled
        raise ConfigError(
            f"{name}: can't be imported ({problem}); its folder must be on PYTHONPATH, here and on every worker"
        )
    if not callable(function):
        raise ConfigError(f"{name}: {module} was imported, but has no function {attribute!r}")
    return function


def _digest(name: str) -> str:
    """Return a digest of a model file, or of the file of code that a function is in."""
    path = Path(name)
    if is_function(name):
        source = _source_file(name)
        if source is None:
            return digest_bytes(name.encode())
        path = Path(source)
    try:
        return digest_bytes(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{name}: can't be read ({error.strerror or error})") from error


def _source_file(name: str) -> str | None:
    """Return the file that a function is written in, or that of its module for what is callable otherwise."""
    function = inspect.unwrap(load_function(name))
    try:
        return inspect.getsourcefile(function)
    except TypeError:
        return getattr(importlib.import_module(name.partition(":")[0]), "__file__", None)
