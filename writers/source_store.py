"""The file system of a corpus in a store, with the corpus' own options: those of the target may be another identity's.

Options are set for a whole job or task, and not handed down to every reader of every kind of corpus.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import fsspec
from fsspec.utils import tokenize
from uttershard.pipeline.dataset.files import StorageOptions
from uttershard.pipeline.errors import ConfigError
from uttershard.pipeline.remote.faults import redact

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

_options: ContextVar[StorageOptions | None] = ContextVar("source_options", default=None)


@contextmanager
def source_storage(options: StorageOptions | None) -> Iterator[None]:
    """Read corpora with these options until the block ends; None for what the environment says."""
    token = _options.set(options)
    try:
        yield
    finally:
        _options.reset(token)


@dataclass(frozen=True)
class WithSource(Generic[_Task, _Result]):
    """A task's function that reads a corpus, with the options to read it with; never shown, since Dask logs tasks."""

    function: Callable[[_Task], _Result]
    options: StorageOptions | None = field(repr=False)

    def __call__(self, task: _Task) -> _Result:
        """Run it."""
        with source_storage(self.options):
            return self.function(task)


def with_source(function: Callable[[_Task], _Result]) -> WithSource[_Task, _Result]:
    """Return a task's function with the options that are set here."""
    return WithSource(function, _options.get())


def open_filesystem(address: str) -> tuple[Any, str]:
    """Return the file system of a remote address of a corpus, and the path in it.

    Raises:
        ConfigError: fsspec does not know the kind of address, or its package is not installed.
    """
    options = _options.get() or {}
    try:
        filesystem, path = fsspec.core.url_to_fs(address, **options)
    except (ValueError, ImportError, TypeError) as error:
        why = redact(str(error), options)
        raise ConfigError(f"{redact(address)}: {why} (look at the address and the source's storage options)") from None
    return filesystem, str(path)


def source_identity() -> int:
    """Return what changes with the options, for what is kept of a corpus in memory."""
    return int(tokenize(_options.get() or {}), 16)
