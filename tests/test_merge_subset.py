"""Datasets joined and selected from, without decoding: the same bytes for each utterance, counts that add up."""

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from corpora import write_audio
from uttershard.pipeline import ShardLoader, ShardSet
from uttershard.pipeline.dataset.digest import UNCHECKED, digest_bytes
from uttershard.pipeline.dataset.manifest import encode_manifest
from uttershard.pipeline.dataset.sidecar import encode_sidecar
from uttershard.pipeline.errors import ConfigError, DataError
from uttershard.pipeline.planning.settings import Filters
from uttershard.writers import export, index_tars, merge, pack, subset, verify
from uttershard.writers.exports.utterances import read_utterances


@pytest.fixture(scope="module")
def parts(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two halves of the demo corpus, with different metadata columns."""
    folder = tmp_path_factory.mktemp("parts")
    lines = (demo / "manifest.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    made = []
    for name, chosen, columns in (("a", lines[::2], ("speaker",)), ("b", lines[1::2], ("speaker", "language"))):
        manifest = folder / f"{name}.jsonl"
        manifest.write_text("".join(chosen).replace('"audio/', f'"{demo}/audio/'), encoding="utf-8")
        pack(manifest, folder / name, shards=2, workers=2, columns=columns)
        made.append(folder / name)
    return made[0], made[1]


def checksums(dataset: Path | str) -> dict[str, int]:
    table = ShardSet.open(str(dataset)).index(["key", "xxh3"])
    return dict(zip(table["key"].to_pylist(), table["xxh3"].to_pylist(), strict=True))


def streamed(dataset: Path | str) -> set[str]:
    loader = ShardLoader(str(dataset), batch_bins=30_000, rank=0, world_size=1)
    return {key for batch in loader for key in batch.keys}


def test_a_merged_dataset_holds_all_utterances_and_streams(parts: tuple[Path, Path], tmp_path: Path) -> None:
    summary = merge([str(part) for part in parts], str(tmp_path / "all"))
    assert checksums(tmp_path / "all") == {**checksums(parts[0]), **checksums(parts[1])}
    assert summary.utterances == len(checksums(tmp_path / "all")) == 200
    assert streamed(tmp_path / "all") == checksums(tmp_path / "all").keys()
    assert verify(str(tmp_path / "all"), deep=True).ok
    assert list(ShardSet.open(str(tmp_path / "all")).manifest.columns) == ["speaker", "language"]
    languages = ShardSet.open(str(tmp_path / "all")).index(["language"])["language"]
    assert languages.null_count == len(checksums(parts[0])), "a column that a part lacks is null there"


def test_equal_columns_need_no_new_sidecar(parts: tuple[Path, Path], tmp_path: Path) -> None:
    subset(str(parts[1]), str(tmp_path / "half"), filters=Filters(max_seconds=3), shards=1)
    subset(str(parts[1]), str(tmp_path / "rest"), filters=Filters(where="seconds > 3"), shards=1)
    summary = merge([str(tmp_path / "half"), str(tmp_path / "rest")], str(tmp_path / "all"))
    assert summary.sidecars_written == 0
    assert [path.name for path in (tmp_path / "all").iterdir()] == ["dataset.json"]
    assert checksums(tmp_path / "all") == checksums(parts[1])


def test_equal_ids_are_refused_or_told_apart(parts: tuple[Path, Path], tmp_path: Path) -> None:
    one = str(parts[0])
    with pytest.raises(DataError, match=r"100 ids are there twice, e\.g\. .*--prefix"):
        merge([one, one], str(tmp_path / "all"))
    assert not (tmp_path / "all").exists()
    merge([one, one], str(tmp_path / "all"), prefixes=["a/", "b/"])
    keys = checksums(one).keys()
    assert checksums(tmp_path / "all").keys() == {prefix + key for prefix in ("a/", "b/") for key in keys}
    assert streamed(tmp_path / "all") == checksums(tmp_path / "all").keys()
    assert verify(str(tmp_path / "all")).ok


def test_utterances_of_one_name_are_told_apart_in_a_tar(parts: tuple[Path, Path], tmp_path: Path) -> None:
    import webdataset

    one = str(parts[0])
    merge([one, one], str(tmp_path / "all"), prefixes=["a/", "b/"])
    subset(str(tmp_path / "all"), str(tmp_path / "some"), shards=1)
    keys = checksums(tmp_path / "all").keys()
    assert checksums(tmp_path / "some").keys() == streamed(tmp_path / "some") == keys
    assert verify(str(tmp_path / "some"), deep=True).ok

    with tarfile.open(tmp_path / "some/shard-000000.tar") as tar:
        names = tar.getnames()
    assert len(names) == len(set(names))
    records = list(webdataset.WebDataset(str(tmp_path / "some/shard-000000.tar"), shardshuffle=False).decode())
    assert len(records) == len({record["__key__"] for record in records}) == len(keys) == 200
    # The first of a name keeps the bytes and so the id that it was packed with.
    assert len({record["json"]["id"] for record in records}) == 200

    before = {each.key: each for each in read_utterances(ShardSet.open(str(tmp_path / "all")), tmp_path / "x")}
    after = {each.key: each for each in read_utterances(ShardSet.open(str(tmp_path / "some")), tmp_path / "y")}
    for key, utterance in before.items():
        assert Path(after[key].audio.address).read_bytes() == Path(utterance.audio.address).read_bytes()
        assert (after[key].text, after[key].metadata) == (utterance.text, utterance.metadata)


def test_a_subset_of_adopted_tars_has_checksums_and_names_of_its_own(tmp_path: Path) -> None:
    audio = write_audio(tmp_path / "x.wav").read_bytes()
    for tar_name in ("p", "q"):
        with tarfile.open(tmp_path / f"{tar_name}.tar", "w") as tar:
            for name in ("7.wav", "7.txt", "8.wav", "8.txt"):
                info = tarfile.TarInfo(name)
                data = audio if name.endswith("wav") else f"{tar_name}{name}".encode()
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    index_tars([str(tmp_path / "p.tar"), str(tmp_path / "q.tar")], out=str(tmp_path / "adopted"), unique_ids=True)
    subset(str(tmp_path / "adopted"), str(tmp_path / "some"), shards=1)
    texts = {each.key: each.text for each in read_utterances(ShardSet.open(str(tmp_path / "some")), None)}
    assert texts == {"p/7": "p7.txt", "p/8": "p8.txt", "q/7": "q7.txt", "q/8": "q8.txt"}
    with tarfile.open(tmp_path / "some/shard-000000.tar") as tar:
        assert len(set(tar.getnames())) == 8
    assert verify(str(tmp_path / "some"), deep=True).ok


@pytest.mark.parametrize("hours", [0.01, 0.05, 0.1])
def test_a_subset_is_the_hours_asked_for_and_grows_with_them(
    parts: tuple[Path, Path], tmp_path: Path, hours: float
) -> None:
    source = ShardSet.open(str(parts[0]))
    smaller = subset(str(parts[0]), str(tmp_path / "small"), hours=hours, shards=1)
    larger = subset(str(parts[0]), str(tmp_path / "large"), hours=hours * 1.2, shards=2)
    longest = max(shard.longest_seconds for shard in source.manifest.shards)
    assert hours - longest / 3600 < smaller.hours <= hours
    assert checksums(tmp_path / "small").items() <= checksums(tmp_path / "large").items()
    assert checksums(tmp_path / "large").items() <= checksums(parts[0]).items()
    assert larger.shards == 2
    assert verify(str(tmp_path / "large"), deep=True).ok
    assert streamed(tmp_path / "small") == checksums(tmp_path / "small").keys()


def test_a_subset_by_rules_holds_what_the_rules_keep(parts: tuple[Path, Path], tmp_path: Path) -> None:
    summary = subset(str(parts[1]), str(tmp_path / "de"), filters=Filters(where='language == "de"'), shards=1)
    table = ShardSet.open(str(parts[1])).index(["key", "language"])
    expected = set(table.filter(pa.compute.equal(table["language"], "de"))["key"].to_pylist())
    assert checksums(tmp_path / "de").keys() == expected
    assert summary.filtered["kept"] == summary.utterances == len(expected) > 0


def test_subset_and_merge_refuse_what_makes_no_sense(parts: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="hours is 0"):
        subset(str(parts[0]), str(tmp_path / "x"), hours=0)
    with pytest.raises(ConfigError, match="less than the first utterance"):
        subset(str(parts[0]), str(tmp_path / "x"), hours=1e-6)
    with pytest.raises(ConfigError, match="two datasets"):
        merge([str(parts[0])], str(tmp_path / "x"))
    with pytest.raises(ConfigError, match="holds a dataset already"):
        subset(str(parts[0]), str(parts[1]))
    with pytest.raises(ConfigError, match="1 prefixes for 2 datasets"):
        merge([str(part) for part in parts], str(tmp_path / "x"), prefixes=["a"])


def test_what_is_merged_is_exported_whole(parts: tuple[Path, Path], tmp_path: Path) -> None:
    merge([str(parts[0]), str(parts[0])], str(tmp_path / "all"), prefixes=["a/", "b/"])
    export(str(tmp_path / "all"), "webdataset", str(tmp_path / "tars"), extract=True)
    assert len(list((tmp_path / "tars").glob("*.tar"))) == 4
    with pytest.raises(ConfigError, match=r"NeMo can't find .*extract"):
        export(str(tmp_path / "all"), "nemo", str(tmp_path / "nemo"))
    export(str(tmp_path / "all"), "jsonl", str(tmp_path / "jsonl"), extract=True)
    assert len(list((tmp_path / "jsonl").rglob("audio/*/*"))) == 200


def test_utterances_without_a_checksum_are_copied_and_exported(parts: tuple[Path, Path], tmp_path: Path) -> None:
    """As adopted from a store, where nothing but headers is read."""
    source = ShardSet.open(str(parts[0]))
    entries = []
    for shard, entry in enumerate(source.manifest.shards):
        table, info = source.sidecar(shard)
        unread = pa.array([UNCHECKED] * len(table), pa.uint64())
        table = table.set_column(table.schema.get_field_index("xxh3"), table.schema.field("xxh3"), unread)
        data = encode_sidecar(table.combine_chunks(), info)
        (tmp_path / entry.sidecar).write_bytes(data)
        tar = source.tar_address(shard)
        entries.append(replace(entry, tar=tar, sidecar_bytes=len(data), sidecar_digest=digest_bytes(data)))
    (tmp_path / "dataset.json").write_bytes(encode_manifest(replace(source.manifest, shards=tuple(entries))))
    subset(str(tmp_path), str(tmp_path / "some"), shards=1)
    assert checksums(tmp_path / "some") == checksums(parts[0]), "what is read gets its checksum"
    assert export(str(tmp_path), "jsonl", str(tmp_path / "list")).utterances == 100
