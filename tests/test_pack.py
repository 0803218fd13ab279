"""`pack` end to end: what comes in comes out, bytes don't depend on the workers, refusals are listed and counted."""

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import webdataset
from corpora import files_of, jsonl_corpus, noise, read_errors, write_audio, write_jsonl, write_lines
from uttershard.pipeline.dataset.shardset import ShardSet
from uttershard.pipeline.errors import ConfigError, DataError
from uttershard.writers import PackSummary, pack
from uttershard.writers.progress import Done, Phase


def members_of(folder: Path) -> dict[str, bytes]:
    """Return all members of all tars of a dataset."""
    members: dict[str, bytes] = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for info in tar:
                file = tar.extractfile(info)
                assert file is not None
                members[info.name] = file.read()
    return members


class Recorder:
    """Progress that keeps what it is told."""

    def __init__(self) -> None:
        self.phases: list[tuple[Phase, int | None]] = []
        self.totals: dict[Phase, Done] = {}
        self.ended = 0

    def begin(self, phase: Phase, *, utterances: int | None, seconds: float | None) -> None:
        self.phases.append((phase, utterances))
        self.totals[phase] = Done()

    def advance(self, done: Done) -> None:
        self.totals[self.phases[-1][0]] += done

    def end(self) -> None:
        self.ended += 1


def test_from_corpus_to_dataset(tmp_path: Path) -> None:
    manifest = jsonl_corpus(tmp_path / "corpus", 24, speaker="tom", age=30)
    recorder = Recorder()
    target = tmp_path / "out"
    summary = pack(manifest, target, shards=4, columns=("speaker", "age"), workers=1, progress=recorder)

    table = ShardSet.open(str(target)).index()
    assert sorted(table["key"].to_pylist()) == [f"utt{number:03d}" for number in range(24)]
    assert set(table["speaker"].to_pylist()) == {"tom"}
    assert set(table["age"].to_pylist()) == {30}
    members = members_of(target)
    for row in table.to_pylist():
        key = row["key"]
        number = int(key[3:])
        assert members[f"{key}.flac"] == (tmp_path / "corpus" / "audio" / f"{key}.flac").read_bytes()
        assert members[f"{key}.txt"] == f"text of {number}".encode()
        assert json.loads(members[f"{key}.json"]) == {"id": key, "speaker": "tom", "age": 30}
        assert row["num_samples"] == round(0.2 * (1 + number / 24) * 16_000)
        assert (row["sample_rate"], row["channels"], row["codec"]) == (16_000, 1, "flac")
        assert row["text_chars"] == len(f"text of {number}")

    seconds = sum(row["num_samples"] for row in table.to_pylist()) / 16_000
    nbytes = sum(path.stat().st_size for path in target.glob("*.tar"))
    assert summary == PackSummary(
        dataset=str(target),
        utterances=24,
        hours=pytest.approx(seconds / 3600),
        bytes=nbytes,
        shards=4,
        refused=0,
        already_complete=False,
        elapsed=summary.elapsed,
    )
    assert sorted(path.name for path in target.iterdir()) == sorted(
        ["dataset.json", *(f"shard-{n:06d}.{ending}" for n in range(4) for ending in ("parquet", "tar"))]
    )
    assert recorder.phases == [("list", None), ("probe", 24), ("pack", 24)]
    assert recorder.ended == 3
    assert recorder.totals["pack"] == Done(24, pytest.approx(seconds), nbytes)
    # Shards are equal in seconds to within one utterance.
    loads = [shard.seconds for shard in ShardSet.open(str(target)).manifest.shards]
    assert max(loads) - min(loads) <= 0.4


def test_plain_webdataset_reads_it(tmp_path: Path) -> None:
    target = tmp_path / "out"
    pack(jsonl_corpus(tmp_path / "corpus", 10), target, shards=2, workers=1)
    urls = [str(path) for path in sorted(target.glob("*.tar"))]
    samples = list(webdataset.WebDataset(urls, shardshuffle=False))
    assert sorted(sample["__key__"] for sample in samples) == [f"utt{number:03d}" for number in range(10)]
    for sample in samples:
        audio, _ = soundfile.read(io.BytesIO(sample["flac"]), dtype="int16")
        number = int(sample["__key__"][3:])
        np.testing.assert_array_equal(audio, noise(0.2 * (1 + number / 10), seed=number))


