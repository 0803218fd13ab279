"""What is said of an address at which there is no dataset, and of one that is empty."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from packed import Packed
from s3_cases import RemoteDataset
from uttershard.pipeline import ShardSet
from uttershard.pipeline.errors import ConfigError, DataError
from uttershard.writers import collect_stats, export, index_tars, merge, pack, subset


def test_nothing_is_told_from_an_unfinished_pack(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: there is no such folder"):
        ShardSet.open(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"there is no dataset\.json, nor a job"):
        ShardSet.open(tmp_path)
    job = tmp_path / ".uttershard" / "job.json"
    job.parent.mkdir()
    job.write_text("{}")
    with pytest.raises(DataError, match=r"has not finished it, .* Run it again"):
        ShardSet.open(tmp_path)


def test_the_same_in_a_store(remote: RemoteDataset) -> None:
    address = f"{remote.address}-unfinished"
    with pytest.raises(DataError, match=r"there is no dataset\.json, nor a job"):
        ShardSet.open(address, remote.options())
    remote.server.filesystem().pipe_file(f"{address}/.uttershard/job.json", b"{}")
    with pytest.raises(DataError, match="has not finished it"):
        ShardSet.open(address, remote.options())


@pytest.mark.parametrize(("address", "said"), [("gs://b/x", "gcsfs"), ("az://b/x", "adlfs"), ("s3x://b/x", "known")])
def test_stores_without_their_package(address: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("gcsfs", "adlfs"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=said):
        ShardSet.open(address)


@pytest.mark.parametrize(
    "write",
    [
        lambda dataset: pack(dataset, "", from_="webdataset"),
        lambda dataset: pack(dataset, "file://", from_="webdataset"),
        lambda dataset: index_tars([f"{dataset}/shard-000000.tar"], out=""),
        lambda dataset: collect_stats(dataset, out=""),
        lambda dataset: export(dataset, "jsonl", ""),
        lambda dataset: merge([dataset, dataset], "", prefixes=["a/", "b/"]),
        lambda dataset: subset(dataset, ""),
    ],
)
def test_an_empty_address_is_not_the_working_directory(
    flac: Packed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[str], object]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="the address to write to is empty: give a folder"):
        write(str(flac.address))
    assert list(tmp_path.iterdir()) == []
