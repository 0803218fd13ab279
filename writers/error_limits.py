"""How much bad input a job goes on with."""

from dataclasses import dataclass

from uttershard.pipeline.errors import ConfigError

ON_ERROR = ("skip", "raise")


@dataclass(frozen=True)
class ErrorLimits:
    """What is done about a refused utterance, and how many there may be."""

    on_error: str = "skip"
    """`skip` lists it in errors.jsonl and goes on; `raise` stops at the first."""
    max_errors: int | float = 0.01
    """More than this fails the job: a share of the corpus (float below 1), or a count (int)."""

    def __post_init__(self) -> None:
        if self.on_error not in ON_ERROR:
            raise ConfigError(f"on_error is {self.on_error!r}; it can be {' or '.join(ON_ERROR)}")
        if isinstance(self.max_errors, bool) or not isinstance(self.max_errors, int | float):
            raise ConfigError(f"max_errors is {self.max_errors!r}; it must be a share (float below 1) or a count (int)")
        if isinstance(self.max_errors, float) and not 0 <= self.max_errors < 1:
            raise ConfigError(
                f"max_errors is {self.max_errors}; a share must be 0 or more and below 1 (a count is written as an int)"
            )
        if self.max_errors < 0:
            raise ConfigError(f"max_errors is {self.max_errors}; it must be 0 or more")

    def allowed(self, corpus: int) -> int:
        """Return how many utterances of a corpus of this size may be refused.

        Example:
            >>> ErrorLimits(max_errors=0.01).allowed(250), ErrorLimits(max_errors=7).allowed(250)
            (2, 7)
        """
        return int(self.max_errors * corpus) if isinstance(self.max_errors, float) else self.max_errors


def parse_max_errors(text: str) -> int | float:
    """Read `--max-errors`: an integer is a count, anything with a point, an exponent or % is a share.

    Example:
        >>> parse_max_errors("20"), parse_max_errors("0.05"), parse_max_errors("5%")
        (20, 0.05, 0.05)
    """
    try:
        if text.endswith("%"):
            return float(text[:-1]) / 100
        return int(text) if text.strip().isdigit() else float(text)
    except ValueError:
        raise ConfigError(f"max_errors is {text!r}; write a count (20) or a share (0.05 or 5%)") from None
