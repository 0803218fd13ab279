"""How long a store may take over what is written to it."""

from dataclasses import dataclass

from uttershard.pipeline.errors import ConfigError


@dataclass(frozen=True)
class WriteLimits:
    """Seconds for one attempt at a request, and for the request with all its attempts."""

    write_timeout: float = 60.0
    write_deadline: float = 300.0

    def __post_init__(self) -> None:
        for name, value in (("write_timeout", self.write_timeout), ("write_deadline", self.write_deadline)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise ConfigError(f"{name}={value!r}: give seconds above 0, since every wait has a limit")
