"""The fingerprint of a pack job: all that decides its bytes, in parts, so that a refusal can say which part changed."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from uttershard.pipeline.dataset.digest import FileDigest, digest_bytes
from uttershard.pipeline.dataset.sidecar import FORMAT_VERSION

from .listing import Listing
from .settings import PackSettings

_ROWS = 65_536
_INPUTS = {
    "ids": ("key",),
    "audio": ("uri", "start", "end", "size"),
    "durations": ("duration",),
    "texts": ("text",),
    "metadata": ("metadata",),
}
"""Parts of the inputs, each a digest over these columns."""


def fingerprint(listing: Listing, settings: PackSettings) -> dict[str, Any]:
    """Return the parts and, under `digest`, one digest of them all.

    Args:
        listing: The corpus, with sizes, sorted by key (`take_inventory`). Addresses below its root count relative to
            it: a corpus that was moved gives the same fingerprint.
        settings: Only those that change bytes count.
    """
    parts = {
        "format_version": FORMAT_VERSION,
        "seed": settings.seed,
        "options": _options(settings),
        "inputs": _inputs(listing),
    }
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return {"digest": digest_bytes(text.encode("utf-8")), **parts}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Say what differs between two fingerprints, one `name: old -> new` each."""
    return [f"{name}: {_show(old)} -> {_show(new)}" for name, old, new in _differing(before, now)]


def _options(settings: PackSettings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "codec": settings.codec,
        "sample_rate": settings.sample_rate,
        "channels": settings.channels,
        "columns": list(settings.columns),
        "shards": settings.shards,
    }
    if settings.shards is None:
        options |= {"shard_bytes": settings.shard_bytes, "multiple": settings.multiple}
    return options


def _inputs(listing: Listing) -> dict[str, Any]:
    digests = {part: _digest(listing, columns) for part, columns in _INPUTS.items()}
    return {"utterances": len(listing), **digests}


def _relative(uris: pa.ChunkedArray, root: str) -> pa.ChunkedArray:
    below = pc.starts_with(uris, root)
    return pc.if_else(below, pc.utf8_slice_codeunits(uris, len(root)), uris)


def _digest(listing: Listing, columns: Iterable[str]) -> str:
    digest = FileDigest()
    root = listing.root.rstrip("/") + "/"
    for name in columns:
        column = listing.utterances[name]
        for start in range(0, len(column), _ROWS):
            run = column.slice(start, _ROWS)
            for piece in _bytes_of(_relative(run, root) if name == "uri" else run):
                digest.update(piece)
    return digest.text()


def _bytes_of(column: pa.ChunkedArray) -> Iterator[bytes]:
    """Yield what a run of values is, whatever the chunks and buffers it lies in."""
    yield np.packbits(pc.is_null(column).to_numpy()).tobytes()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        yield pc.fill_null(pc.binary_length(column), -1).to_numpy().astype("<i4").tobytes()
        yield "".join(pc.fill_null(column, "").to_pylist()).encode("utf-8")
    else:
        yield pc.fill_null(column, 0).to_numpy().astype("<f8" if pa.types.is_floating(column.type) else "<i8").tobytes()


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in {**before, **now}:
        old, new = before.get(name), now.get(name)
        if name == "digest" or old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differing(old, new)
        else:
            yield name, old, new


def _show(value: Any) -> str:
    # Digests of inputs are shown short: they only have to differ.
    return value[:17] + "…" if isinstance(value, str) and value.startswith("xxh3_128:") else json.dumps(value)
