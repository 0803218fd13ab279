"""Adopting tars of other tools: they load like any dataset, and not a byte of them is changed."""

import io
import json
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import webdataset
from corpora import RATE, files_of, noise, read_errors, write_jsonl
from fault_proxy import FaultProxy
from s3_server import ACCESS, BUCKET, SECRET, S3Server
from typer.testing import CliRunner
from uttershard.pipeline import ShardLoader, ShardSet
from uttershard.pipeline.errors import ConfigError, DataError, StorageError
from uttershard.scripts.cli.app import app
from uttershard.writers import index_tars, verify
from uttershard.writers.doubled_ids import refuse_doubled


def encoded(seed: int, kind: str = "FLAC", seconds: float = 0.2) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, noise(seconds, seed), RATE, format=kind, subtype="VORBIS" if kind == "OGG" else "PCM_16")
    return file.getvalue()


def write_tar(path: Path, members: Sequence[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def webdataset_tars(folder: Path, shards: int = 3, *, restart: bool = False) -> list[Path]:
    """As webdataset writes them: the text in `.txt` or in `.json`, metadata beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"train-{shard:04d}.tar" for shard in range(shards)]
    for shard, path in enumerate(paths):
        with webdataset.TarWriter(str(path)) as writer:
            for number in range(4):
                seed = number if restart else 4 * shard + number
                sample: dict[str, Any] = {"__key__": f"{seed:06d}", "flac": encoded(seed)}
                sample["json"] = {"speaker": f"spk{seed % 3}", "age": seed}
                if number % 2:
                    sample["txt"] = f"text {seed}"
                else:
                    sample["json"]["transcript"] = f"text {seed}"
                writer.write(sample)
    return paths


def loaded(dataset: Path | str, **settings: Any) -> dict[str, tuple[np.ndarray, str | None, dict[str, Any]]]:
    """Return samples, text and metadata of every utterance, by key."""
    found = {}
    for batch in ShardLoader(str(dataset), batch_size=3, **settings):
        for row, key in enumerate(batch.keys):
            samples = batch.audio[row, : int(batch.audio_lengths[row])].numpy()
            assert key not in found
            found[key] = (samples, batch.text[row], batch.meta[row])
    return found


def assert_noise(samples: np.ndarray, seed: int, seconds: float = 0.2) -> None:
    np.testing.assert_array_equal(samples, noise(seconds, seed) / np.float32(32768))


def test_webdataset_in_place(tmp_path: Path) -> None:
    paths = webdataset_tars(tmp_path)
    before = {path: path.read_bytes() for path in paths}
    summary = index_tars([str(tmp_path / "train-{0000..0002}.tar")], columns=("speaker", "age"), workers=1)
    assert (summary.utterances, summary.shards, summary.refused) == (12, 3, 0)
    assert {path: path.read_bytes() for path in paths} == before
    found = loaded(tmp_path, where='speaker == "spk1"')
    assert sorted(found) == ["000001", "000004", "000007", "000010"]
    found = loaded(tmp_path)
    for seed in range(12):
        samples, text, meta = found[f"{seed:06d}"]
        assert_noise(samples, seed)
        assert (text, meta["age"]) == (f"text {seed}", seed)
    assert verify(str(tmp_path), deep=True).ok
    again = index_tars([str(tmp_path)], columns=("speaker", "age"), workers=1)
    assert again.digest == summary.digest


def test_elsewhere(tmp_path: Path) -> None:
    webdataset_tars(tmp_path / "tars")
    before = files_of(tmp_path / "tars")
    index_tars([str(tmp_path / "tars")], out=str(tmp_path / "out"), workers=1)
    assert files_of(tmp_path / "tars") == before
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "dataset.json",
        *(f"train-{shard:04d}.parquet" for shard in range(3)),
    ]
    assert len(loaded(tmp_path / "out")) == 12


def test_what_is_no_utterance_is_listed(tmp_path: Path) -> None:
    good = [("a.flac", encoded(0)), ("a.txt", b"hi")]
    bad = [
        ("b.txt", b"no audio"),
        ("c.flac", encoded(1)),
        ("d.flac", b"not audio"),
        ("c.txt", b"not adjacent"),
        ("e.flac", encoded(2)),
        ("e.wav", encoded(2, "WAV")),
        ("f.flac", encoded(3)[:-50]),
    ]
    write_tar(tmp_path / "x.tar", [*good, *bad])
    summary = index_tars([str(tmp_path / "x.tar")], max_errors=5, workers=1)
    assert sorted(loaded(tmp_path)) == ["a"]
    errors = {error["key"]: error["reason"] for error in read_errors(tmp_path)}
    assert summary.utterances == 1
    assert summary.refused == len(read_errors(tmp_path)) == 5
    assert errors["b"] == "one audio member expected, found 0 among txt"
    assert errors["c"].startswith("its members are not adjacent")
    assert errors["d"].startswith("not audio")
    assert errors["e"] == "one audio member expected, found 2 among flac, wav"
    assert errors["f"].startswith("truncated")


def test_ids_that_all_count_from_zero(tmp_path: Path) -> None:
    webdataset_tars(tmp_path, restart=True)
    with pytest.raises(DataError, match=r"8 of 12 .*twice: in train-0000\.tar and in .*--unique-ids"):
        index_tars([str(tmp_path)], workers=1)
    assert not (tmp_path / "dataset.json").exists()
    summary = index_tars([str(tmp_path)], max_errors=8, workers=1)
    assert (summary.utterances, summary.refused) == (4, 8)
    errors = read_errors(tmp_path)
    assert sorted(error["key"] for error in errors) == sorted(2 * [f"{seed:06d}" for seed in range(4)])
    assert {error["source"].partition(":")[0] for error in errors} == {"train-0001.tar", "train-0002.tar"}
    assert len(loaded(tmp_path)) == 4
    assert verify(str(tmp_path)).ok
    index_tars([str(tmp_path)], unique_ids=True, workers=1)
    found = loaded(tmp_path)
    assert len(found) == 12
    assert not (tmp_path / "errors.jsonl").exists()
    assert_noise(found["train-0002/000003"][0], 3)
    assert verify(str(tmp_path)).ok


def test_a_restart_reads_no_tar_that_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise StorageError("stopped")

    paths = webdataset_tars(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(StorageError, match="stopped"):
        patch.setattr("uttershard.writers.index.refuse_doubled", stop)
        index_tars([str(tmp_path)], columns=("speaker",), workers=1)
    for path in paths:
        about = path.stat()
        path.write_bytes(bytes(about.st_size))  # nothing could be read of it
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    summary = index_tars([str(tmp_path)], columns=("speaker",), workers=1)
    assert (summary.utterances, summary.refused) == (12, 0)
    assert ShardSet.open(tmp_path).manifest.columns == {"speaker": "string"}
    assert not (tmp_path / ".uttershard").exists()


def test_a_dataset_that_is_indexed_again_can_be_read_until_the_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*arguments: Any) -> list[Any]:
        assert {name: data for name, data in files_of(tmp_path).items() if name in before} == before
        return refuse_doubled(*arguments)

    def stop(_: object) -> bytes:
        raise StorageError("stopped")

    webdataset_tars(tmp_path, restart=True)
    index_tars([str(tmp_path)], max_errors=8, workers=1)
    before = files_of(tmp_path)
    assert index_tars([str(tmp_path)], max_errors=8, workers=1).changed == ()
    with monkeypatch.context() as patch, pytest.raises(StorageError, match="stopped"):
        patch.setattr("uttershard.writers.index.refuse_doubled", look)  # all tars are read then
        patch.setattr("uttershard.writers.index.encode_manifest", stop)
        index_tars([str(tmp_path)], unique_ids=True, workers=1)
    with pytest.raises(DataError, match="rebuild it with `uttershard index`"):
        ShardSet.open(tmp_path).index()
    assert index_tars([str(tmp_path)], unique_ids=True, workers=1).utterances == len(loaded(tmp_path)) == 12
    assert not (tmp_path / ".uttershard").exists()


def test_wenet(tmp_path: Path) -> None:
    """WeNet's tars have the text first, keys with dots, and no metadata."""
    members = [
        member
        for seed in range(3)
        for member in ((f"rec.{seed}.txt", f"text {seed}".encode()), (f"rec.{seed}.wav", encoded(seed, "WAV")))
    ]
    write_tar(tmp_path / "shards_000000000.tar", members)
    index_tars([str(tmp_path / "shards_000000000.tar")], naming="wenet", workers=1)
    found = loaded(tmp_path)
    assert {key: text for key, (_, text, _) in found.items()} == {f"rec.{seed}": f"text {seed}" for seed in range(3)}
    assert_noise(found["rec.2"][0], 2)


def nemo(folder: Path) -> None:
    records: list[dict[str, Any]] = []
    for shard in range(2):
        seeds = [2 * shard, 2 * shard + 1]
        write_tar(folder / f"audio_{shard}.tar", [(f"rec{seed}.wav", encoded(seed, "WAV")) for seed in seeds])
        for seed in seeds:
            records.append(
                {
                    "audio_filepath": f"rec{seed}.wav",
                    "duration": 0.2,
                    "text": f"text {seed}",
                    "shard_id": shard,
                    "lang": "de",
                }
            )
    write_jsonl(folder / "tarred_audio_manifest.json", records)
    for shard in range(2):
        write_jsonl(folder / f"manifest_{shard}.json", [record for record in records if record["shard_id"] == shard])


@pytest.mark.parametrize("manifests", ["tarred_audio_manifest.json", "manifest__OP_0..1_CL_.json"])
def test_nemo(tmp_path: Path, manifests: str) -> None:
    nemo(tmp_path)
    summary = index_tars(
        [str(tmp_path / "audio__OP_0..1_CL_.tar")],
        out=str(tmp_path / "out"),
        manifests=str(tmp_path / manifests),
        columns=("lang",),
        workers=1,
    )
    assert (summary.utterances, summary.refused) == (4, 0)
    found = loaded(tmp_path / "out", where='lang == "de"')
    for seed in range(4):
        assert_noise(found[f"rec{seed}"][0], seed)
        assert found[f"rec{seed}"][1] == f"text {seed}"
    assert ShardSet.open(str(tmp_path / "out")).index(["text_chars"])["text_chars"].to_pylist() == [6] * 4


def test_nemo_names_with_dots_and_folders(tmp_path: Path) -> None:
    """NeMo finds a member's line by its file's name up to the last dot."""
    write_tar(tmp_path / "audio_0.tar", [(f"./clips/rec.{seed}.wav", encoded(seed, "WAV")) for seed in range(2)])
    lines = [{"audio_filepath": f"rec.{seed}.wav", "duration": 0.2, "text": f"text {seed}"} for seed in range(2)]
    manifest = str(write_jsonl(tmp_path / "manifest_0.json", lines))
    index_tars([str(tmp_path / "audio_0.tar")], out=str(tmp_path / "out"), manifests=manifest, workers=1)
    found = loaded(tmp_path / "out")
    assert {key: text for key, (_, text, _) in found.items()} == {
        f"clips/rec.{seed}": f"text {seed}" for seed in range(2)
    }
    assert_noise(found["clips/rec.1"][0], 1)
    assert verify(str(tmp_path / "out"), deep=True).ok


def test_nemo_segments_are_listed(tmp_path: Path) -> None:
    nemo(tmp_path)
    lines = [
        {"audio_filepath": "rec0.wav", "duration": 0.05, "offset": 0.0, "text": "a"},
        {"audio_filepath": "rec0-sub1.wav", "duration": 0.05, "offset": 0.1, "text": "b"},
        {"audio_filepath": "gone.wav", "duration": 0.2, "text": "c"},
    ]
    write_jsonl(tmp_path / "manifest_0.json", lines)
    manifests = str(tmp_path / "manifest_{0..1}.json")
    tars = [str(tmp_path / "audio_{0..1}.tar")]
    index_tars(tars, out=str(tmp_path / "out"), manifests=manifests, max_errors=3, workers=1)
    assert sorted(loaded(tmp_path / "out")) == ["rec2", "rec3"]
    reasons = [error["reason"] for error in read_errors(tmp_path / "out")]
    assert len(reasons) == 3
    assert any("2 segments of it" in reason and "--from nemo" in reason for reason in reasons)
    with pytest.raises(ConfigError, match="naming nemo goes with manifests"):
        index_tars([str(tmp_path / "audio_0.tar")], naming="nemo", workers=1)


def test_a_replaced_tar_is_noticed(tmp_path: Path) -> None:
    paths = webdataset_tars(tmp_path)
    for checksums in (True, False):
        index_tars([str(tmp_path)], checksums=checksums, workers=1)
        first = paths[0].read_bytes()
        paths[0].write_bytes(paths[1].read_bytes())
        if len(first) == paths[0].stat().st_size:
            with pytest.raises(DataError, match="is not the one that the sidecar describes"):
                loaded(tmp_path)
        paths[0].write_bytes(first)
        assert len(loaded(tmp_path)) == 12


def test_a_cut_tar_is_refused(tmp_path: Path) -> None:
    paths = webdataset_tars(tmp_path)
    paths[1].write_bytes(paths[1].read_bytes()[:-11_000])
    with pytest.raises(DataError, match=r"train-0001\.tar.*cut"):
        index_tars([str(tmp_path)], workers=1)
    assert not (tmp_path / "dataset.json").exists()


def test_from_a_store_by_ranged_reads(
    s3: S3Server, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [(f"rec{seed}.flac", encoded(seed, seconds=45.0)) for seed in range(3)]
    tar = write_tar(tmp_path / "tars" / "train-0000.tar", members)
    address = s3.upload(tmp_path / "tars", "adopt")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    summary = index_tars([f"{address}/train-{{0000..0000}}.tar"], out=str(tmp_path / "out"), workers=1)
    assert (summary.utterances, summary.hours) == (3, 135 / 3600)
    assert proxy.body_bytes < tar.stat().st_size / 4
    shards = ShardSet.open(str(tmp_path / "out"))
    assert shards.manifest.shards[0].tar == f"s3://{BUCKET}/adopt/train-0000.tar"
    assert shards.index(["xxh3"])["xxh3"].to_pylist() == [0] * 3
    assert shards.manifest.shards[0].tar_digest.startswith("headers_xxh3_128:")
    for settings in ({}, {"cache": str(tmp_path / "cache")}):
        found = loaded(tmp_path / "out", storage_options=s3.options(), **settings)
        for seed in range(3):
            assert_noise(found[f"rec{seed}"][0], seed, 45.0)
    checked = index_tars([f"{address}/train-0000.tar"], out=str(tmp_path / "checked"), checksums=True, workers=1)
    assert checked.utterances == 3
    assert ShardSet.open(str(tmp_path / "checked")).manifest.shards[0].tar_digest.startswith("xxh3_128:")


def test_command(tmp_path: Path) -> None:
    webdataset_tars(tmp_path)
    write_tar(tmp_path / "x.tar", [("a.flac", encoded(0)), ("b.txt", b"no audio")])
    arguments = ["index", str(tmp_path / "x.tar"), "--out", str(tmp_path / "out"), "--workers", "1"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code != 0
    assert "1 of 2 utterances refused" in str(result.exception)
    result = CliRunner().invoke(app, [*arguments, "--on-error", "raise"])
    assert "refused: b (x.tar:b): one audio member expected" in str(result.exception)
    result = CliRunner().invoke(app, [*arguments, "--max-errors", "50%"])
    assert result.exit_code == 0, result.output
    assert "1 sample refused" in result.output
    result = CliRunner().invoke(app, [*arguments, "--naming", "tarball"])
    assert result.exit_code != 0
    assert json.loads((tmp_path / "out" / "dataset.json").read_bytes())["fingerprint"]["naming"] == "foreign"
