"""What is measured, and how: the only home of the defaults."""

import importlib
import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uttershard.pipeline.dataset.digest import digest_bytes
from uttershard.pipeline.errors import ConfigError

FEATURES = ("fbank", "log_mel", "none")
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
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "feature_options", dict(self.feature_options))
        if self.features not in FEATURES and not is_function(self.features):
            raise ConfigError(
                f"features is {self.features!r}; it can be {', '.join(FEATURES)}, or module:function of yours"
            )
        if self.features in ("fbank", "log_mel") and self.sample_rate is None:
            raise ConfigError(f"{self.features} needs a sample_rate: its filters depend on it")
        if self.sample_rate is not None and (not isinstance(self.sample_rate, int) or self.sample_rate < 1):
            raise ConfigError(f"sample_rate is {self.sample_rate!r}; it must be a whole number of Hz")
        if "sample_rate" in self.feature_options:
            raise ConfigError("sample_rate is a setting of its own, not one of feature_options")
        if not math.isfinite(self.silence_dbfs):
            raise ConfigError(f"silence_dbfs is {self.silence_dbfs!r}; it must be a number of decibels, such as -60")
        if not self.histogram_seconds > 0:
            raise ConfigError(f"histogram_seconds is {self.histogram_seconds!r}; it must be more than 0")

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


def is_function(name: str) -> bool:
    """Whether a name is `module:function`."""
    return _FUNCTION.fullmatch(name) is not None


def load_function(name: str) -> Any:
    """Import `module:function`.

    Raises:
        ConfigError: It is not there.
    """
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{name}: can't be imported ({error}); it must be importable on every worker") from error
    if not callable(function):
        raise ConfigError(f"{name}: not a function")
    return function


def _digest(name: str) -> str:
    """Return a digest of a model file, or of the file of code that a function is in."""
    path = Path(name)
    if is_function(name):
        source = inspect.getsourcefile(inspect.unwrap(load_function(name)))
        if source is None:
            return digest_bytes(name.encode())
        path = Path(source)
    try:
        return digest_bytes(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{name}: can't be read ({error.strerror or error})") from error
