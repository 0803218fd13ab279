"""LibriSpeech and MLS trees, extracted or in their archive."""

import tarfile
from pathlib import Path

import pytest
from corpora import noise, write_audio, write_lines
from source_checks import assert_samples, list_corpus, rows_of


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "LibriSpeech"
    chapter = root / "dev-clean" / "84" / "121123"
    for number in range(3):
        write_audio(chapter / f"84-121123-000{number}.flac", 0.2, seed=number)
    write_lines(
        chapter / "84-121123.trans.txt", "84-121123-0000 GO DO", "84-121123-0001 HELLO  WORLD", "84-121123-0009 X"
    )
    write_lines(root / "README.TXT", "about")
    return root


def check(address: Path) -> None:
    listing = list_corpus(address)
    rows = rows_of(listing)
    assert {key: (row["text"], row["metadata"]) for key, row in rows.items()} == {
        "84-121123-0000": ("GO DO", '{"chapter":"121123","speaker":"84"}'),
        "84-121123-0001": ("HELLO  WORLD", '{"chapter":"121123","speaker":"84"}'),
    }
    assert_samples(rows["84-121123-0001"], noise(0.2, 1))
    assert sorted((refusal.key, refusal.reason.split(" ")[0]) for refusal in listing.refused) == [
        ("84-121123-0002", "no"),  # audio without a line
        ("84-121123-0009", "no"),  # a line without audio
    ]


def test_tree(tree: Path) -> None:
    check(tree)
    check(tree / "dev-clean")
    check(tree.parent)


def test_archive_is_not_unpacked(tree: Path, tmp_path: Path) -> None:
    archive = tmp_path / "dev-clean.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tree, "LibriSpeech")
    before = sorted(tmp_path.rglob("*"))
    check(archive)
    assert sorted(tmp_path.rglob("*")) == before


def test_multilingual(tmp_path: Path) -> None:
    write_audio(tmp_path / "train" / "audio" / "10" / "20" / "10_20_000001.flac", 0.1)
    write_lines(tmp_path / "train" / "transcripts.txt", "10_20_000001\tein satz")
    row = rows_of(list_corpus(tmp_path / "train"))["10_20_000001"]
    assert (row["text"], row["metadata"]) == ("ein satz", '{"book":"20","speaker":"10"}')
