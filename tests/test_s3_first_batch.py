"""The first batch of a cold dataset of a thousand shards: how much is asked of the store before it is there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from fault_proxy import Fault, FaultProxy
from packed import seen
from s3_cases import RemoteDataset
from uttershard.pipeline.dataset.manifest import MANIFEST_NAME, encode_manifest
from uttershard.pipeline.storage.prefetch import REQUESTS_IN_FLIGHT

SHARDS = 1000


@pytest.fixture(scope="module")
def many(remote: RemoteDataset, tmp_path_factory: pytest.TempPathFactory) -> RemoteDataset:
    """A dataset whose manifest lists the eight shards of another again and again."""
    folder = tmp_path_factory.mktemp("many") / "shards"
    packed = remote.packed.copy(folder)
    manifest = remote.shards().manifest
    shards = tuple(manifest.shards[number % len(manifest.shards)] for number in range(SHARDS))
    (folder / MANIFEST_NAME).write_bytes(encode_manifest(replace(manifest, shards=shards)))
    return RemoteDataset(packed, remote.server.upload(folder, "many"), remote.server)


@pytest.mark.parametrize(("delay", "storage"), [(0.03, "spans"), (0.2, "windows"), (0.03, "cache")])
def test_few_requests_come_before_the_first_batch(
    many: RemoteDataset, proxy: FaultProxy, tmp_path: Path, delay: float, storage: str
) -> None:
    settings: dict[str, Any] = {"spans": {}, "windows": {"windows": 100}, "cache": {"cache": tmp_path}}[storage]
    windows = settings.get("windows")
    expected = seen(next(iter(many.packed.loader(windows=windows))))
    # Its own spans, which are asked for first, and what is on its way beside them.
    needed = len(expected.keys) + REQUESTS_IN_FLIGHT
    more = Event()
    proxy.faults = [Fault(match=".tar", times=needed, delay=delay), Fault(match=".tar", hold=more), Fault(delay=delay)]
    loader = many.loader(proxy, **settings, threads=1)
    assert len(proxy.requests) == 1 + SHARDS, "one for the manifest, one for each sidecar"
    batch = next(iter(loader))
    made = list(proxy.requests)
    more.set()
    assert seen(batch) == expected
    tars = [path for path in made if ".tar" in path]
    assert 0 < len(tars) <= needed + 2 * REQUESTS_IN_FLIGHT
    assert len(made) == 1 + SHARDS + len(tars)
