"""Sources by name: `--from kaldi`, or guessed from the address where that is safe."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from uttershard.pipeline.dataset.files import local_path
from uttershard.pipeline.errors import ConfigError

from .base import Source, may_be_corpus
from .commonvoice import CommonvoiceSource
from .csv import CsvSource
from .folder import FolderSource
from .hf import HfSource
from .jsonl import JsonlSource
from .kaldi import EspnetSource, KaldiSource
from .lhotse import LhotseSource
from .librispeech import LibrispeechSource
from .nemo import NemoSource
from .webdataset import WebdatasetSource
from .wenet import WenetSource

_SOURCES: dict[str, type[Source]] = {
    # Asked in this order when guessing: a Kaldi directory is a folder, too.
    source.name: source
    for source in (
        EspnetSource,
        KaldiSource,
        CommonvoiceSource,
        LibrispeechSource,
        LhotseSource,
        HfSource,
        NemoSource,
        WebdatasetSource,
        WenetSource,
        JsonlSource,
        CsvSource,
        FolderSource,
    )
}

_SETTINGS = frozenset({"allow_pipes"})
"""Fields of a source that are settings of the job and not options of the reader."""


def source_names() -> tuple[str, ...]:
    """Return the names that `--from` knows."""
    return tuple(_SOURCES)


def open_source(
    address: str, from_: str | None = None, options: Mapping[str, str] | None = None, *, allow_pipes: bool = False
) -> Source:
    """Return the source at an address.

    Args:
        address: Where the corpus is.
        from_: Its kind, one of `source_names()`; guessed from the address if None.
        options: Options of that kind, by name.
        allow_pipes: Whether commands in a corpus may be run.

    Raises:
        ConfigError: An unknown kind or option, or a kind that can't be guessed.
    """
    source = by_name(from_) if from_ is not None else _guess(address)
    fields = {field.name for field in dataclasses.fields(source)} - {"address"}  # type: ignore[arg-type]
    arguments: dict[str, Any] = dict(options or {})
    for option in arguments:
        if option not in fields - _SETTINGS:
            known = ", ".join(sorted(fields - _SETTINGS)) or "none"
            raise ConfigError(f"the source {source.name!r} has no option {option!r}; it has: {known}")
    if "allow_pipes" in fields:
        arguments["allow_pipes"] = allow_pipes
    elif allow_pipes:
        raise ConfigError(f"allow_pipes is given, but the source {source.name!r} has no pipes")
    return source(address, **arguments)  # type: ignore[call-arg]


def by_name(name: str) -> type[Source]:
    """Return the source of that name.

    Raises:
        ConfigError: There is none.
    """
    if name not in _SOURCES:
        raise ConfigError(f"unknown kind of source {name!r}; known are: {', '.join(_SOURCES)}")
    return _SOURCES[name]


def _guess(address: str) -> type[Source]:
    for source in _SOURCES.values():
        if source.matches(address):
            return source
    path = local_path(address)
    if path is not None and not may_be_corpus(address):
        reason = "does not exist"
    elif path is not None and Path(path).is_dir():
        reason = "is a folder without audio files and lists of a known name"
    else:
        reason = "is of no kind that can be told by its name"
    raise ConfigError(
        f"{address!r} {reason}; if it is a corpus, name its kind with --from, one of: {', '.join(_SOURCES)}"
    )
