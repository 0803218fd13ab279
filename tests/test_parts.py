"""Corpora of many files are listed by workers: what comes out is what listing in the client gives, in its order."""

import gzip
import json
import pickle
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import files_of, read_errors, write_jsonl, write_lines
from test_source_tars import encoded, wenet_shard
from uttershard.pipeline.errors import DataError
from uttershard.writers import pack, parts
from uttershard.writers.parts import MANY, each, run_parts_by
from uttershard.writers.progress import Silent
from uttershard.writers.sources import Source, open_source

COUNT = MANY + 1


def webdataset(folder: Path) -> Source:
    for number in range(COUNT):
        wenet_shard(folder / f"train-{number:02d}.tar", {f"{number}-a": number, f"{number}-b": 50 + number})
    # One that is no utterance, and an id that is there twice: both have to be told.
    wenet_shard(folder / "train-03.tar", {"0-a": 3, "3.x.flac": 4})
    return open_source(str(folder), "webdataset")


def wenet(folder: Path) -> Source:
    webdataset(folder)
    write_lines(folder / "data.list", *(str(tar) for tar in sorted(folder.glob("*.tar"))), "gone.tar")
    return open_source(str(folder / "data.list"))


def nemo(folder: Path, *, manifests: int) -> Source:
    webdataset(folder)
    records = [
        {"audio_filepath": f"{number}-{name}.flac", "duration": 0.1, "text": name, "shard_id": number}
        for number in range(COUNT)
        for name in "abc"
    ]
    if manifests == 1:
        write_jsonl(folder / "manifest.json", records)
    else:
        for number in range(COUNT):
            own = [record for record in records if record["shard_id"] == number]
            write_jsonl(folder / f"manifest_{number}.json", own)
    manifest = "manifest.json" if manifests == 1 else f"manifest__OP_0..{COUNT - 1}_CL_.json"
    return open_source(str(folder / manifest), "nemo", {"tars": f"{folder}/train-*.tar"})


def parquet(folder: Path) -> Source:
    for number in range(COUNT):
        audio = {"bytes": encoded(number), "path": f"{number}.flac"}
        rows = [{"id": f"{number}-{row}", "audio": audio, "text": row} for row in "ab"]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"train-{number:02d}.parquet")
    return open_source(str(folder))


def shar(folder: Path) -> Source:
    for number in range(COUNT):
        wenet_shard(folder / f"recording.{number:06d}.tar", {f"{number}-a": number, f"{number}-b": 50 + number})
        source = {"type": "shar", "channels": [0], "source": ""}
        recording = {"id": "r", "sampling_rate": 16_000, "num_samples": 1600, "duration": 0.1, "sources": [source]}
        cuts = [
            {"id": f"{number}-{name}", "start": 0, "duration": 0.1, "channel": 0, "recording": recording}
            for name in "ac"
        ]
        with gzip.open(folder / f"cuts.{number:06d}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(cut) + "\n" for cut in cuts)
    return open_source(str(folder))


KINDS: dict[str, Callable[[Path], Source]] = {
    "webdataset": webdataset,
    "wenet": wenet,
    "nemo, a manifest for each tar": lambda folder: nemo(folder, manifests=COUNT),
    "nemo, a manifest for all": lambda folder: nemo(folder, manifests=1),
    "parquet": parquet,
    "shar": shar,
}


def elsewhere(function: Callable[[Any], Any], tasks: Any, name: Callable[[int], str], /) -> Iterator[tuple[int, Any]]:
    """Run as workers do: nothing but what a pickle holds gets there or back, and results come in any order."""
    calls = [(number, pickle.dumps((function, task))) for number, task in enumerate(tasks)]
    for number, call in reversed(calls):
        assert name(number)
        sent, task = pickle.loads(call)  # noqa: S301
        yield number, pickle.loads(pickle.dumps(sent(task)))  # noqa: S301


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_as_in_the_client(tmp_path: Path, kind: str) -> None:
    source = KINDS[kind](tmp_path)
    here = source.list_utterances()
    with run_parts_by(elsewhere):
        there = source.list_utterances()
    assert len(here) >= COUNT
    assert there.utterances.equals(here.utterances)
    assert (there.refused, there.root, there.searched) == (here.refused, here.root, here.searched)


def test_a_tar_without_end_mark_is_told_by_the_job(tmp_path: Path) -> None:
    class Notes(Silent):
        def note(self, message: str) -> None:
            notes.append(message)

    notes: list[str] = []
    (tmp_path / "corpus").mkdir()
    webdataset(tmp_path / "corpus")
    tar = tmp_path / "corpus/train-05.tar"
    with tarfile.open(tar) as members:
        end = members.getmembers()[-1]
    tar.write_bytes(tar.read_bytes()[: end.offset_data + -(-end.size // 512) * 512])
    pack(tmp_path / "corpus", tmp_path / "out", from_="webdataset", workers=1, max_errors=5, progress=Notes())
    assert [note for note in notes if note.startswith(f"{tar}: ") and "without a whole end mark" in note] == notes
    assert len(notes) == 1


def test_few_parts_start_no_workers() -> None:
    def refuse(*arguments: object) -> Iterator[tuple[int, Any]]:
        raise AssertionError(arguments)

    with run_parts_by(refuse):
        assert list(each(len, ["a"] * (MANY - 1))) == [1] * (MANY - 1)


def test_packed_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    webdataset(corpus)
    settings = {"from_": "webdataset", "shards": 2, "workers": 2, "max_errors": 5}
    pack(corpus, tmp_path / "by-workers", **settings)
    monkeypatch.setattr(parts, "MANY", 1_000_000)
    pack(corpus, tmp_path / "by-client", **settings)
    assert files_of(tmp_path / "by-workers") == files_of(tmp_path / "by-client")
    assert [error["key"] for error in read_errors(tmp_path / "by-workers")] == ["0-a"]


def test_a_part_that_is_damaged_is_named(tmp_path: Path) -> None:
    webdataset(tmp_path)
    tar = tmp_path / "train-05.tar"
    tar.write_bytes(tar.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"train-05\.tar: .*cut"):
        pack(tmp_path, tmp_path / "out", from_="webdataset", workers=1)
