"""Kaldi directories: what is listed, and what each bad line is refused with."""

from pathlib import Path

import pytest
from corpora import write_audio, write_lines
from uttershard.pipeline.errors import DataError
from uttershard.writers.ids import refuse_bad_ids
from uttershard.writers.listing import Listing
from uttershard.writers.sources.kaldi import KaldiSource


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two recordings, their wav.scp relative to the directory itself."""
    data = tmp_path / "data"
    for number, name in enumerate(("rec1", "rec2")):
        write_audio(data / "wavs" / f"{name}.wav", 1.0, seed=number)
    write_lines(data / "wav.scp", "rec1 wavs/rec1.wav", f"rec2 {data / 'wavs' / 'rec2.wav'}")
    return data


def listed(folder: Path, **options: bool) -> Listing:
    return refuse_bad_ids(KaldiSource(str(folder), **options).list_utterances())


def refusals(folder: Path, **options: bool) -> list[tuple[str | None, str, str]]:
    return [tuple(refusal) for refusal in listed(folder, **options).refused]


def rows(folder: Path, *columns: str) -> list[tuple[object, ...]]:
    table = listed(folder).utterances
    return list(zip(*(table[column].to_pylist() for column in columns), strict=True))


def test_recordings_are_utterances_without_segments(folder: Path) -> None:
    write_lines(folder / "text", "rec1 hello  world ", "rec2")
    write_lines(folder / "utt2spk", "rec1 tom", "rec2 ann")
    write_lines(folder / "utt2dur", "rec1 1.0")
    assert rows(folder, "key", "uri", "text", "metadata", "duration", "origin") == [
        ("rec1", str(folder / "wavs/rec1.wav"), "hello  world", '{"speaker":"tom"}', 1.0, "wav.scp:1"),
        ("rec2", str(folder / "wavs/rec2.wav"), "", '{"speaker":"ann"}', None, "wav.scp:2"),
    ]
    assert refusals(folder) == []


def test_segments_are_utterances(folder: Path) -> None:
    write_lines(folder / "segments", "b rec1 0.25 0.75", "a rec2 0.5 -1")
    write_lines(folder / "text", "a eins", "b zwei")
    assert rows(folder, "key", "uri", "start", "end", "text", "origin") == [
        ("b", str(folder / "wavs/rec1.wav"), 0.25, 0.75, "zwei", "segments:1"),
        ("a", str(folder / "wavs/rec2.wav"), 0.5, None, "eins", "segments:2"),
    ]


def test_relative_paths_are_found_in_the_working_directory_too(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_audio(tmp_path / "elsewhere" / "other.wav")
    write_lines(folder / "wav.scp", "utt other.wav", "gone none.wav")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert rows(folder, "key", "uri") == [("utt", str(tmp_path / "elsewhere/other.wav"))]
    [(key, source, reason)] = refusals(folder)
    assert (key, source) == ("gone", "wav.scp:2")
    assert str(folder / "none.wav") in reason
    assert str(tmp_path / "elsewhere" / "none.wav") in reason


def test_pipes_only_when_allowed(folder: Path) -> None:
    write_lines(folder / "wav.scp", "rec1 cat wavs/rec1.wav |", "rec2 wavs/rec2.wav")
    [(key, source, reason)] = refusals(folder)
    assert (key, source) == ("rec1", "wav.scp:1")
    assert "--allow-pipes" in reason
    assert listed(folder, allow_pipes=True).utterances["uri"][0].as_py() == "pipe:cat wavs/rec1.wav"


@pytest.mark.parametrize(
    ("name", "line", "key", "reason"),
    [
        ("wav.scp", "rec2", "rec2", "no audio after the id"),
        ("wav.scp", b"rec2 wavs/\xff.wav", "rec2", "not UTF-8: byte 0xff at position 6"),
        ("text", "who hello", "who", "text for an id that is not in wav.scp"),
        ("text", b"rec2 caf\xe9", "rec2", "not UTF-8: byte 0xe9 at position 4"),
        ("text", b"\xff\xfe hello", "\\xff\\xfe", "not UTF-8: byte 0xff at position 1"),
        ("utt2spk", "who tom", "who", "a speaker for an id that is not in wav.scp"),
        ("utt2spk", "rec2", "rec2", "no speaker after the id"),
        ("utt2spk", "rec2 tom jones", "rec2", "one speaker expected"),
        ("utt2dur", "rec2 long", "rec2", "a duration in seconds expected after the id, found 'long'"),
        ("utt2dur", "rec2 nan", "rec2", "a duration in seconds expected"),
        ("utt2dur", "who 1.0", "who", "a duration for an id that is not in wav.scp"),
        ("segments", "s rec2 0.1", "s", "found 3 fields"),
        ("segments", "s rec2 0.5 0.5", "s", "ends at 0.5 s, not after its start at 0.5 s"),
        ("segments", "s rec2 -0.5 0.5", "s", "starts before the recording"),
        ("segments", "s rec2 zero one", "s", "start and end must be seconds"),
        ("segments", "s rec9 0 1", "s", "its recording 'rec9' is not in wav.scp"),
    ],
)
def test_bad_line(folder: Path, name: str, line: str | bytes, key: str, reason: str) -> None:
    good = {"wav.scp": "rec1 wavs/rec1.wav", "text": "rec1 a", "utt2spk": "rec1 a", "utt2dur": "rec1 1"}
    write_lines(folder / name, good.get(name, "rec1 rec1 0 1"), line)
    [(found_key, source, found_reason)] = refusals(folder)
    assert (found_key, source) == (key, f"{name}:2")
    assert reason in found_reason
    assert key not in listed(folder).utterances["key"].to_pylist()


def test_an_id_twice_names_both_places_in_every_file(folder: Path) -> None:
    write_lines(folder / "wav.scp", "rec1 wavs/rec1.wav", "rec2 wavs/rec2.wav", "rec1 wavs/rec2.wav")
    write_lines(folder / "text", "rec2 a", "rec1 b", "rec2 c")
    assert sorted(refusals(folder)) == [
        ("rec1", "wav.scp:3", "the id is there twice: at wav.scp:1 and at wav.scp:3"),
        ("rec2", "text:3", "the id is there twice: at text:1 and at text:3"),
    ]
    assert rows(folder, "key", "text") == [("rec1", "b"), ("rec2", "a")]


def test_a_spoiled_id_is_refused_once(folder: Path) -> None:
    write_lines(folder / "wav.scp", "rec1 wavs/rec1.wav", "rec2 gone.wav")
    write_lines(folder / "text", "rec1 a", b"rec2 \xff")
    write_lines(folder / "utt2spk", "rec1 a", "rec2 b c")
    assert [(key, source) for key, source, _ in refusals(folder)] == [("rec2", "wav.scp:2")]


def test_a_transcript_may_begin_with_an_ideographic_space(folder: Path) -> None:
    write_lines(folder / "text", "rec1 \u3000\u3042 \u3044", "rec2\tx")
    assert rows(folder, "text") == [("\u3000\u3042 \u3044",), ("x",)]


def test_windows_line_ends_and_a_byte_order_mark(folder: Path) -> None:
    write_lines(folder / "wav.scp", b"\xef\xbb\xbfrec1 wavs/rec1.wav\r", b"", b"rec2 wavs/rec2.wav\r")
    assert rows(folder, "key", "origin") == [("rec1", "wav.scp:1"), ("rec2", "wav.scp:3")]


def test_no_wav_scp(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"wav\.scp: does not exist"):
        KaldiSource(str(tmp_path)).list_utterances()
