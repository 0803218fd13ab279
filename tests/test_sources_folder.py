"""Folders of audio: what is listed, and what is refused."""

import os
from pathlib import Path

import pytest
from corpora import write_audio
from uttershard.pipeline.errors import ConfigError, DataError
from uttershard.writers.sources.folder import FolderSource


def test_audio_with_transcripts_beside(tmp_path: Path) -> None:
    write_audio(tmp_path / "b" / "one.two.FLAC")
    write_audio(tmp_path / "a.wav")
    write_audio(tmp_path / "b" / "._one.wav")
    (tmp_path / "a.txt").write_text("\ufeffhello\n", "utf-8")
    (tmp_path / "b" / "notes.md").write_text("x")
    listing = FolderSource(str(tmp_path)).list_utterances()
    assert listing.refused == []
    assert listing.utterances.select(["key", "uri", "text", "origin"]).to_pylist() == [
        {"key": "a", "uri": str(tmp_path / "a.wav"), "text": "hello", "origin": "a.wav"},
        {"key": "b/one.two", "uri": str(tmp_path / "b/one.two.FLAC"), "text": None, "origin": "b/one.two.FLAC"},
    ]


def test_transcripts_in_a_table_are_not_passed_over(tmp_path: Path) -> None:
    write_audio(tmp_path / "wavs" / "a.wav")
    (tmp_path / "metadata.csv").write_text("a|hello\n", "utf-8")
    with pytest.raises(ConfigError, match=r"but there is metadata.csv.*pack .*/metadata.csv; .*--option tables=ignore"):
        FolderSource(str(tmp_path)).list_utterances()
    assert FolderSource(str(tmp_path), tables="ignore").list_utterances().utterances["text"].to_pylist() == [None]
    with pytest.raises(ConfigError, match="tables is 'yes'"):
        FolderSource(str(tmp_path), tables="yes").list_utterances()
    (tmp_path / "wavs" / "a.txt").write_text("hello", "utf-8")
    assert FolderSource(str(tmp_path)).list_utterances().utterances["text"].to_pylist() == ["hello"]


def test_lists_in_folders_below_are_not_passed_over(tmp_path: Path) -> None:
    write_audio(tmp_path / "cv" / "de" / "clips" / "a.wav")
    (tmp_path / "cv" / "de" / "clips" / "a.csv").write_text("0.1,0.2\n", "utf-8")
    assert FolderSource(str(tmp_path)).list_utterances().utterances["key"].to_pylist() == ["cv/de/clips/a"]
    for name in ("other.tsv", "validated.tsv", "clips/cuts.jsonl.gz"):
        (tmp_path / "cv" / "de" / name).write_text("path\tsentence\na.wav\thello\n", "utf-8")
    with pytest.raises(ConfigError, match=r"there is cv/de/other.tsv\. .*, or its folder .*/cv/de; .*tables=ignore"):
        FolderSource(str(tmp_path)).list_utterances()


def test_transcripts_without_audio_are_listed(tmp_path: Path) -> None:
    write_audio(tmp_path / "b" / "one.wav")
    for name in ("b/one.txt", "b/two.TXT", "three.txt", "README.txt", "b/license.txt"):
        (tmp_path / name).write_text("hello", "utf-8")
    listing = FolderSource(str(tmp_path)).list_utterances()
    assert listing.utterances["key"].to_pylist() == ["b/one"]
    assert listing.refused == [
        ("b/two", "b/two.TXT", "no audio file beside it"),
        ("three", "three.txt", "no audio file beside it"),
    ]


def test_lists_that_are_to_be_ignored_are_not_refused(tmp_path: Path) -> None:
    write_audio(tmp_path / "a.wav")
    (tmp_path / "transcripts.txt").write_text("a hello", "utf-8")
    listing = FolderSource(str(tmp_path), tables="ignore").list_utterances()
    assert (listing.utterances["key"].to_pylist(), listing.refused) == (["a"], [])


def test_a_readme_is_no_sign_of_transcripts(tmp_path: Path) -> None:
    write_audio(tmp_path / "a.wav")
    for name in ("README.txt", "metadata.csv"):
        (tmp_path / name).write_text("a", "utf-8")
    with pytest.raises(ConfigError, match=r"but there is metadata\.csv"):
        FolderSource(str(tmp_path)).list_utterances()


def test_links_are_followed_and_loops_are_not(tmp_path: Path) -> None:
    write_audio(tmp_path / "disk" / "x.wav")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "part").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "loop").symlink_to(tmp_path / "disk")
    listing = FolderSource(str(tmp_path / "corpus")).list_utterances()
    assert listing.utterances["key"].to_pylist() == ["part/x"]


def test_bad_names_and_transcripts_are_refused(tmp_path: Path) -> None:
    write_audio(tmp_path / "a.wav")
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    write_audio(tmp_path / "b.wav").rename(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.wav")))
    listing = FolderSource(str(tmp_path)).list_utterances()
    assert listing.utterances.num_rows == 0
    assert [(key, source) for key, source, _ in listing.refused] == [("a", "a.txt"), ("\\udcff", "\\udcff.wav")]
    assert "not UTF-8: byte 0xe9 at position 4" in listing.refused[0].reason
    assert "not valid Unicode" in listing.refused[1].reason


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a folder"):
        FolderSource(str(tmp_path / "none")).list_utterances()
