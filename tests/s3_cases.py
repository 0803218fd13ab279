"""Datasets in the test suite's S3 server, and loaders on them, through a fault proxy or not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from corpora import write_audio, write_jsonl
from fault_proxy import FaultProxy
from packed import BINS, Packed
from s3_server import BUCKET, S3Server
from uttershard.pipeline import ShardLoader
from uttershard.pipeline.dataset.shardset import ShardSet

PATIENT = {"read_timeout": 20.0, "read_deadline": 100.0}
"""For what must succeed: a busy machine is no fault."""
HASTY = {"read_timeout": 0.4, "read_deadline": 1.5}
"""For answers that never come: the error comes at these limits."""


@dataclass(frozen=True)
class RemoteDataset:
    """The same dataset on a local disk and in the store."""

    packed: Packed
    address: str
    server: S3Server

    def options(self, proxy: FaultProxy | None = None, **more: Any) -> dict[str, Any]:
        """storage_options."""
        return self.server.options(None if proxy is None else proxy.endpoint, **more)

    def shards(self, proxy: FaultProxy | None = None) -> ShardSet:
        """Open the dataset."""
        return ShardSet.open(self.address, self.options(proxy))

    def loader(self, proxy: FaultProxy | None = None, **settings: Any) -> ShardLoader:
        """Open a loader on the store."""
        settings = {"rank": 0, "world_size": 1, "batch_bins": BINS, **PATIENT, **settings}
        return ShardLoader(self.address, storage_options=self.options(proxy), **settings)

    def opened_loader(self, proxy: FaultProxy, **settings: Any) -> ShardLoader:
        """Open a dataset patiently, and then a loader whose limits hold for the tars."""
        settings = {"rank": 0, "world_size": 1, "batch_bins": BINS, **PATIENT, **settings}
        return ShardLoader(self.shards(proxy), **settings)

    def tar_bytes(self) -> int:
        """Bytes of all tars."""
        return sum(path.stat().st_size for path in self.packed.address.glob("*.tar"))


def cached_tars(folder: Path) -> list[Path]:
    """The tars in a cache."""
    return sorted(folder.glob("*.tar"))


def tar_requests(proxy: FaultProxy) -> list[str]:
    """Requests that were made for tars."""
    return [path for path in proxy.requests if ".tar" in path]


def large_corpus(folder: Path, utterances: int) -> Path:
    """Write utterances of two megabytes each: of a few shards, each has several parts."""
    names = [f"utt{number:02d}" for number in range(utterances)]
    for number, name in enumerate(names):
        write_audio(folder / f"{name}.wav", 60.0, seed=number)
    return write_jsonl(folder / "train.jsonl", [{"audio_filepath": f"{name}.wav", "text": name} for name in names])


def place_of(request: pytest.FixtureRequest, prefix: str) -> str:
    """An address that no other test has."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return f"s3://{BUCKET}/{prefix}/{name}"


def uploads(s3: S3Server, address: str) -> list[Any]:
    """Multipart uploads below an address that were neither completed nor aborted."""
    prefix = address.removeprefix(f"s3://{BUCKET}/")
    found = s3.filesystem().call_s3("list_multipart_uploads", Bucket=BUCKET, Prefix=prefix)
    return list(found.get("Uploads", []))


def stored(s3: S3Server, address: str) -> dict[str, bytes]:
    """All objects below an address, by name."""
    prefix = address.removeprefix("s3://")
    filesystem = s3.filesystem()
    # The server lists folders that have become empty.
    paths = [path for path in filesystem.find(prefix) if path.startswith(f"{prefix}/")]
    return {path.removeprefix(f"{prefix}/"): filesystem.cat_file(path) for path in paths}
