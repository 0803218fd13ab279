"""What is packed and what is in errors.jsonl are together what the corpus holds, whatever kind it is."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from corpora import read_errors, write_audio, write_jsonl, write_lines
from uttershard.writers import pack

NAMES = ["good0", "good1", "good2", "empty", "broken", "cut"]
"""All but the good ones are refused: by their size, when they are probed, and when they are packed."""


def write_files(folder: Path) -> dict[str, str]:
    """Write the audio files and return their paths by name."""
    for number, name in enumerate(NAMES):
        write_audio(folder / f"{name}.flac", 0.5, seed=number)
    whole = (folder / "cut.flac").read_bytes()
    (folder / "empty.flac").write_bytes(b"")
    (folder / "broken.flac").write_bytes(b"no audio at all")
    (folder / "cut.flac").write_bytes(whole[: len(whole) // 2])
    return {name: f"audio/{name}.flac" for name in NAMES}


def jsonl(root: Path) -> tuple[Path, int]:
    files = write_files(root / "audio")
    records = [{"audio_filepath": file, "id": name} for name, file in files.items()]
    path = write_jsonl(root / "m.jsonl", records)
    path.write_text(path.read_text("utf-8") + '{\n{"id": "lost", "audio_filepath": "none.wav"}\n', "utf-8")
    return path, len(NAMES) + 2


def csv(root: Path) -> tuple[Path, int]:
    rows = [f"{name},{file}" for name, file in write_files(root / "audio").items()]
    return write_lines(root / "t.csv", "id,audio_filepath", *rows, "lost,none.wav", "x"), len(NAMES) + 2


def kaldi(root: Path) -> tuple[Path, int]:
    rows = [f"{name} {file}" for name, file in write_files(root / "audio").items()]
    write_lines(root / "wav.scp", *rows, "lost none.wav", "good0 audio/good1.flac")
    return root, len(NAMES) + 2


def folder(root: Path) -> tuple[Path, int]:
    write_files(root / "audio")
    return root / "audio", len(NAMES)


def webdataset(root: Path) -> tuple[Path, int]:
    files = write_files(root / "audio")
    with tarfile.open(root / "all.tar", "w") as tar:
        for name, file in files.items():
            tar.add(root / file, f"{name}.flac")
        info = tarfile.TarInfo("lost.txt")
        tar.addfile(info, io.BytesIO())
    return root / "all.tar", len(NAMES) + 1


@pytest.mark.parametrize(
    ("source", "make"),
    [
        ("jsonl", jsonl),
        ("csv", csv),
        ("kaldi", kaldi),
        ("folder", folder),
        ("webdataset", webdataset),
        ("nemo", jsonl),
    ],
)
def test_packed_and_refused_are_all(tmp_path: Path, source: str, make: Callable[[Path], tuple[Path, int]]) -> None:
    corpus, count = make(tmp_path / "corpus")
    target = tmp_path / "out"
    summary = pack(corpus, target, from_=source, workers=1, max_errors=count, shards=1)
    errors = read_errors(target)
    assert summary.utterances == 3
    assert summary.refused == len(errors) == count - 3
    assert all(error["source"] and error["reason"] for error in errors)
    manifest = json.loads((target / "dataset.json").read_text("utf-8"))
    assert sum(shard["utterances"] for shard in manifest["shards"]) == 3
