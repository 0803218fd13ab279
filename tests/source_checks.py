"""What tests of sources have in common: list a corpus, read the audio of what was listed, pack it."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from uttershard.pipeline.reading.codecs import decode
from uttershard.writers.audio import fetch
from uttershard.writers.ids import refuse_bad_ids
from uttershard.writers.inventory import take_inventory
from uttershard.writers.listing import Listing
from uttershard.writers.settings import PackSettings
from uttershard.writers.sources import open_source


def list_corpus(address: str | Path, from_: str | None = None, *, allow_pipes: bool = False, **options: str) -> Listing:
    """List a corpus as `pack` does, files looked up."""
    source = open_source(str(address), from_, options, allow_pipes=allow_pipes)
    return take_inventory(refuse_bad_ids(source.list_utterances()))


def rows_of(listing: Listing) -> dict[str, dict[str, Any]]:
    """Return the rows by key."""
    return {row["key"]: row for row in listing.utterances.to_pylist()}


def samples_of(row: dict[str, Any], **settings: Any) -> NDArray[Any]:
    """Return what would be packed of a row, decoded."""
    audio = fetch(row["uri"], row["start"], row["end"], PackSettings(**settings))
    return decode(audio.info.codec, audio.data, audio.info.num_samples, audio.info.channels)


def assert_samples(row: dict[str, Any], expected: NDArray[Any]) -> None:
    """Check that exactly these samples would be packed."""
    found = samples_of(row)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
