"""Settings of reading from a remote store."""

from dataclasses import dataclass, field
from pathlib import Path

from ..errors import ConfigError
from ..remote.retry import Limits

DEFAULT_PREFETCH_BYTES = 128_000_000


@dataclass(frozen=True)
class StorageSettings:
    """How tars of a remote dataset are read; never changes the batches.

    Attributes:
        cache: Folder on a local disk to keep whole tars in, shared by all jobs of a node; None reads spans from the
            store in every epoch.
        cache_bytes: Most that the cache may hold; None for what the disk has.
        prefetch_bytes: Most that each process fetches ahead of its decoders.
        limits: How long a read may take.
    """

    cache: Path | None = None
    cache_bytes: int | None = None
    prefetch_bytes: int = DEFAULT_PREFETCH_BYTES
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for name in ("cache_bytes", "prefetch_bytes"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ConfigError(f"{name}={value!r}: give bytes, a whole number of 1 or more")
        if self.cache_bytes is not None and self.cache is None:
            raise ConfigError(f"cache_bytes={self.cache_bytes} has no meaning without cache: give a folder")
        if self.cache is not None:
            if "://" in str(self.cache):
                raise ConfigError(f"cache={str(self.cache)!r}: the cache is a folder on a local disk")
            object.__setattr__(self, "cache", Path(self.cache).expanduser().absolute())
