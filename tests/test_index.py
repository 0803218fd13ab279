"""Sidecars and manifest are made again from the tars, byte for byte what packing wrote; damaged tars are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from corpora import files_of
from packed import Packed, keys_of, make_dataset
from uttershard.pipeline import ShardSet
from uttershard.pipeline.errors import ConfigError, DataError, StorageError
from uttershard.writers import IndexSummary, index_tars, pack, verify


def index(dataset: Path, **settings: Any) -> IndexSummary:
    return index_tars([str(dataset)], workers=1, **settings)


@pytest.fixture(scope="module")
def whole(flac: Packed) -> dict[str, bytes]:
    return files_of(flac.address)


def test_nothing_changes_where_nothing_is_missing(broken: Packed, whole: dict[str, bytes]) -> None:
    summary = index(broken.address)
    assert files_of(broken.address) == whole
    assert summary.changed == ()
    assert (summary.shards, summary.utterances) == (4, len(broken.sources))
    assert summary.digest == ShardSet.open(broken.address).digest


@pytest.mark.parametrize("lost", [[2], [0, 1, 2, 3]], ids=["one", "all"])
def test_lost_sidecars_come_back(broken: Packed, whole: dict[str, bytes], lost: list[int]) -> None:
    for shard in lost:
        broken.sidecar(shard).unlink()
    summary = index(broken.address)
    assert summary.changed == tuple(broken.sidecar(shard).name for shard in lost)
    assert files_of(broken.address) == whole


def test_a_damaged_sidecar_is_made_again(broken: Packed, whole: dict[str, bytes]) -> None:
    broken.sidecar(1).write_bytes(b"damaged")
    assert index(broken.address).changed == ("shard-000001.parquet",)
    assert files_of(broken.address) == whole


@pytest.mark.parametrize("lost", [[], [0, 3]], ids=["no sidecar", "two sidecars"])
def test_a_lost_manifest_leaves_all_sidecars_as_they_were(
    broken: Packed, whole: dict[str, bytes], lost: list[int]
) -> None:
    """Columns and fingerprint are then known from a sidecar that is still there."""
    digest = ShardSet.open(broken.address).digest
    (broken.address / "dataset.json").unlink()
    for shard in lost:
        broken.sidecar(shard).unlink()
    assert index(broken.address).digest == digest
    found = files_of(broken.address)
    assert {name: found[name] for name in whole if name != "dataset.json"} == {
        name: data for name, data in whole.items() if name != "dataset.json"
    }
    manifest = ShardSet.open(broken.address).manifest
    assert manifest.fingerprint["digest"] == json.loads(whole["dataset.json"])["fingerprint"]["digest"]
    assert verify(str(broken.address), deep=True, workers=1).ok


def test_from_the_tars_alone(broken: Packed, flac: Packed) -> None:
    """All else is lost: the rows are the same, only the fingerprint of the pack job cannot be known."""
    rows = ShardSet.open(flac.address).index()
    for path in broken.address.iterdir():
        if path.suffix != ".tar":
            path.unlink()
    index(broken.address, columns=("speaker",))
    assert ShardSet.open(broken.address).index().equals(rows)
    assert verify(str(broken.address), workers=1).ok
    assert keys_of(broken.loader()) == keys_of(flac.loader())
    again = files_of(broken.address)
    index(broken.address)
    assert files_of(broken.address) == again


def test_columns_take_the_type_of_their_values(broken: Packed) -> None:
    for path in broken.address.iterdir():
        if path.suffix != ".tar":
            path.unlink()
    index(broken.address, columns=("take", "speaker"))
    dataset = ShardSet.open(broken.address)
    assert dataset.manifest.columns == {"take": "int64", "speaker": "string"}
    takes = dict(zip(*(dataset.index([name])[name].to_pylist() for name in ("key", "take")), strict=True))
    assert takes == {key: source.meta["take"] for key, source in broken.sources.items()}


@pytest.mark.parametrize("codec", ["wav", "opus", "flac"])
def test_every_codec_that_pack_makes(tmp_path: Path, codec: str) -> None:
    dataset = make_dataset(tmp_path, utterances=9, shards=2, rates=(16_000, 24_000), channels=(1, 2), codec=codec)
    whole = files_of(dataset.address)
    dataset.sidecar(0).unlink()
    dataset.sidecar(1).unlink()
    index(dataset.address)
    assert files_of(dataset.address) == whole


def test_packing_again_after_the_index_was_made_has_nothing_to_do(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path, utterances=6, shards=2)
    (dataset.address / "dataset.json").unlink()
    index(dataset.address)
    summary = pack(tmp_path / "train.jsonl", dataset.address, shards=2, columns=("speaker",), workers=1)
    assert summary.already_complete


# Elsewhere


def test_out_elsewhere_loads(flac: Packed, tmp_path: Path, whole: dict[str, bytes]) -> None:
    out = tmp_path / "index"
    summary = index(flac.address, out=str(out))
    assert summary.dataset == str(out)
    assert files_of(flac.address) == whole
    assert {path.suffix for path in out.iterdir()} == {".parquet", ".json"}
    elsewhere = Packed(out, flac.sources)
    assert keys_of(elsewhere.loader()) == keys_of(flac.loader())
    assert verify(str(out), deep=True, workers=1).ok


def test_tars_by_name_in_the_order_given(flac: Packed, tmp_path: Path) -> None:
    tars = [str(flac.tar(shard)) for shard in (3, 1)]
    index_tars(tars, out=str(tmp_path / "part"), workers=1)
    dataset = ShardSet.open(tmp_path / "part")
    assert [Path(shard.tar) for shard in dataset.manifest.shards] == [flac.tar(3).resolve(), flac.tar(1).resolve()]


def test_an_index_elsewhere_is_made_again_in_its_place(flac: Packed, tmp_path: Path) -> None:
    out = tmp_path / "index"
    index(flac.address, out=str(out))
    whole = files_of(out)
    (out / "shard-000001.parquet").unlink()
    summary = index_tars([str(out)], workers=1)
    assert files_of(out) == whole
    assert summary.changed == ("shard-000001.parquet",)


# What is refused


def test_a_part_of_a_dataset_does_not_replace_its_manifest(broken: Packed, whole: dict[str, bytes]) -> None:
    with pytest.raises(ConfigError, match=r"dataset\.json lists shard-000000\.tar too.*give the folder"):
        index_tars([str(broken.tar(1))], workers=1)
    assert files_of(broken.address) == whole


def test_tars_of_several_folders_need_a_place(flac: Packed, wav: Packed, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="several folders: say with out="):
        index_tars([str(flac.tar(0)), str(wav.tar(1))], workers=1)
    with pytest.raises(ConfigError, match=r"would have the same sidecar shard-000000\.parquet"):
        index_tars([str(flac.tar(0)), str(wav.tar(0))], out=str(tmp_path / "out"), workers=1)
    assert not (tmp_path / "out").exists()


def test_other_columns_than_those_known_are_refused(broken: Packed) -> None:
    with pytest.raises(ConfigError, match="the sidecars have speaker; leave them out"):
        index(broken.address, columns=("take",))


def test_a_column_that_no_utterance_has(broken: Packed) -> None:
    for path in broken.address.iterdir():
        if path.suffix != ".tar":
            path.unlink()
    with pytest.raises(ConfigError, match=r"'spaeker'.*there are: .*speaker"):
        index(broken.address, columns=("spaeker",))


def test_no_tars(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no tars in"):
        index(tmp_path)
    with pytest.raises(DataError, match=r"none\.tar: no such file"):
        index_tars([str(tmp_path / "none.tar")], workers=1)


@pytest.mark.parametrize("manifest", [True, False])
@pytest.mark.parametrize(
    ("place", "message"),
    [
        (("header", 3), r"shard-000001\.tar: the header at offset \d+ is damaged"),
        (("json", 1), r"shard-000001\.tar.*\.json member is damaged"),
        (("audio", 0), r"shard-000001\.tar.*"),
        (("cut", -512 * 25), r"shard-000001\.tar.*cut"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_damaged_tar_is_refused_and_has_no_sidecar(
    broken: Packed, place: tuple[str, int], message: str, manifest: bool
) -> None:
    for path in broken.address.iterdir():
        if path.suffix == ".parquet" or (path.name == "dataset.json" and not manifest):
            path.unlink()
    tar = bytearray(broken.tar(1).read_bytes())
    what, shift = place
    if what == "cut":
        tar = tar[:shift]
    else:
        start = {"header": 0, "json": tar.index(b'{"id"'), "audio": tar.index(b"fLaC")}[what] + shift
        tar[start : start + 2] = b"\xff\xfe"
    broken.tar(1).write_bytes(tar)
    with pytest.raises(DataError, match=message):
        index(broken.address)
    assert (broken.address / "dataset.json").exists() == manifest
    assert not broken.sidecar(1).exists()


def test_a_tar_that_is_not_the_one_of_the_manifest(broken: Packed) -> None:
    shutil.copyfile(broken.tar(0), broken.tar(1))
    with pytest.raises(DataError, match=r"shard-000001\.tar: not the tar that dataset\.json lists"):
        index(broken.address)


def test_a_restart_without_a_cluster_keeps_what_was_done(broken: Packed, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise StorageError("no cluster")

    shutil.copyfile(broken.tar(0), broken.tar(1))
    with pytest.raises(DataError):
        index(broken.address)
    done = sorted((broken.address / ".uttershard/done").iterdir())
    assert done
    monkeypatch.setattr("uttershard.writers.index.start_cluster", fail)
    with pytest.raises(StorageError, match="no cluster"):
        index(broken.address)
    assert sorted((broken.address / ".uttershard/done").iterdir()) == done


def test_members_named_for_another_id(broken: Packed) -> None:
    tar = broken.tar(1).read_bytes()
    assert b'"id":"plain-' in tar
    broken.tar(1).write_bytes(tar.replace(b'"id":"plain-', b'"id":"plane-', 1))
    with pytest.raises(DataError, match=r"its .json says it is 'plane-.*members have another name"):
        index(broken.address)
