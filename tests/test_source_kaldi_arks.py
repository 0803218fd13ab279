"""Kaldi arks written by kaldiio, channels of several files, languages, ESPnet dump directories."""

from pathlib import Path

import kaldiio
import numpy as np
import pytest
from corpora import RATE, noise, write_audio, write_lines
from source_checks import assert_samples, list_corpus, rows_of, samples_of
from uttershard.pipeline.reading.codecs import AudioError


@pytest.mark.parametrize("write_function", [None, "soundfile"])
def test_arks(tmp_path: Path, write_function: str | None) -> None:
    with kaldiio.WriteHelper(f"ark,scp:{tmp_path}/wav.ark,{tmp_path}/wav.scp", write_function=write_function) as writer:
        for number, channels in enumerate((1, 2, 1)):
            writer[f"utt{number}"] = (RATE, noise(0.1, number, channels=channels))
    rows = rows_of(list_corpus(tmp_path))
    for number, channels in enumerate((1, 2, 1)):
        assert rows[f"utt{number}"]["uri"].startswith(f"{tmp_path}/wav.ark#ark=")
        assert_samples(rows[f"utt{number}"], noise(0.1, number, channels=channels))
    write_lines(tmp_path / "segments", "part utt2 0.05 0.075")
    assert_samples(rows_of(list_corpus(tmp_path))["part"], noise(0.1, 2)[800:1200])


def test_features_are_no_audio(tmp_path: Path) -> None:
    with kaldiio.WriteHelper(f"ark,scp:{tmp_path}/feats.ark,{tmp_path}/wav.scp") as writer:
        writer["utt"] = np.ones((3, 4), np.float32)
    row = rows_of(list_corpus(tmp_path))["utt"]
    with pytest.raises(AudioError, match="a matrix of features"):
        samples_of(row)


def test_channels_of_several_files(tmp_path: Path) -> None:
    for number in range(3):
        write_audio(tmp_path / f"ch{number}.wav", 0.2, seed=number)
    write_audio(tmp_path / "with blank.wav", 0.2, seed=9)
    write_lines(tmp_path / "wav.scp", "all ch0.wav ch1.wav ch2.wav", "one with blank.wav", "bad ch0.wav gone.wav")
    listing = list_corpus(tmp_path)
    rows = rows_of(listing)
    assert_samples(rows["all"], np.stack([noise(0.2, number) for number in range(3)], axis=1))
    assert_samples(rows["one"], noise(0.2, 9))
    assert [refusal.key for refusal in listing.refused] == ["bad"]


def test_channels_that_do_not_go_together(tmp_path: Path) -> None:
    write_audio(tmp_path / "a.wav", 0.2)
    write_audio(tmp_path / "b.wav", 0.3)
    write_lines(tmp_path / "wav.scp", "all a.wav b.wav")
    with pytest.raises(AudioError, match=r"3200 samples at 16000 Hz, .*b.wav 4800"):
        samples_of(rows_of(list_corpus(tmp_path))["all"])


def test_espnet_dump(tmp_path: Path) -> None:
    write_audio(tmp_path / "dump" / "raw" / "org" / "a.flac", 0.25)
    data = tmp_path / "dump" / "raw" / "train"
    write_lines(data / "wav.scp", "a dump/raw/org/a.flac")
    write_lines(data / "feats_type", "raw")
    write_lines(data / "text", "a hello")
    write_lines(data / "utt2lang", "a en")
    write_lines(data / "utt2spk", "a tom")
    write_lines(data / "utt2num_samples", "a 4000")
    row = rows_of(list_corpus(data))["a"]
    assert (row["text"], row["metadata"], row["duration"]) == ("hello", '{"language":"en","speaker":"tom"}', None)
    assert rows_of(list_corpus(data, "espnet", sample_rate="16000"))["a"]["duration"] == 0.25
