"""JSONL manifests: what is listed, and what each bad line is refused with."""

import json
from pathlib import Path
from typing import Any

import pytest
from corpora import write_audio, write_jsonl, write_lines
from uttershard.pipeline.errors import DataError
from uttershard.writers.listing import Listing
from uttershard.writers.sources.jsonl import JsonlSource

GOOD = {"audio_filepath": "a/one.wav"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a/one.wav and a/two.wav."""
    write_audio(tmp_path / "a" / "one.wav")
    write_audio(tmp_path / "a" / "two.wav", seed=1)
    return tmp_path


def listed(folder: Path, *records: dict[str, Any], **options: str) -> Listing:
    return JsonlSource(str(write_jsonl(folder / "m.jsonl", records)), **options).list_utterances()


def row(folder: Path, record: dict[str, Any], **options: str) -> dict[str, Any]:
    listing = listed(folder, record, **options)
    assert listing.refused == []
    [found] = listing.utterances.to_pylist()
    return found


def test_all_fields(folder: Path) -> None:
    record = {
        **GOOD,
        "id": "x",
        "text": "hé",
        "duration": 1,
        "speaker": "tom",
        "age": 3,
        "tags": ["b", {"z": 1, "a": 2}],
    }
    assert row(folder, record) == {
        "key": "x",
        "uri": str(folder / "a/one.wav"),
        "start": None,
        "end": None,
        "duration": 1.0,
        "text": "hé",
        "metadata": '{"age":3,"speaker":"tom","tags":["b",{"a":2,"z":1}]}',
        "origin": "m.jsonl:1",
    }


@pytest.mark.parametrize(
    ("fields", "key", "metadata"),
    [
        ({}, "one", None),
        ({"id": "i", "utt_id": "u", "key": "k"}, "i", '{"key":"k","utt_id":"u"}'),
        ({"utt_id": "u", "key": "k"}, "u", '{"key":"k"}'),
        ({"key": "k"}, "k", None),
        ({"id": 17}, "17", None),
        ({"id": None}, "one", None),
        ({"id": "ünï/ço.dé"}, "ünï/ço.dé", None),
    ],
)
def test_the_id(folder: Path, fields: dict[str, Any], key: str, metadata: str | None) -> None:
    found = row(folder, {**GOOD, **fields})
    assert found["key"] == key
    if fields.get("id", "") is not None:
        assert found["metadata"] == metadata


def test_an_offset_makes_a_segment(folder: Path) -> None:
    found = row(folder, {**GOOD, "offset": 0.25, "duration": 0.5})
    assert (found["start"], found["end"], found["duration"]) == (0.25, 0.75, 0.5)
    found = row(folder, {**GOOD, "offset": 0.25})
    assert (found["start"], found["end"], found["duration"]) == (0.25, None, None)


def test_fields_can_be_named(folder: Path) -> None:
    found = row(
        folder,
        {"wav": "a/two.wav", "sentence": "s", "clip": "c", "id": "kept"},
        audio="wav",
        text="sentence",
        id="clip",
    )
    # The .json member holds the utterance's own id as `id`, so a field of that name needs another.
    assert (found["key"], found["text"], found["metadata"]) == ("c", "s", '{"source_id":"kept"}')


@pytest.mark.parametrize(
    ("record", "key", "reason"),
    [
        ({"text": "x"}, None, "no field 'audio_filepath'"),
        ({"id": "x", "audio_filepath": 5}, "x", "'audio_filepath' must be the path of a file, found 5"),
        ({"audio_filepath": "a/none.wav"}, "none", "the audio file does not exist (looked for "),
        ({**GOOD, "id": "x", "text": 5}, "x", "'text' must be a string, found 5"),
        ({**GOOD, "id": ["x"]}, None, "'id' must be a string or an integer"),
        ({**GOOD, "duration": "1.0"}, "one", "'duration' must be a number of seconds, found '1.0'"),
        ({**GOOD, "duration": True}, "one", "'duration' must be a number of seconds, found True"),
        ({**GOOD, "duration": 0}, "one", "'duration' must be more than 0 s"),
        ({**GOOD, "duration": -1.5}, "one", "'duration' must be 0 s or more"),
        ({**GOOD, "offset": -0.1}, "one", "'offset' must be 0 s or more"),
    ],
)
def test_bad_record(folder: Path, record: dict[str, Any], key: str | None, reason: str) -> None:
    listing = listed(folder, {**GOOD, "id": "good"}, record)
    [refusal] = listing.refused
    assert (refusal.key, refusal.source) == (key, "m.jsonl:2")
    assert reason in refusal.reason
    assert listing.utterances["key"].to_pylist() == ["good"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON: Expecting property name enclosed in double quotes at column 2"),
        ("[1]", "a JSON object expected, found list"),
        (b'{"audio_filepath": "a/one.wav", "text": "caf\xe9"}', "not UTF-8: byte 0xe9 at position 45"),
        ('{"audio_filepath": "a/one.wav", "duration": NaN}', "not JSON: NaN is no JSON number"),
        (json.dumps({**GOOD, "text": "\ud83d"}), "not valid Unicode (a lone surrogate)"),
        (json.dumps({**GOOD, "speaker": "\ud83d"}), "not valid Unicode (a lone surrogate)"),
        ("1" * 5000, "Exceeds the limit"),
        ("[" * 100_000, "nested too deeply"),
        ('{"audio_filepath": "a/one.wav", "age": 1e999}', "not JSON compliant"),
    ],
)
def test_bad_line(folder: Path, line: str | bytes, reason: str) -> None:
    path = write_lines(folder / "m.jsonl", json.dumps({**GOOD, "id": "good"}), line)
    listing = JsonlSource(str(path)).list_utterances()
    [refusal] = listing.refused
    assert refusal.source == "m.jsonl:2"
    assert reason in refusal.reason
    assert listing.utterances["key"].to_pylist() == ["good"]


def test_no_such_manifest(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.jsonl: does not exist"):
        JsonlSource(str(tmp_path / "none.jsonl")).list_utterances()
