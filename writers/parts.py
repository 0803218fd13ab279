"""Corpora that come in many files of one kind (tars, Parquet files): each is listed by a task where a job has workers.

A source goes through its files with `each`, and need not know where that runs. What runs it is set for a whole job,
like the options of a store (see `source_store`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from .source_store import with_source

_Part = TypeVar("_Part")
_Result = TypeVar("_Result")

MANY = 8
"""So many parts are worth starting workers for, which takes as long as listing a few tars."""


class RunParts(Protocol):
    """Runs a function on each part and yields (number of the part, result) in any order, as `Cluster.run` does."""

    def __call__(
        self, function: Callable[[Any], Any], tasks: Iterable[Any], name: Callable[[int], str], /
    ) -> Iterator[tuple[int, Any]]:
        """Run them; `name` says what a part is called in messages."""
        ...


_run: ContextVar[RunParts | None] = ContextVar("run_parts", default=None)


@contextmanager
def run_parts_by(run: RunParts) -> Iterator[None]:
    """Have the parts of a corpus run by this until the block ends; it is called only if there are many."""
    token = _run.set(run)
    try:
        yield
    finally:
        _run.reset(token)


def each(function: Callable[[_Part], _Result], parts: Sequence[_Part]) -> Iterator[_Result]:
    """Yield what a function gives for each part, in their order, wherever it runs.

    Args:
        function: Importable on workers, with all it needs: a function of a module, or a `partial` of one.
        parts: Small values.

    Example:
        >>> list(each(len, ["one", "three"]))
        [3, 5]
    """
    run = _run.get()
    if run is None or len(parts) < MANY:
        yield from map(function, parts)
        return
    early: dict[int, _Result] = {}
    expected = 0
    for number, result in run(with_source(function), parts, lambda number: str(parts[number])):
        early[number] = result
        while expected in early:
            yield early.pop(expected)
            expected += 1
