"""The example in each source's docstring, run over a corpus of that name."""

import doctest
import gzip
import importlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import write_audio, write_jsonl, write_lines
from uttershard.writers.sources import registry, source_names


def write_tar(path: Path, *names: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    audio = write_audio(Path("some.wav"), 0.1).read_bytes()
    with tarfile.open(path, "w") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(audio)
            tar.addfile(info, io.BytesIO(audio))


def kaldi(folder: str = "data/train") -> None:
    write_audio(Path(folder, "a.wav"), 0.1)
    write_lines(Path(folder, "wav.scp"), "a a.wav")


def espnet() -> None:
    kaldi("dump/raw/train")


def commonvoice() -> None:
    write_audio(Path("cv-corpus/de/clips/a.mp3"), 0.2)
    write_lines(Path("cv-corpus/de/train.tsv"), "path\tsentence", "a.mp3\thallo")


def librispeech() -> None:
    chapter = Path("LibriSpeech/train-clean-100/1/2")
    write_audio(chapter / "1-2-0000.flac", 0.1)
    write_lines(chapter / "1-2.trans.txt", "1-2-0000 HELLO")


def lhotse() -> None:
    audio = str(write_audio(Path("a.wav").absolute(), 0.1))
    sources = [{"type": "file", "channels": [0], "source": audio}]
    recording = {"id": "a", "sources": sources, "sampling_rate": 16000, "num_samples": 1600, "duration": 0.1}
    cut = {"id": "a", "start": 0, "duration": 0.1, "channel": 0, "recording": recording, "type": "MonoCut"}
    Path("cuts_train.jsonl.gz").write_bytes(gzip.compress(json.dumps(cut).encode()))


def hf() -> None:
    data = write_audio(Path("a.wav"), 0.1).read_bytes()
    Path("dataset/data").mkdir(parents=True)
    table = pa.table({"audio": [{"bytes": data, "path": "a.wav"}], "text": ["hi"]})
    pq.write_table(table, "dataset/data/train-00000.parquet")


def nemo() -> None:
    for shard in range(2):
        write_tar(Path(f"audio_{shard}.tar"), f"a{shard}.wav")
        write_jsonl(Path(f"manifest_{shard}.json"), [{"audio_filepath": f"a{shard}.wav", "text": "hi"}])


def webdataset() -> None:
    for shard in range(2):
        write_tar(Path(f"shards/train-{shard:04d}.tar"), f"a{shard}.wav")


def wenet() -> None:
    write_jsonl(Path("data/train/data.list"), [{"key": "a", "wav": str(write_audio(Path("a.wav"), 0.1)), "txt": "hi"}])


def jsonl() -> None:
    write_audio(Path("a.wav"), 0.1)
    write_jsonl(Path("train.jsonl"), [{"wav": "a.wav", "text": "hi"}])


def csv() -> None:
    write_audio(Path("a.wav"), 0.1)
    write_lines(Path("metadata.csv"), "file,clip,text", "a.wav,a,hi")


def folder() -> None:
    write_audio(Path("recordings/a.wav"), 0.1)


CORPORA: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (
        espnet,
        kaldi,
        commonvoice,
        librispeech,
        lhotse,
        hf,
        nemo,
        webdataset,
        wenet,
        jsonl,
        csv,
        folder,
    )
}


@pytest.mark.parametrize("name", source_names())
def test_example(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    CORPORA[name]()
    source = registry.by_name(name)
    (example,) = doctest.DocTestParser().get_examples(source.__doc__ or "")
    listing = eval(example.source, vars(importlib.import_module(source.__module__)))
    assert len(listing) >= 1
    assert not listing.refused
