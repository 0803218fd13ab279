"""Lhotse's manifests, cut sets and Shar directories, written by lhotse."""

from pathlib import Path

import numpy as np
import pytest
from corpora import RATE, noise, write_audio
from lhotse import CutSet, Recording, RecordingSet, SupervisionSegment, SupervisionSet
from source_checks import assert_samples, list_corpus, rows_of


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


def test_computed_cuts_are_refused(cuts: CutSet, tmp_path: Path) -> None:
    first, second = list(cuts)[:2]
    computed = [first.append(second), first.perturb_speed(1.1).with_id("fast"), first.pad(2.0).with_id("padded")]
    CutSet.from_cuts([*computed, second]).to_file(tmp_path / "cuts.jsonl")
    listing = list_corpus(tmp_path / "cuts.jsonl")
    assert list(rows_of(listing)) == [second.id]
    assert len(listing.refused) == 3
