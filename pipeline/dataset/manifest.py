"""The manifest `dataset.json`: which shards a dataset has, how big they are, what is in them; written last.

No manifest, no dataset: a folder that a pack job has not finished can't be mistaken for one.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from typing import Any

from ..errors import DataError
from .digest import digest_of_digests
from .sidecar import FORMAT_VERSION, sidecar_schema

MANIFEST_NAME = "dataset.json"
FORMAT_NAME = "uttershard"


@dataclass(frozen=True)
class ShardEntry:
    """One shard as the manifest lists it; addresses are relative to the manifest's folder unless absolute."""

    tar: str
    sidecar: str
    tar_bytes: int
    tar_digest: str
    sidecar_bytes: int
    sidecar_digest: str
    utterances: int
    samples: int
    seconds: float
    shortest_seconds: float
    longest_seconds: float


@dataclass(frozen=True)
class Manifest:
    """The whole manifest.

    `digest` changes if and only if a byte of any shard or sidecar does; plans and resume states are tied to it.
    """

    shards: tuple[ShardEntry, ...]
    columns: dict[str, str]
    """Metadata columns of the sidecars: name -> type (`string`, `int64`, `float64`, `bool`)."""
    fingerprint: dict[str, Any]
    """What made the dataset: inputs, options, seed, format version, and `digest` over them."""
    created_by: str = field(default_factory=lambda: f"uttershard {version('uttershard')}")

    @property
    def digest(self) -> str:
        """Digest of the dataset: of its shards' and sidecars' digests, in order."""
        return digest_of_digests(text for shard in self.shards for text in (shard.tar_digest, shard.sidecar_digest))

    @property
    def utterances(self) -> int:
        """How many utterances there are in all shards."""
        return sum(shard.utterances for shard in self.shards)

    @property
    def samples(self) -> int:
        """Samples of all utterances, of one channel each."""
        return sum(shard.samples for shard in self.shards)

    @property
    def seconds(self) -> float:
        """Seconds of audio in all shards."""
        return sum(shard.seconds for shard in self.shards)

    @property
    def tar_bytes(self) -> int:
        """Bytes of all tars."""
        return sum(shard.tar_bytes for shard in self.shards)


def shard_names(index: int) -> tuple[str, str]:
    """Name the tar and the sidecar of a shard.

    Example:
        >>> shard_names(17)
        ('shard-000017.tar', 'shard-000017.parquet')
    """
    return f"shard-{index:06d}.tar", f"shard-{index:06d}.parquet"


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of `dataset.json`."""
    nonempty = [shard for shard in manifest.shards if shard.utterances]
    body = {
        "format": FORMAT_NAME,
        "format_version": FORMAT_VERSION,
        "created_by": manifest.created_by,
        "digest": manifest.digest,
        "totals": {
            "shards": len(manifest.shards),
            "utterances": manifest.utterances,
            "samples": manifest.samples,
            "seconds": manifest.seconds,
            "bytes": manifest.tar_bytes,
            "shortest_seconds": min((shard.shortest_seconds for shard in nonempty), default=0.0),
            "longest_seconds": max((shard.longest_seconds for shard in nonempty), default=0.0),
        },
        "columns": manifest.columns,
        "fingerprint": manifest.fingerprint,
        "shards": [asdict(shard) for shard in manifest.shards],
    }
    return (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode("utf-8")


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Read `dataset.json`; `where` is its address, for error messages.

    Raises:
        DataError: It is no manifest, of a later format, or its parts do not agree with its digest.
    """
    try:
        body = json.loads(data)
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({error}); pack again, or rebuild it with `uttershard index`") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT_NAME:
        raise DataError(f'{where}: not an uttershard manifest (no "format": "{FORMAT_NAME}" in it)')
    if body.get("format_version") != FORMAT_VERSION:
        raise DataError(
            f"{where}: format version {body.get('format_version')}, this uttershard reads {FORMAT_VERSION}: "
            "install the version that wrote it, or a later one"
        )
    try:
        manifest = Manifest(
            shards=_decode_shards(body["shards"]),
            columns=dict(body["columns"]),
            fingerprint=dict(body["fingerprint"]),
            created_by=str(body["created_by"]),
        )
        sidecar_schema(manifest.columns)  # refuses what no sidecar can have
        stated = body["digest"]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{where}: the manifest is damaged ({type(error).__name__}: {error}); rebuild it with `uttershard index`"
        ) from error
    if stated != manifest.digest:
        raise DataError(f"{where}: the manifest was changed by hand: its digest does not match the shards it lists")
    return manifest


def _decode_shards(entries: Sequence[dict[str, Any]]) -> tuple[ShardEntry, ...]:
    shards = tuple(ShardEntry(**entry) for entry in entries)
    for shard in shards:
        for item in fields(shard):
            value, kind = getattr(shard, item.name), item.type
            # JSON has one kind of number: 2.0 may be written 2.
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise TypeError(f"{item.name} is {value!r}, expected {kind}")
    return shards
