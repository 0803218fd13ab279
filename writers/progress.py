"""How a job tells what it is doing; silent unless somebody listens."""

from dataclasses import dataclass
from typing import Literal, Protocol

Phase = Literal["list", "probe", "pack", "index", "verify", "stats", "export", "merge", "subset"]


@dataclass(frozen=True)
class Done:
    """So much more is done; `kept` if an earlier run did it, which says nothing of how fast this one is."""

    utterances: int = 0
    seconds: float = 0.0
    nbytes: int = 0
    refused: int = 0
    retries: int = 0
    kept: bool = False

    def __add__(self, other: "Done") -> "Done":
        return Done(
            self.utterances + other.utterances,
            self.seconds + other.seconds,
            self.nbytes + other.nbytes,
            self.refused + other.refused,
            self.retries + other.retries,
            self.kept and other.kept,
        )


class Progress(Protocol):
    """Told of each phase in turn: `begin`, any number of `advance`, `end`. Called from one thread.

    Only `note` may be called from another, too: of a cluster that starts while a corpus is listed.
    """

    def begin(self, phase: Phase, *, utterances: int | None, seconds: float | None) -> None:
        """A phase begins; totals are None where they are not known."""
        ...

    def advance(self, done: Done) -> None:
        """So much more is done."""
        ...

    def end(self) -> None:
        """The phase is over, also when it failed."""
        ...

    def note(self, message: str) -> None:
        """Something a person may want to know; also between phases."""
        ...


class Silent:
    """Listens to nothing."""

    def begin(self, phase: Phase, *, utterances: int | None, seconds: float | None) -> None:
        """Do nothing."""

    def advance(self, done: Done) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""

    def note(self, message: str) -> None:
        """Do nothing."""
