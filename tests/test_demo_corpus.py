"""The demo corpus is what demo/README.md says, and its two forms describe the same utterances."""

import json
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
import soundfile

FORMATS = {".flac": "FLAC", ".wav": "WAV", ".opus": "OGG", ".mp3": "MP3"}
SAMPLE_RATE = 16_000


@pytest.fixture(scope="module")
def rows(demo: Path) -> list[dict]:
    return [json.loads(line) for line in (demo / "manifest.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def kaldi(demo: Path) -> dict[str, dict[str, str]]:
    """Each file of the Kaldi directory as {first field: the rest}."""
    return {
        path.name: dict(line.split(" ", 1) for line in path.read_text(encoding="utf-8").splitlines())
        for path in (demo / "kaldi").iterdir()
    }


def test_size_and_shape(demo: Path, rows: list[dict]) -> None:
    assert sum(path.stat().st_size for path in demo.rglob("*") if path.is_file()) <= 8_000_000
    assert len(rows) == len({row["id"] for row in rows}) == 200
    assert len({row["speaker"] for row in rows}) == 22
    assert len({row["language"] for row in rows}) == 12
    assert all(row["text"].strip() for row in rows)
    assert all(0.5 <= row["duration"] <= 25 for row in rows)


def test_lengths_spread_over_the_whole_range(rows: list[dict]) -> None:
    edges = (1, 2, 4, 8, 16, 25)
    by_length = Counter(next(edge for edge in edges if row["duration"] <= edge) for row in rows)
    assert all(by_length[edge] >= 10 for edge in edges), by_length


def test_every_codec_is_there_and_flac_is_the_rule(rows: list[dict]) -> None:
    codecs = Counter(Path(row["audio_filepath"]).suffix for row in rows)
    assert set(codecs) == set(FORMATS)
    assert codecs[".flac"] > len(rows) / 2


def test_ids_are_odd(rows: list[dict]) -> None:
    ids = [row["id"] for row in rows]
    for mark in "./":
        assert sum(mark in key for key in ids) >= 20, mark
    scripts = Counter(
        unicodedata.name(letter).split()[0]
        for key in ids
        for letter in set(key)
        if letter.isalpha() and not letter.isascii()
    )
    assert set(scripts) == {"LATIN", "CYRILLIC", "GREEK", "CJK"}
    assert all(unicodedata.is_normalized("NFC", key) for key in ids)
    # File names stay plain: not every file system and archive tool keeps other letters as written.
    assert all(row["audio_filepath"].isascii() for row in rows)


def test_every_file_decodes_to_the_stated_duration(demo: Path, rows: list[dict]) -> None:
    whole = {row["audio_filepath"]: row["duration"] for row in rows if "offset" not in row}
    on_disk = {str(path.relative_to(demo)) for path in (demo / "audio").rglob("*") if path.is_file()}
    assert on_disk == {row["audio_filepath"] for row in rows}
    for name in sorted(on_disk):
        with soundfile.SoundFile(demo / name) as file:
            assert (file.format, file.samplerate, file.channels) == (FORMATS[Path(name).suffix], SAMPLE_RATE, 1), name
            samples = len(file.read(dtype="float32"))
        if name in whole:
            assert samples / SAMPLE_RATE == whole[name], name


def test_cuts_lie_inside_their_recording_on_exact_samples(demo: Path, rows: list[dict]) -> None:
    cuts = [row for row in rows if "offset" in row]
    assert len(cuts) == 9
    for row in cuts:
        start, length = row["offset"] * SAMPLE_RATE, row["duration"] * SAMPLE_RATE
        assert start == round(start), row["id"]
        assert length == round(length), row["id"]
        audio, _ = soundfile.read(demo / row["audio_filepath"], start=round(start), frames=round(length))
        assert len(audio) == length, row["id"]
        assert abs(audio).max() > 0.01, f"{row['id']} is silent"


def test_the_kaldi_directory_says_the_same(demo: Path, rows: list[dict], kaldi: dict[str, dict[str, str]]) -> None:
    by_id = {row["id"]: row for row in rows}
    for name, field in (("text", "text"), ("utt2spk", "speaker"), ("utt2lang", "language")):
        assert kaldi[name] == {key: row[field] for key, row in by_id.items()}, name
    assert {key: float(value) for key, value in kaldi["utt2dur"].items()} == {
        key: row["duration"] for key, row in by_id.items()
    }
    assert set(kaldi["segments"]) == set(by_id)
    for key, value in kaldi["segments"].items():
        recording, start, end = value.split(" ")
        row = by_id[key]
        audio = (demo / "kaldi" / kaldi["wav.scp"][recording]).resolve()
        assert audio == (demo / row["audio_filepath"]).resolve()
        if "offset" in row:
            assert (float(start), float(end)) == pytest.approx(
                (row["offset"], row["offset"] + row["duration"]), abs=1e-9
            )
        else:
            assert (start, end) == ("0", "-1")


def test_kaldi_files_are_sorted_as_kaldi_wants_them(demo: Path) -> None:
    for path in (demo / "kaldi").iterdir():
        keys = [line.split(b" ", 1)[0] for line in path.read_bytes().splitlines()]
        assert keys == sorted(keys), path.name
    speakers = [line.split(b" ")[1] for line in (demo / "kaldi" / "utt2spk").read_bytes().splitlines()]
    assert speakers == sorted(speakers)
