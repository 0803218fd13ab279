"""NeMo manifests: plain, and tarred as NeMo's convert_to_tarred_audio_dataset lays them out."""

import tarfile
from pathlib import Path
from typing import Any

import pytest
from corpora import RATE, noise, write_audio, write_jsonl
from source_checks import assert_samples, list_corpus, rows_of
from uttershard.pipeline.errors import ConfigError
from uttershard.writers.sources import nemo as nemo_source
from uttershard.writers.sources.nemo import NemoSource


def tarred(folder: Path, *, sharded: bool) -> Path:
    """Two tars of two files each; the second file of a tar has two segments in the manifest."""
    records: list[dict[str, Any]] = []
    for shard in range(2):
        (folder / "files").mkdir(parents=True, exist_ok=True)
        with tarfile.open(folder / f"audio_{shard}.tar", "w") as tar:
            for number in range(2):
                name = f"dir_rec{shard}{number}.wav"
                tar.add(write_audio(folder / "files" / name, 1.0, seed=2 * shard + number), arcname=name)
        fields = {"text": f"text {shard}", "shard_id": shard, "lang": "de"}
        records.append({"audio_filepath": f"dir_rec{shard}0.wav", "duration": 1.0, **fields})
        records.append({"audio_filepath": f"dir_rec{shard}1.wav", "duration": 0.5, "offset": 0.0, **fields})
        records.append({"audio_filepath": f"dir_rec{shard}1-sub1.wav", "duration": 0.25, "offset": 0.5, **fields})
    if not sharded:
        write_jsonl(folder / "tarred_audio_manifest.json", records)
        return folder / "tarred_audio_manifest.json"
    for shard in range(2):
        write_jsonl(folder / f"manifest_{shard}.json", [record for record in records if record["shard_id"] == shard])
    return folder / "manifest__OP_0..1_CL_.json"


@pytest.mark.parametrize("sharded", [True, False])
def test_tarred(tmp_path: Path, sharded: bool) -> None:
    address = tarred(tmp_path, sharded=sharded)
    listing = list_corpus(address, "nemo", tars=f"{tmp_path}/audio__OP_0..1_CL_.tar")
    rows = rows_of(listing)
    assert not listing.refused
    assert len(rows) == 6
    for shard in range(2):
        assert_samples(rows[f"dir_rec{shard}0"], noise(1.0, 2 * shard))
        assert_samples(rows[f"dir_rec{shard}1"], noise(1.0, 2 * shard + 1)[: RATE // 2])
        assert_samples(rows[f"dir_rec{shard}1-sub1"], noise(1.0, 2 * shard + 1)[RATE // 2 : RATE * 3 // 4])
        assert (rows[f"dir_rec{shard}0"]["text"], rows[f"dir_rec{shard}0"]["metadata"]) == (
            f"text {shard}",
            '{"lang":"de"}',
        )


def test_members_and_lines_without_each_other(tmp_path: Path) -> None:
    tarred(tmp_path, sharded=True)
    write_jsonl(
        tmp_path / "manifest_0.json", [{"audio_filepath": "dir_rec00.wav", "text": ""}, {"audio_filepath": "x.wav"}]
    )
    listing = list_corpus(tmp_path / "manifest_{0..1}.json", "nemo", tars=f"{tmp_path}/audio_{{0..1}}.tar")
    assert len(listing) == 4
    assert sorted(refusal.key or "" for refusal in listing.refused) == ["dir_rec01", "x"]


def test_numbers_of_tars_and_manifests(tmp_path: Path) -> None:
    tarred(tmp_path, sharded=True)
    with pytest.raises(ConfigError, match="2 manifests for 1 tars"):
        list_corpus(tmp_path / "manifest_{0..1}.json", "nemo", tars=f"{tmp_path}/audio_0.tar")


def test_a_tarred_manifest_without_its_tars_says_so(tmp_path: Path) -> None:
    tarred(tmp_path, sharded=True)
    listing = list_corpus(tmp_path / "manifest_0.json", "nemo")
    assert not listing.utterances.num_rows
    assert all("does not exist" in reason and "option tars" in reason for _, _, reason in listing.refused)


def test_plain_segments_of_one_file(tmp_path: Path) -> None:
    write_audio(tmp_path / "a.wav", 1.0)
    segments = [{"audio_filepath": "a.wav", "offset": start, "duration": 0.25, "text": "t"} for start in (0.0, 0.5)]
    rows = rows_of(list_corpus(write_jsonl(tmp_path / "m.json", segments), "nemo"))
    assert_samples(rows["a"], noise(1.0)[: RATE // 4])
    assert_samples(rows["a-sub1"], noise(1.0)[RATE // 2 : RATE * 3 // 4])


def test_plain_lines_are_the_same_as_columns_and_one_by_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    audio = str(write_audio(tmp_path / "x.wav"))
    line = {"audio_filepath": audio, "duration": 0.5, "offset": 0.1, "text": "hi", "lang": "de"}
    odd = [{**line, "id": "own"}, {**line, "audio_filepath": "none.wav"}, {**line, "text": 5}, {"duration": 1}]
    for extra in ([], *([record] for record in odd)):
        path = write_jsonl(tmp_path / "m.json", [line, *extra, line, line])
        source = NemoSource(str(path))
        columns = source.list_utterances()
        with monkeypatch.context() as patch:
            patch.setattr(nemo_source, "add_records", lambda *arguments: False)
            one_by_one = source.list_utterances()
        assert columns.utterances.equals(one_by_one.utterances)
        assert columns.refused == one_by_one.refused
        assert len(set(columns.utterances["key"].to_pylist())) >= 3
