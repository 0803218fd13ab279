"""Small real corpora for the tests of the writers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

RATE = 16_000


def noise(seconds: float, seed: int = 0, rate: int = RATE, channels: int = 1) -> NDArray[np.int16]:
    """Quiet noise, another for each seed, int16 [n] or [n, channels]."""
    count = round(seconds * rate)
    shape = (count,) if channels == 1 else (count, channels)
    return np.random.default_rng(seed).integers(-3000, 3000, shape, dtype=np.int16)


def write_audio(path: Path, seconds: float = 1.0, seed: int = 0, **kwargs: Any) -> Path:
    """Write noise to a file in the format of its ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rate = kwargs.get("rate", RATE)
    soundfile.write(path, noise(seconds, seed, **kwargs), rate)
    return path


def write_jsonl(path: Path, records: Sequence[Mapping[str, Any]]) -> Path:
    """Write a manifest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), "utf-8")
    return path


def jsonl_corpus(folder: Path, utterances: int = 24, seconds: float = 0.2, **fields: Any) -> Path:
    """Write FLAC files of growing length and the manifest of them."""
    records = []
    for number in range(utterances):
        name = f"utt{number:03d}"
        write_audio(folder / "audio" / f"{name}.flac", seconds * (1 + number / utterances), seed=number)
        records.append({"audio_filepath": f"audio/{name}.flac", "text": f"text of {number}", **fields})
    return write_jsonl(folder / "train.jsonl", records)


def write_lines(path: Path, *lines: str | bytes) -> Path:
    """Write lines, bytes as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join((line.encode("utf-8") if isinstance(line, str) else line) + b"\n" for line in lines))
    return path


def files_of(folder: Path) -> dict[str, bytes]:
    """Return all files of a dataset, hidden ones too, by name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def read_errors(folder: Path) -> list[dict[str, Any]]:
    """Return what errors.jsonl lists."""
    path = folder / "errors.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
