"""Settings of a pack job: the only home of their defaults, validated once, on creation."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from uttershard.pipeline.dataset.sidecar import sidecar_schema
from uttershard.pipeline.errors import ConfigError

from .error_limits import ErrorLimits
from .targets.limits import WriteLimits

CODECS = ("keep", "flac", "wav", "opus")
OPUS_RATES = (8000, 12000, 16000, 24000, 48000)
"""The rates Opus has (RFC 6716, section 2); any other rate would have to be resampled first."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True)
class PackSettings:
    """How a corpus is packed.

    Raises:
        ConfigError: A value is out of range, or two of them are in conflict.

    Example:
        >>> PackSettings(codec="flac", sample_rate=16_000, shards=16).codec
        'flac'
    """

    codec: str = "keep"
    """`keep` copies the source's bytes where nothing is to be changed; `flac`, `wav` and `opus` are made if need be."""
    sample_rate: int | None = None
    """Hertz of everything packed; None leaves each file at its own."""
    channels: int | None = None
    """Channels of everything packed (1 mixes down); None leaves each file at its own."""
    shards: int | None = None
    """How many shards; None derives it from `shard_bytes` and `multiple`."""
    shard_bytes: int = 512_000_000
    """Size aimed at when `shards` is None: large enough for a store's throughput, small enough to redo."""
    multiple: int = 8
    """A derived number of shards is rounded up to a multiple of this, so that usual world sizes divide it."""
    columns: tuple[str, ...] = ()
    """Metadata fields that become columns of the sidecar."""
    seed: int = 0
    """Seed of the shuffle that deals utterances to shards."""
    on_error: str = "skip"
    """`skip` lists a refused utterance in errors.jsonl and goes on; `raise` stops at the first."""
    max_errors: int | float = 0.01
    """More refused than this fails the job: a share of the corpus (float below 1), or a count (int)."""
    workers: int | None = None
    """Dask worker processes; None means one for each CPU core."""
    retries: int = 5
    """How often a task is given to another worker when its worker died or a read failed."""
    overwrite: bool = False
    """Remove what an earlier pack left in the target, finished or not."""
    write_timeout: float = 60.0
    """Seconds after which a request that writes to a store is given up and made again."""
    write_deadline: float = 300.0
    """Seconds for one such request with all its attempts."""
    allow_pipes: bool = False
    """Run `command |` entries of a wav.scp through the shell. Only for corpora you trust: they are programs."""
    source_options: Mapping[str, str] = field(default_factory=dict)
    """Options of the source's reader: names of fields, a delimiter (see the reader's class)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "source_options", dict(self.source_options))
        self._check_audio()
        self._check_shards()
        ErrorLimits(self.on_error, self.max_errors)
        repeated = sorted({name for name in self.columns if self.columns.count(name) > 1})
        if repeated:
            raise ConfigError(f"columns names {repeated[0]!r} twice")
        sidecar_schema(dict.fromkeys(self.columns, "string"))  # refuses names that the format itself uses
        WriteLimits(self.write_timeout, self.write_deadline)
        _at_least("workers", self.workers, 1)
        _at_least("retries", self.retries, 0)

    @property
    def write_limits(self) -> WriteLimits:
        """How long a store may take."""
        return WriteLimits(self.write_timeout, self.write_deadline)

    @property
    def error_limits(self) -> ErrorLimits:
        """How many utterances may be refused."""
        return ErrorLimits(self.on_error, self.max_errors)

    def _check_audio(self) -> None:
        if self.codec not in CODECS:
            raise ConfigError(f"codec is {self.codec!r}; it can be {', '.join(CODECS)}")
        _at_least("sample_rate", self.sample_rate, 1)
        _at_least("channels", self.channels, 1)
        if self.codec == "opus" and self.sample_rate is not None and self.sample_rate not in OPUS_RATES:
            rates = ", ".join(map(str, OPUS_RATES))
            raise ConfigError(f"sample_rate is {self.sample_rate}, but Opus has only {rates} Hz")

    def _check_shards(self) -> None:
        _at_least("shards", self.shards, 1)
        _at_least("shard_bytes", self.shard_bytes, 1)
        _at_least("multiple", self.multiple, 1)
        _at_least("seed", self.seed, 0)
        if self.seed >= 1 << 64:
            raise ConfigError(f"seed is {self.seed}; it must be below 2**64")


def parse_size(text: str) -> int:
    """Read a size in bytes as a person writes it; k, M, G and T are powers of 1000, Ki, Mi, Gi and Ti of 1024.

    Example:
        >>> parse_size("512MB"), parse_size("1.5 GiB"), parse_size("4096")
        (512000000, 1610612736, 4096)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{text!r} is not a size; write for example 512MB, 1.5GiB or a number of bytes")
    number, prefix, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** _POWERS[prefix.lower()])


def _at_least(name: str, value: Any, least: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} is {value!r}; it must be an integer")
    if value < least:
        raise ConfigError(f"{name} is {value}; it must be {least} or more")
