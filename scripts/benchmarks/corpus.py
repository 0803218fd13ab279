"""The corpus that reading is measured on: the demo speech in LibriSpeech-like lengths, packed as FLAC and as WAV."""

import json
import shutil
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray
from uttershard.pipeline.errors import ConfigError
from uttershard.writers import pack

from ..cli.progress import Bars
from .lengths import SAMPLE_RATE, librispeech_like

SHARDS = 8
MEAN_SECONDS = 11.6
_LOSSLESS = {".flac", ".wav"}
"""The demo's other files would bring the artefacts of their codecs along, which FLAC codes badly."""


def make_corpus(data: Path, speech: Path, hours: float) -> dict[str, Path]:
    """Return the dataset of each codec, packed if it is not there yet.

    Args:
        data: Folder of all that the benchmarks keep.
        speech: Folder of recordings at 16 kHz, searched for FLAC and WAV files.
        hours: About how much audio.
    """
    folder = data / f"{hours:g}h"
    datasets = {codec: folder / codec for codec in ("flac", "wav")}
    if all((dataset / "dataset.json").is_file() for dataset in datasets.values()):
        return datasets
    source = folder / "source"
    manifest = write_source(source, speech, max(SHARDS, round(hours * 3600 / MEAN_SECONDS)))
    for codec, dataset in datasets.items():
        pack(manifest, dataset, codec=codec, shards=SHARDS, progress=Bars())
    shutil.rmtree(source)
    return datasets


def write_source(folder: Path, speech: Path, utterances: int) -> Path:
    """Write WAV files and their manifest, which is called `manifest.jsonl`."""
    folder.mkdir(parents=True, exist_ok=True)
    recording = _read_all(speech)
    starts = np.random.default_rng(1).integers(len(recording), size=utterances)
    records = []
    for number, (start, length) in enumerate(zip(starts, librispeech_like(utterances), strict=True)):
        name = f"utterance-{number:06d}"
        audio = np.take(recording, np.arange(start, start + length), mode="wrap")
        soundfile.write(folder / f"{name}.wav", audio, SAMPLE_RATE, subtype="PCM_16")
        text = f"these are about as many words as anybody says in the time of utterance number {number}"
        record = {"id": name, "audio_filepath": f"{name}.wav", "text": text, "speaker": f"speaker-{number % 97}"}
        records.append({**record, "duration": int(length) / SAMPLE_RATE})
    manifest = folder / "manifest.jsonl"
    manifest.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return manifest


def _read_all(speech: Path) -> NDArray[np.int16]:
    paths = sorted(path for path in speech.rglob("*") if path.suffix in _LOSSLESS)
    if not paths:
        raise ConfigError(f"{speech}: no FLAC or WAV file in it; give a folder of 16 kHz recordings with --speech")
    parts = []
    for path in paths:
        audio, rate = soundfile.read(path, dtype="int16")
        if rate != SAMPLE_RATE or audio.ndim != 1:
            raise ConfigError(f"{path}: {rate} Hz, shape {audio.shape}; the benchmarks take mono at {SAMPLE_RATE} Hz")
        parts.append(audio)
    return np.concatenate(parts)
