"""What is packed and what is in errors.jsonl are together what the corpus lists, whatever kind it is."""

import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from corpora import read_errors, write_audio, write_jsonl, write_lines
from uttershard.pipeline import ShardSet
from uttershard.writers import pack

GOOD = ["good0", "good1", "good2"]
NAMES = [*GOOD, "empty", "broken", "cut"]
"""All but the good ones are refused: by their size, when they are probed, and when they are packed."""


def write_files(folder: Path, ending: str = "flac", names: list[str] = NAMES) -> dict[str, str]:
    """Write the audio files and return their paths by name."""
    for number, name in enumerate(names):
        write_audio(folder / f"{name}.{ending}", 0.5, seed=number)
    whole = (folder / f"{names[-1]}.{ending}").read_bytes()
    (folder / f"{names[-3]}.{ending}").write_bytes(b"")
    (folder / f"{names[-2]}.{ending}").write_bytes(b"no audio at all")
    (folder / f"{names[-1]}.{ending}").write_bytes(whole[: len(whole) // 2])
    return {name: f"{folder.name}/{name}.{ending}" for name in names}


def manifest(root: Path) -> tuple[Path, int]:
    """Write one line of each kind that can be wrong; JSONL's and NeMo's are the same."""
    files = write_files(root / "audio")
    records: list[dict[str, Any]] = [{"audio_filepath": file, "id": name} for name, file in files.items()]
    good = {"audio_filepath": files["good0"]}
    records += [
        {"id": "lost", "audio_filepath": "none.wav"},
        {"id": "silent", "text": "no audio"},
        {**good, "id": "good1"},
        {**good, "id": ""},
        {**good, "id": "tab\t"},
        {**good, "id": "late", "offset": 0.4, "duration": 0.3},
        {**good, "id": "later", "offset": 3.0},
        {**good, "id": "negative", "offset": -1},
        {**good, "id": "number", "text": 5},
    ]
    path = write_jsonl(root / "m.json", records)
    half = b'{"audio_filepath": "audio/good0.flac", "id": "half", "text": "\\ud800"}'
    lines = [half, b"{", b'{"id": "x", "audio_filepath": "\xff"}', b'{"id": "nan", "duration": NaN}', b"null"]
    path.write_bytes(path.read_bytes() + b"\n".join(lines) + b"\n")
    return path, len(records) + len(lines)


def csv(root: Path) -> tuple[Path, int]:
    rows: list[str | bytes] = [f"{name},{file},,," for name, file in write_files(root / "audio").items()]
    rows += [
        "lost,none.wav,,,",
        "x",
        "good1,audio/good0.flac,,,",
        ",,,,",
        "late,audio/good0.flac,,0.4,0.3",
        "text,audio/good0.flac,,zero,",
        b"byte,audio/good0.flac,\xff,,",
        'quote,audio/good0.flac,"open,,',
    ]
    return write_lines(root / "t.csv", "id,audio_filepath,text,offset,duration", *rows), len(rows)


def kaldi(root: Path) -> tuple[Path, int]:
    rows = [f"{name} {file}" for name, file in write_files(root / "audio").items()]
    rows += ["lost none.wav", "good0 audio/good1.flac", "bare", "command true |"]
    write_lines(root / "wav.scp", *rows, "byte audio/good1.flac")
    write_lines(root / "text", *(f"{name} hi" for name in NAMES), b"byte \xff", "silent text without audio")
    return root, len(rows) + 2


def espnet(root: Path) -> tuple[Path, int]:
    """Make segments, of which recordings are bad as well as times."""
    dump = root / "dump" / "raw"
    rows = [f"{name} {file}" for name, file in write_files(root / "audio").items()]
    write_lines(dump / "wav.scp", *rows)
    write_lines(dump / "feats_type", "raw")
    good = [f"{name}-0 {name} 0.1 -1" for name in GOOD]
    bad = [
        *(f"{name}-0 {name} 0 0.2" for name in NAMES if name not in GOOD),
        "late good0 0.4 0.7",
        "later good0 3 4",
        "nothing good0 0.3 0.3",
        "before good0 -1 0.3",
        "stranger nobody 0 0.3",
        "good0-0 good1 0 0.3",
        "few good0",
        "word good0 a b",
    ]
    write_lines(dump / "segments", *good, *bad)
    return dump, len(good) + len(bad)


def folder(root: Path) -> tuple[Path, int]:
    write_files(root / "audio")
    write_audio(root / "audio" / "good0.wav")
    write_audio(root / "audio" / "byte.wav")
    write_lines(root / "audio" / "byte.txt", b"\xff")
    (root / "audio" / "away.wav").symlink_to(root / "none")
    write_lines(root / "audio" / "silent.txt", "no audio")
    return root / "audio", len(NAMES) + 4


def librispeech(root: Path) -> tuple[Path, int]:
    chapter = root / "1" / "2"
    write_files(chapter)
    write_audio(chapter / "unlisted.flac")
    write_audio(chapter / "byte.flac")
    write_audio(chapter / "good0.wav")
    lines: list[str | bytes] = [f"{name} HI" for name in NAMES]
    lines += ["lost NO AUDIO", "good0 TWICE", b"byte \xff"]
    write_lines(chapter / "1-2.trans.txt", *lines)
    return root, len(lines) + 2


def commonvoice(root: Path) -> tuple[Path, int]:
    write_files(root / "clips", "mp3")
    lines: list[str | bytes] = [f"c\t{name}.mp3\thi" for name in NAMES]
    lines += ["c\tlost.mp3\tx", "c\tgood0.mp3\tx", "c\tgood1.mp3\ta\ttab", "c\tbreak", "c\t\tx", b"c\tbyte.mp3\t\xff"]
    write_lines(root / "validated.tsv", "client_id\tpath\tsentence", *lines)
    write_lines(root / "clip_durations.tsv", "clip\tduration[ms]", "good0.mp3\tlong", "good1.mp3\t500")
    return root, len(lines)


def lhotse(root: Path) -> tuple[Path, int]:
    def cut(key: str, file: str, start: float = 0.0, seconds: float = 0.5) -> dict[str, Any]:
        source = {"type": "file", "channels": [0], "source": file}
        recording = {"id": key, "sources": [source], "sampling_rate": 16_000, "num_samples": 8000, "duration": 0.5}
        return {"id": key, "type": "MonoCut", "channel": 0, "start": start, "duration": seconds, "recording": recording}

    files = write_files(root / "audio")
    good = files["good0"]
    records = [cut(name, file) for name, file in files.items()]
    records += [
        cut("lost", "none.wav"),
        cut("good1", good),
        cut("late", good, 0.4, 0.3),
        cut("tab\t", good),
        {**cut("mixed", good), "type": "MixedCut"},
        {**cut("bare", good), "recording": None},
        {**cut("channel", good), "channel": 3},
        {"id": "nothing"},
    ]
    path = write_jsonl(root / "cuts.jsonl", records)
    path.write_bytes(path.read_bytes() + b'{"id": "\xff"}\n')
    return path, len(records) + 1


def webdataset(root: Path) -> tuple[Path, int]:
    files = write_files(root / "audio")
    with tarfile.open(root / "all.tar", "w") as tar:
        for name, file in files.items():
            tar.add(root / file, f"{name}.flac")
        info = tarfile.TarInfo("lost.txt")
        tar.addfile(info, io.BytesIO())
    return root / "all.tar", len(NAMES) + 1


def archive(root: Path) -> tuple[Path, int]:
    files = write_files(root / "audio")
    with zipfile.ZipFile(root / "all.zip", "w") as target:
        for name, file in files.items():
            target.write(root / file, f"{name}.flac")
        for name in ("../out.flac", "/root.flac"):
            target.writestr(name, (root / files["good0"]).read_bytes())
        link = zipfile.ZipInfo("link.flac")
        link.external_attr = 0o120777 << 16
        target.writestr(link, "good0.flac")
    return root / "all.zip", len(NAMES) + 3


@pytest.mark.parametrize(
    ("source", "make"),
    [
        ("jsonl", manifest),
        ("nemo", manifest),
        ("csv", csv),
        ("kaldi", kaldi),
        ("espnet", espnet),
        ("folder", folder),
        ("librispeech", librispeech),
        ("commonvoice", commonvoice),
        ("lhotse", lhotse),
        ("webdataset", webdataset),
        ("folder", archive),
    ],
)
def test_packed_and_refused_are_all(tmp_path: Path, source: str, make: Callable[[Path], tuple[Path, int]]) -> None:
    corpus, count = make(tmp_path / "corpus")
    target = tmp_path / "out"
    summary = pack(corpus, target, from_=source, workers=1, max_errors=count, shards=1)
    errors = read_errors(target)
    keys = {key.removesuffix("-0") for key in ShardSet.open(str(target)).index(["key"])["key"].to_pylist()}
    assert keys == set(GOOD)
    assert summary.utterances == len(GOOD)
    assert summary.refused == len(errors) == count - len(GOOD)
    assert all(error["source"] and error["reason"] for error in errors)
    written = json.loads((target / "dataset.json").read_text("utf-8"))
    assert sum(shard["utterances"] for shard in written["shards"]) == len(GOOD)
