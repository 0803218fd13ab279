"""Sources by name and by guess."""

from pathlib import Path

import pytest
from corpora import write_audio, write_lines
from uttershard.pipeline.errors import ConfigError
from uttershard.writers.sources import open_source, source_names


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One of everything."""
    write_audio(tmp_path / "kaldi" / "a.wav")
    write_lines(tmp_path / "kaldi" / "wav.scp", "a a.wav")
    write_audio(tmp_path / "folder" / "deep" / "a.wav")
    (tmp_path / "empty").mkdir()
    for name in ("m.jsonl", "m.JSON", "t.csv", "t.tsv", "other"):
        write_lines(tmp_path / name, "x")
    return tmp_path


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("kaldi", "kaldi"),
        ("kaldi/wav.scp", "kaldi"),
        ("m.jsonl", "jsonl"),
        ("m.JSON", "jsonl"),
        ("t.csv", "csv"),
        ("t.tsv", "csv"),
        ("folder", "folder"),
    ],
)
def test_guess(folder: Path, address: str, name: str) -> None:
    assert open_source(str(folder / address)).name == name
    assert open_source(f"file://{folder / address}").name == name


@pytest.mark.parametrize(
    ("address", "reason"),
    [("empty", "folder without audio"), ("other", "no kind that can be told"), ("none", "does not exist")],
)
def test_what_cannot_be_guessed(folder: Path, address: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"{reason}.*--from, one of: espnet, kaldi, .*csv, folder"):
        open_source(str(folder / address))


def test_names_and_options(folder: Path) -> None:
    assert source_names() == (
        "espnet",
        "kaldi",
        "commonvoice",
        "librispeech",
        "lhotse",
        "hf",
        "nemo",
        "webdataset",
        "wenet",
        "jsonl",
        "csv",
        "folder",
    )
    with pytest.raises(ConfigError, match=r"unknown kind of source 'litdata'; known are: espnet, kaldi"):
        open_source("x", "litdata")
    with pytest.raises(ConfigError, match=r"'jsonl' has no option 'wav'; it has: audio, duration, id, offset, text"):
        open_source("x", "jsonl", {"wav": "y"})
    with pytest.raises(ConfigError, match=r"'kaldi' has no option 'allow_pipes'"):
        open_source("x", "kaldi", {"allow_pipes": "yes"})
    with pytest.raises(ConfigError, match="allow_pipes is given, but the source 'jsonl' has no pipes"):
        open_source("x", "jsonl", allow_pipes=True)
