"""Lhotse's manifests, cut sets and Shar directories, written by lhotse."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpora import RATE, noise, write_audio, write_lines
from lhotse import CutSet, Recording, RecordingSet, SupervisionSegment, SupervisionSet
from source_checks import assert_samples, list_corpus, rows_of
from uttershard.pipeline.errors import DataError
from uttershard.writers.listing import Listing
from uttershard.writers.sources import lhotse as lhotse_source
from uttershard.writers.sources import open_source


@pytest.fixture
def cuts(tmp_path: Path) -> CutSet:
    recordings, supervisions = [], []
    (tmp_path / "manifests").mkdir()
    for number, channels in enumerate((1, 1, 2)):
        recording = Recording.from_file(write_audio(tmp_path / f"rec{number}.wav", 1.0, seed=number, channels=channels))
        recordings.append(recording)
        for channel in range(channels):
            supervisions.append(
                SupervisionSegment(
                    id=f"sup{number}-{channel}",
                    recording_id=recording.id,
                    start=0.25,
                    duration=0.5,
                    channel=channel,
                    text=f"text {number}",
                    speaker=f"spk{number}",
                    language="de",
                    custom={"snr": 12.5},
                )
            )
    RecordingSet.from_recordings(recordings).to_file(tmp_path / "manifests" / "recordings.jsonl.gz")
    SupervisionSet.from_segments(supervisions).to_file(tmp_path / "manifests" / "supervisions.jsonl.gz")
    return CutSet.from_manifests(
        RecordingSet.from_recordings(recordings), SupervisionSet.from_segments(supervisions)
    ).to_eager()


def part(number: int, channel: int) -> np.ndarray:
    samples = noise(1.0, number, channels=2 if number == 2 else 1)
    samples = samples[:, channel] if samples.ndim == 2 else samples
    return samples[RATE // 4 : RATE * 3 // 4]


EXPECTED = [(0, 0), (1, 0), (2, 0), (2, 1)]


def test_recordings_and_supervisions(cuts: CutSet, tmp_path: Path) -> None:
    rows = rows_of(list_corpus(tmp_path / "manifests"))
    assert list(rows) == [f"sup{number}-{channel}" for number, channel in EXPECTED]
    for number, channel in EXPECTED:
        row = rows[f"sup{number}-{channel}"]
        assert (row["text"], row["duration"]) == (f"text {number}", 0.5)
        assert row["metadata"] == f'{{"language":"de","snr":12.5,"speaker":"spk{number}"}}'
        assert_samples(row, part(number, channel))


@pytest.mark.parametrize("name", ["cuts.jsonl", "cuts.jsonl.gz"])
def test_whole_and_multi_channel_cuts(cuts: CutSet, tmp_path: Path, name: str) -> None:
    cuts.to_file(tmp_path / name)
    rows = rows_of(list_corpus(tmp_path / name))
    assert sorted(rows) == sorted(cuts.ids)
    for number, key in enumerate(sorted(cuts.ids)):
        assert (rows[key]["start"], rows[key]["end"]) == (None, None)
        assert_samples(rows[key], noise(1.0, number, channels=2 if number == 2 else 1))


def test_cuts_that_are_parts(cuts: CutSet, tmp_path: Path) -> None:
    cuts.trim_to_supervisions(keep_overlapping=False).to_file(tmp_path / "cuts.jsonl.gz")
    rows = rows_of(list_corpus(tmp_path / "cuts.jsonl.gz"))
    for number, channel in EXPECTED:
        assert_samples(rows[f"sup{number}-{channel}"], part(number, channel))


@pytest.mark.parametrize("codec", ["flac", "wav"])
def test_shar(cuts: CutSet, tmp_path: Path, codec: str) -> None:
    shar = tmp_path / "shar"
    shar.mkdir()
    cuts.trim_to_supervisions(keep_overlapping=False).to_shar(shar, fields={"recording": codec}, shard_size=3)
    listing = list_corpus(shar)
    rows = rows_of(listing)
    assert not listing.refused
    for number, channel in EXPECTED:
        assert rows[f"sup{number}-{channel}"]["text"] == f"text {number}"
        assert_samples(rows[f"sup{number}-{channel}"], part(number, channel))


def test_recordings_or_supervisions_alone_say_what_is_missing(cuts: CutSet, tmp_path: Path) -> None:
    recordings, supervisions = tmp_path / "r.jsonl", tmp_path / "s.jsonl"
    RecordingSet.from_recordings(cut.recording for cut in cuts).to_file(recordings)
    SupervisionSet.from_segments(each for cut in cuts for each in cut.supervisions).to_file(supervisions)
    for path, what in ((recordings, "a recording and no cut"), (supervisions, "a supervision and no cut")):
        listing = list_corpus(path, "lhotse")
        assert not listing.utterances.num_rows
        assert all(what in reason and "--option supervisions=FILE" in reason for _, _, reason in listing.refused)


def test_computed_cuts_are_refused(cuts: CutSet, tmp_path: Path) -> None:
    first, second = list(cuts)[:2]
    computed = [first.append(second), first.perturb_speed(1.1).with_id("fast"), first.pad(2.0).with_id("padded")]
    CutSet.from_cuts([*computed, second]).to_file(tmp_path / "cuts.jsonl")
    listing = list_corpus(tmp_path / "cuts.jsonl")
    assert list(rows_of(listing)) == [second.id]
    assert len(listing.refused) == 3


CUT: dict[str, Any] = {
    "id": "a",
    "start": 0.25,
    "duration": 0.5,
    "channel": 0,
    "supervisions": [
        {"id": "s", "recording_id": "r", "start": 0.0, "duration": 0.5, "channel": 0, "text": "hi", "speaker": "p"}
    ],
    "recording": {
        "id": "r",
        "sources": [{"type": "file", "channels": [0], "source": "rec.wav"}],
        "sampling_rate": RATE,
        "num_samples": RATE,
        "duration": 1.0,
        "channel_ids": [0],
    },
    "type": "MonoCut",
}


def changed(*path: Any, to: Any) -> bytes:
    """The line of a cut with one field changed."""
    cut = copy.deepcopy(CUT)
    inner: Any = cut
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = to
    return json.dumps(cut).encode()


GOOD = json.dumps(CUT).encode()
ODD_LINES = {
    "whole": changed("start", to=0).replace(
        b'"duration": 0.5, "channel": 0, "sup', b'"duration": 1, "channel": 0, "sup'
    ),
    "another channel": changed("channel", to=1),
    "two channels": changed("recording", "sources", 0, "channels", to=[0, 1]),
    "no channel": changed("channel", to=None),
    "no text": changed("supervisions", 0, "text", to=None),
    "text of a number": changed("supervisions", 0, "text", to=5),
    "text like a time": changed("supervisions", 0, "text", to="2024-01-01T00:00:00Z"),
    "a lone surrogate": changed("supervisions", 0, "text", to="\ud800"),
    "a custom field": changed("custom", to={"snr": 1.5}),
    "a gender": changed("supervisions", 0, "gender", to="f"),
    "no supervision": changed("supervisions", to=[]),
    "two supervisions": changed("supervisions", to=CUT["supervisions"] * 2),
    "no recording": changed("recording", to=None),
    "transforms": changed("recording", "transforms", to=[{"name": "Speed"}]),
    "a command": changed("recording", "sources", 0, "type", to="command"),
    "a lost file": changed("recording", "sources", 0, "source", to="none.wav"),
    "a url": changed("recording", "sources", 0, "source", to="http://host/x.wav"),
    "an absolute path": changed("recording", "sources", 0, "source", to="/data/x.wav"),
    "no id": changed("id", to=None),
    "an id of a number": changed("id", to=7),
    "no start": changed("start", to=None),
    "a mixed cut": changed("type", to="MixedCut"),
    "not a number": GOOD.replace(b"0.25", b"NaN"),
    "not UTF-8": GOOD.replace(b'"hi"', b'"\xff"'),
    "a field twice": GOOD.replace(b'"text": "hi"', b'"text": "hi", "text": "ho"'),
    "two on a line": GOOD + GOOD,
    "half of one": GOOD[:40],
    "in blanks": b"  " + GOOD + b"\t\r",
    "no object": b"5",
}


def both_ways(monkeypatch: pytest.MonkeyPatch, address: Path) -> tuple[Listing, Listing]:
    """What is listed by columns where that is possible, and one by one."""
    columns = open_source(str(address), "lhotse").list_utterances()
    with monkeypatch.context() as patch:
        patch.setattr(lhotse_source, "read_columns", lambda lines, schema: None)
        return columns, open_source(str(address), "lhotse").list_utterances()


@pytest.mark.parametrize("name", ODD_LINES)
def test_cuts_are_the_same_as_columns_and_one_by_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    write_audio(tmp_path / "rec.wav")
    for lines in ([ODD_LINES[name]], [GOOD, ODD_LINES[name], b"", GOOD]):
        columns, one_by_one = both_ways(monkeypatch, write_lines(tmp_path / "cuts.jsonl", *lines))
        assert columns.utterances.equals(one_by_one.utterances)
        assert columns.refused == one_by_one.refused
        assert len(columns) >= len(lines) - 2


def recordings_and_supervisions(folder: Path, spoil: Callable[[list[dict[str, Any]]], None]) -> Path:
    """Three recordings, four supervisions; some of them changed."""
    records: list[dict[str, Any]] = []
    for number in range(3):
        write_audio(folder / f"rec{number}.wav")
        source = {"type": "file", "channels": [0], "source": f"rec{number}.wav"}
        records.append({**CUT["recording"], "id": f"r{number}", "sources": [source]})
    for number in range(4):
        records.append({**CUT["supervisions"][0], "id": f"s{number}", "recording_id": f"r{number % 3}"})
    spoil(records)
    write_lines(folder / "recordings.jsonl", *(json.dumps(record) for record in records if "sources" in record))
    write_lines(folder / "supervisions.jsonl", *(json.dumps(record) for record in records if "text" in record))
    return folder


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda records: None, None),
        (lambda records: records[1].update(id="r0"), "a recording of this id is there already"),
        (lambda records: records[1].update(id=None), "a recording without an id"),
        (lambda records: records[1].update(transforms=[{"name": "Speed"}]), "is transformed"),
        (lambda records: records[4].update(recording_id="r9"), "no recording 'r9' in recordings.jsonl"),
        (lambda records: records[4].update(custom={"a": 1}), None),
        (lambda records: records[4].update(channel=1), "channel 1 is in no source"),
    ],
)
def test_supervisions_are_the_same_as_columns_and_one_by_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spoil: Callable[[list[dict[str, Any]]], None], reason: str | None
) -> None:
    columns, one_by_one = both_ways(monkeypatch, recordings_and_supervisions(tmp_path, spoil))
    assert columns.utterances.equals(one_by_one.utterances)
    assert columns.refused == one_by_one.refused
    assert len(columns) + len({refusal.key for refusal in columns.refused if str(refusal.key)[0] == "s"}) == 4
    assert [reason for refusal in columns.refused[:1] if str(reason) in refusal.reason] == ([reason] if reason else [])


def test_shar_tars_without_cuts_are_told(cuts: CutSet, tmp_path: Path) -> None:
    (tmp_path / "shar").mkdir()
    cuts.to_shar(tmp_path / "shar", fields={"recording": "wav"}, shard_size=2)
    next((tmp_path / "shar").glob("cuts.000001*")).unlink()
    with pytest.raises(DataError, match=r"recording\.000001\.tar: no cuts"):
        list_corpus(tmp_path / "shar")
