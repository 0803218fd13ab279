"""Small packed datasets for the tests of everything that reads one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from corpora import noise, write_jsonl
from numpy.typing import NDArray
from uttershard.pipeline import Batch, ShardLoader
from uttershard.writers import pack

BINS = 600
"""A budget that cuts the datasets here into some ten batches."""

KEYS = ("plain-{}", "tom/chapter.{}", "Größe {}", "語 {}")


@dataclass(frozen=True)
class Source:
    """What an utterance was before packing."""

    path: Path
    text: str | None
    meta: dict[str, Any]

    def samples(self) -> NDArray[np.float32]:
        """Decode it with soundfile, float32 [n] or [channels, n]."""
        samples, _ = soundfile.read(self.path, dtype="float32")
        return np.ascontiguousarray(samples.T)


@dataclass(frozen=True)
class Packed:
    """A packed dataset and what it was made of."""

    address: Path
    sources: dict[str, Source]

    def copy(self, folder: Path) -> Packed:
        """Return a copy that a test may damage."""
        return Packed(Path(shutil.copytree(self.address, folder)), self.sources)

    def tar(self, shard: int) -> Path:
        """The tar of a shard."""
        return self.address / f"shard-{shard:06d}.tar"

    def sidecar(self, shard: int) -> Path:
        """The sidecar of a shard."""
        return self.tar(shard).with_suffix(".parquet")

    def loader(self, **settings: Any) -> ShardLoader:
        """Open a loader on it, alone in the world."""
        if "batch_size" not in settings:
            settings.setdefault("batch_bins", BINS)
        return ShardLoader(self.address, **{"rank": 0, "world_size": 1, **settings})


def make_dataset(
    folder: Path,
    *,
    utterances: int = 48,
    shards: int = 4,
    ending: str = "flac",
    rates: tuple[int, ...] = (16_000,),
    channels: tuple[int, ...] = (1,),
    columns: tuple[str, ...] = ("speaker",),
    **settings: Any,
) -> Packed:
    """Pack noise of 0.2 to 1.2 s; every fourth id is plain, every fifth utterance has no text."""
    sources: dict[str, Source] = {}
    records = []
    for number in range(utterances):
        rate, count = rates[number % len(rates)], channels[number % len(channels)]
        path = folder / "audio" / f"{number:03d}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        # No two are equally long, and the shortest are not the first.
        seconds = 0.2 + number * 31 % utterances / utterances
        soundfile.write(path, noise(seconds, number, rate, count), rate, subtype="PCM_16")
        key = KEYS[number % len(KEYS)].format(number)
        text = None if number % 5 == 0 else f"Satz ü {number}"
        meta = {"speaker": f"s{number % 3}", "take": number}
        sources[key] = Source(path, text, meta)
        record = {"audio_filepath": str(path), "id": key, **meta}
        records.append(record if text is None else {**record, "text": text})
    manifest = write_jsonl(folder / "train.jsonl", records)
    pack(manifest, folder / "shards", shards=shards, columns=columns, workers=1, **settings)
    return Packed(folder / "shards", sources)


@dataclass(frozen=True)
class Seen:
    """All that a trainer sees of a batch, comparable bit for bit."""

    epoch: int
    step: int
    filler: bool
    keys: tuple[str, ...]
    text: tuple[str | None, ...]
    meta: tuple[str, ...]
    lengths: tuple[int, ...]
    shape: tuple[int, ...]
    audio: bytes


def seen(batch: Batch) -> Seen:
    """Take a batch apart."""
    audio = batch.audio
    assert audio.dtype == torch.float32
    assert audio.is_contiguous()
    return Seen(
        batch.epoch,
        batch.step,
        batch.filler,
        tuple(batch.keys),
        tuple(batch.text),
        tuple(repr(sorted(meta.items())) for meta in batch.meta),
        tuple(batch.audio_lengths.tolist()),
        tuple(audio.shape),
        audio.numpy().tobytes(),
    )


def run(loader: ShardLoader, *epochs: int) -> Iterator[Seen]:
    """Iterate whole epochs."""
    for epoch in epochs:
        loader.set_epoch(epoch)
        yield from map(seen, loader)


def keys_of(batches: Any) -> list[tuple[str, ...]]:
    """Return the ids of each batch, seen or not."""
    return [tuple(batch.keys) for batch in batches]