@pytest.mark.parametrize("settings", [{"codec": "keep"}, {"codec": "opus", "sample_rate": 8000}])
def test_bytes_do_not_depend_on_workers_listing_order_or_place(tmp_path: Path, settings: dict[str, Any]) -> None:
    manifest = jsonl_corpus(tmp_path / "here", 20)
    pack(manifest, tmp_path / "one", shards=3, workers=1, **settings)
    (tmp_path / "here").rename(tmp_path / "there")
    moved = tmp_path / "there" / "train.jsonl"
    lines = moved.read_text().splitlines(keepends=True)
    moved.write_text("".join(reversed(lines)))
    pack(moved, tmp_path / "two", shards=3, workers=2, **settings)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def test_kaldi_segments(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_audio(data / "long.wav", 10.0, seed=3)
    write_lines(data / "wav.scp", "long long.wav")
    write_lines(data / "segments", *(f"s{n} long {n} {n + 0.5}" for n in range(9)), "s9 long 9 -1")
    write_lines(data / "text", *(f"s{n} part {n}" for n in range(10)))
    pack(data, tmp_path / "out", shards=2, workers=1)
    members = members_of(tmp_path / "out")
    whole = noise(10.0, seed=3)
    for n in range(10):
        audio, rate = soundfile.read(io.BytesIO(members[f"s{n}.flac"]), dtype="int16")
        assert rate == 16_000
        np.testing.assert_array_equal(audio, whole[n * 16_000 : n * 16_000 + (8000 if n < 9 else 16_000)])
        assert members[f"s{n}.txt"] == f"part {n}".encode()


def test_a_derived_number_of_shards(tmp_path: Path) -> None:
    manifest = jsonl_corpus(tmp_path / "corpus", 30)
    assert pack(manifest, tmp_path / "a", workers=1).shards == 8
    assert pack(manifest, tmp_path / "b", workers=1, multiple=3, shard_bytes=100_000).shards == 6
    with pytest.raises(ConfigError, match="shards is 31, but there are only 30 utterances"):
        pack(manifest, tmp_path / "c", workers=1, shards=31)
    assert not (tmp_path / "c").exists()


def bad_corpus(folder: Path) -> Path:
    """Twelve utterances, of which seven can't be packed, each for another reason."""
    stated = {"duration": 1.0}
    for name in ("good1", "good2", "good3", "good4", "short"):
        write_audio(folder / f"{name}.wav")
    (folder / "empty.wav").write_bytes(b"")
    (folder / "noise.wav").write_bytes(b"this is no audio" * 100)
    data = write_audio(folder / "cut.wav").read_bytes()
    (folder / "cut.wav").write_bytes(data[:-5000])
    (folder / "late.wav").write_bytes(data[:-5000])
    return write_jsonl(
        folder / "train.jsonl",
        [
            *({"audio_filepath": f"good{n}.wav"} for n in (1, 2, 3, 4)),
            {"audio_filepath": "short.wav", "id": "good1"},
            {"audio_filepath": "short.wav", "id": "bell\u0007"},
            {"audio_filepath": "gone.wav"},
            {"audio_filepath": "empty.wav"},
            {"audio_filepath": "noise.wav"},
            {"audio_filepath": "cut.wav"},
            # The duration is stated, so this is found only when it is packed.
            {"audio_filepath": "late.wav", **stated},
            {"audio_filepath": "short.wav", "offset": 0.5, "duration": 0.6},
        ],
    )


def test_refused_utterances_are_listed(tmp_path: Path) -> None:
    manifest = bad_corpus(tmp_path / "corpus")
    target = tmp_path / "out"
    summary = pack(manifest, target, shards=2, workers=2, max_errors=8)
    assert (summary.utterances, summary.refused) == (4, 8)
    found = read_errors(target)
    assert [(error["key"], error["source"]) for error in found] == [
        ("bell\u0007", "train.jsonl:6"),
        ("cut", "train.jsonl:10"),
        ("empty", "train.jsonl:8"),
        ("gone", "train.jsonl:7"),
        ("good1", "train.jsonl:5"),
        ("late", "train.jsonl:11"),
        ("noise", "train.jsonl:9"),
        ("short", "train.jsonl:12"),
    ]
    reasons = {error["key"]: error["reason"] for error in found}
    assert "control character (U+0007)" in reasons["bell\u0007"]
    assert "truncated" in reasons["cut"]
    assert "empty file" in reasons["empty"]
    assert "does not exist" in reasons["gone"]
    assert "at train.jsonl:1 and at train.jsonl:5" in reasons["good1"]
    assert "truncated" in reasons["late"]
    assert "not audio" in reasons["noise"]
    assert reasons["short"] == (
        f"the segment ends at 1.100 s, but the recording ends at 1.000 s ({tmp_path / 'corpus' / 'short.wav'})"
    )
    again = pack(manifest, target, shards=2, workers=2, max_errors=8)
    assert (again.already_complete, again.refused, again.utterances) == (True, 8, 4)


def test_too_many_refused_fails_before_the_manifest(tmp_path: Path) -> None:
    manifest = bad_corpus(tmp_path / "corpus")
    target = tmp_path / "out"
    with pytest.raises(
        DataError, match=r"6 of 12 utterances refused, max_errors=5 allows 5\. First: bell.*errors\.jsonl"
    ):
        pack(manifest, target, shards=2, workers=1, max_errors=5)
    # Listing and probing found six; the others are found only while packing.
    with pytest.raises(DataError, match="8 of 12 utterances refused, max_errors=7 allows 7"):
        pack(manifest, target, shards=2, workers=1, max_errors=7)
    assert len(read_errors(target)) == 8
    assert not (target / "dataset.json").exists()
    # What is finished is kept, and max_errors may change.
    assert pack(manifest, target, shards=2, workers=1, max_errors=8).refused == 8
    with pytest.raises(DataError, match=r"refused, max_errors=0.5 allows 6"):
        pack(manifest, tmp_path / "share", shards=2, workers=1, max_errors=0.5)


def test_raise_stops_at_the_first(tmp_path: Path) -> None:
    manifest = bad_corpus(tmp_path / "corpus")
    with pytest.raises(DataError, match=r"refused: bell\x07 \(train.jsonl:6\): the id"):
        pack(manifest, tmp_path / "out", shards=2, workers=1, on_error="raise")
    lines = [line for line in manifest.read_text().splitlines() if "good" in line or "late" in line][:4]
    late = next(line for line in manifest.read_text().splitlines() if "late" in line)
    manifest.write_text("\n".join([*lines, late]))
    with pytest.raises(DataError, match=r"late \(train.jsonl:5\): truncated"):
        pack(manifest, tmp_path / "out", shards=2, workers=1, on_error="raise")


def test_empty_corpora(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("\n\n")
    with pytest.raises(DataError, match=r"the corpus is empty: no utterance in .*none\.jsonl \(nothing there\)"):
        pack(tmp_path / "none.jsonl", tmp_path / "out")
    (tmp_path / "bad.jsonl").write_text("x\n")
    with pytest.raises(DataError, match=r"\(1 refused; first: bad\.jsonl:1: not JSON"):
        pack(tmp_path / "bad.jsonl", tmp_path / "out")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match=r"no utterance in .*folder and the folders below it \(files ending in "):
        pack(tmp_path / "folder", tmp_path / "out", from_="folder")
    assert not (tmp_path / "out").exists()


def test_column_types(tmp_path: Path) -> None:
    records = [
        {"n": 1, "x": 1, "b": True, "m": 1, "s": "a"},
        {"n": None, "x": 0.5, "b": False, "m": "one", "s": "ü"},
        {"n": 3, "x": 2, "big": 2**70},
    ]
    for number, record in enumerate(records):
        write_audio(tmp_path / f"{number}.wav")
        record["audio_filepath"] = f"{number}.wav"
    manifest = write_jsonl(tmp_path / "m.jsonl", records)
    columns = ("n", "x", "b", "m", "s", "big")
    pack(manifest, tmp_path / "out", shards=1, workers=1, columns=columns)
    dataset = ShardSet.open(str(tmp_path / "out"))
    kinds = {"n": "int64", "x": "float64", "b": "bool", "m": "string", "s": "string", "big": "string"}
    assert dataset.manifest.columns == kinds
    rows = sorted(dataset.index(["key", *columns]).to_pylist(), key=lambda row: row["key"])
    assert rows == [
        {"key": "0", "n": 1, "x": 1.0, "b": True, "m": "1", "s": "a", "big": None},
        {"key": "1", "n": None, "x": 0.5, "b": False, "m": "one", "s": "ü", "big": None},
        {"key": "2", "n": 3, "x": 2.0, "b": None, "m": None, "s": None, "big": str(2**70)},
    ]
    with pytest.raises(ConfigError, match=r"column 'speaker': no utterance has .*; there are: b, big, m, n, s, x"):
        pack(manifest, tmp_path / "other", shards=1, workers=1, columns=("speaker",))
    assert not (tmp_path / "other").exists()


def test_pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    write_audio(data / "a.wav")
    write_lines(data / "wav.scp", f"a cat {data / 'a.wav'} |", "b exit 1 |")
    with pytest.raises(DataError, match="--allow-pipes"):
        pack(data, tmp_path / "out", workers=1)
    summary = pack(data, tmp_path / "out", workers=1, allow_pipes=True, max_errors=1)
    assert (summary.utterances, summary.refused) == (1, 1)
    assert "status 1" in read_errors(tmp_path / "out")[0]["reason"]


def test_targets(tmp_path: Path) -> None:
    manifest = jsonl_corpus(tmp_path / "corpus", 4)
    target = tmp_path / "out"
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"neither a dataset nor an unfinished pack job \(notes\.txt\)"):
        pack(manifest, target, shards=2, workers=1)
    pack(manifest, target, shards=2, workers=1, overwrite=True)
    assert (target / "notes.txt").read_text() == "mine"
    with pytest.raises(ConfigError, match=r"Changed since: shards: 2 -> 1\. .*overwrite"):
        pack(manifest, target, shards=1, workers=1)
    pack(manifest, target, shards=1, workers=1, overwrite=True)
    assert sorted(path.name for path in target.iterdir()) == [
        "dataset.json", "notes.txt", "shard-000000.parquet", "shard-000000.tar",
    ]  # fmt: skip
    (target / "shard-000000.tar").write_bytes(b"cut")
    with pytest.raises(DataError, match=r"shard-000000\.tar has 3 bytes, dataset\.json says .*overwrite"):
        pack(manifest, target, shards=1, workers=1)
    with pytest.raises(ConfigError, match="a file; the target must be a folder"):
        pack(manifest, manifest, workers=1)
    with pytest.raises(ConfigError, match=r"nowhere://bucket/train: .*nowhere.* storage_options"):
        pack(manifest, "nowhere://bucket/train", workers=1)


def test_packing_never_imports_torch(tmp_path: Path) -> None:
    manifest = jsonl_corpus(tmp_path / "corpus", 4)
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom uttershard.writers import pack\nif __name__ == '__main__':\n"
        f"    pack({str(manifest)!r}, {str(tmp_path / 'out')!r}, shards=2, workers=1)\n"
        "    sys.exit('torch' in sys.modules or 'webdataset' in sys.modules)\n"
    )
    # A torch that can't be imported: a worker that tried would fail.
    (tmp_path / "blocked" / "torch").mkdir(parents=True)
    (tmp_path / "blocked" / "torch" / "__init__.py").write_text("raise ImportError('torch in a packing process')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "blocked")}
    subprocess.run([sys.executable, str(script)], check=True, env=environment, timeout=120)
