"""Tar shards of others as sources: WebDataset's, written by webdataset, and WeNet's."""

import io
import json
import tarfile
from pathlib import Path

import pytest
import soundfile
import webdataset
from corpora import RATE, noise, write_audio, write_jsonl, write_lines
from source_checks import assert_samples, list_corpus, rows_of
from test_adopt import loaded
from uttershard.pipeline import ShardSet
from uttershard.pipeline.errors import DataError
from uttershard.writers import index_tars


def encoded(seed: int) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, noise(0.1, seed), RATE, format="FLAC")
    return file.getvalue()


def wenet_shard(path: Path, keys: dict[str, int]) -> None:
    """As WeNet's make_shard_list.py: the text, then the audio, keys with dots as they are."""
    with tarfile.open(path, "w") as tar:
        for key, seed in keys.items():
            for name, data in ((f"{key}.txt", f"text {seed}".encode()), (f"{key}.flac", encoded(seed))):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def test_webdataset(tmp_path: Path) -> None:
    for shard in range(2):
        with webdataset.TarWriter(str(tmp_path / f"train-{shard:04d}.tar")) as writer:
            for number in range(2):
                key = f"{shard}{number}"
                writer.write(
                    {
                        "__key__": f"dir/{key}",
                        "flac": encoded(int(key)),
                        "json": {"transcript": f"text {key}", "speaker": "tom"},
                    }
                )
    for address in (tmp_path, tmp_path / "train-{0000..0001}.tar", tmp_path / "train-*.tar"):
        listing = list_corpus(address)
        rows = rows_of(listing)
        assert not listing.refused
        assert list(rows) == ["dir/00", "dir/01", "dir/10", "dir/11"]
        assert (rows["dir/10"]["text"], rows["dir/10"]["metadata"]) == ("text 10", '{"speaker":"tom"}')
        assert_samples(rows["dir/10"], noise(0.1, 10))


def test_line_ends_and_marks_of_a_text_file_are_not_of_the_text(tmp_path: Path) -> None:
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        for key, text in {"a": "\ufeffhello  you\n", "b": "two\nlines\r\n", "c": "\n"}.items():
            writer.write({"__key__": key, "flac": encoded(0), "txt": text.encode("utf-8")})
    listed = {key: row["text"] for key, row in rows_of(list_corpus(tmp_path / "a.tar", "webdataset")).items()}
    assert listed == {"a": "hello  you", "b": "two\nlines", "c": ""}
    index_tars([str(tmp_path / "a.tar")], naming="wenet", workers=1)
    assert ShardSet.open(tmp_path).index(["text_chars"])["text_chars"].to_pylist() == [10, 9, 0]
    assert {key: text for key, (_, text, _) in loaded(tmp_path).items()} == listed


def test_what_is_no_utterance(tmp_path: Path) -> None:
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        writer.write({"__key__": "a", "flac": encoded(0)})
        writer.write({"__key__": "b", "txt": "no audio"})
        writer.write({"__key__": "c", "flac": encoded(1), "wav": encoded(2)})
        writer.write({"__key__": "a", "txt": "not adjacent"})
        writer.write({"__key__": "d", "flac": encoded(3), "json": b"{"})
        writer.write({"__key__": "e", "flac": encoded(4)})
        writer.write({"__key__": "e", "flac": encoded(5)})
    listing = list_corpus(tmp_path / "a.tar", "webdataset")
    assert list(rows_of(listing)) == ["e"]
    assert [(refusal.key, refusal.reason.split(":")[0]) for refusal in listing.refused] == [
        ("b", "one audio member expected, found 0 among txt"),
        ("c", "one audio member expected, found 2 among flac, wav"),
        ("a", "its members are not adjacent"),
        ("d", "its .json member is damaged (Expecting property name enclosed in double quotes"),
        ("e", "the id is there twice"),
    ]


def test_a_cut_tar_is_an_error(tmp_path: Path) -> None:
    wenet_shard(tmp_path / "a.tar", {"a": 0, "b": 1})
    data = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=r"a\.tar: .*cut"):
        list_corpus(tmp_path / "a.tar", "webdataset")


def test_wenet_shards(tmp_path: Path) -> None:
    wenet_shard(tmp_path / "shards_000000000.tar", {"a.1": 0, "a.2": 1})
    write_lines(tmp_path / "data.list", str(tmp_path / "shards_000000000.tar"))
    rows = rows_of(list_corpus(tmp_path / "data.list"))
    assert {key: row["text"] for key, row in rows.items()} == {"a.1": "text 0", "a.2": "text 1"}
    assert_samples(rows["a.2"], noise(0.1, 1))


def test_wenet_raw(tmp_path: Path) -> None:
    wav = str(write_audio(tmp_path / "a.wav", 1.0))
    records = [
        {"key": "a", "wav": wav, "txt": "hi"},
        {"key": "b", "wav": wav, "txt": "part", "start": 0.25, "end": 0.5},
        {"key": "c", "wav": "gone.wav", "txt": ""},
    ]
    listing = list_corpus(write_jsonl(tmp_path / "data.list", records))
    rows = rows_of(listing)
    assert_samples(rows["a"], noise(1.0))
    assert_samples(rows["b"], noise(1.0)[RATE // 4 : RATE // 2])
    assert [json.loads(refusal.as_json())["key"] for refusal in listing.refused] == ["c"]
