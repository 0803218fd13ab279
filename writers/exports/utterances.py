"""The utterances of a dataset, one after the other, for an exporter: checked, with their audio's place or bytes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from uttershard.pipeline.dataset.digest import UNCHECKED, span_checksum
from uttershard.pipeline.dataset.files import local_path
from uttershard.pipeline.dataset.members import member_name
from uttershard.pipeline.dataset.shardset import ShardSet
from uttershard.pipeline.dataset.tar import split_name, walk_span
from uttershard.pipeline.errors import DataError
from uttershard.pipeline.reading.members import audio_members, read_metadata, read_text
from uttershard.pipeline.storage.base import Spans
from uttershard.pipeline.storage.open import open_storage
from uttershard.pipeline.storage.settings import StorageSettings

from ..commit import storage_errors

_ROWS = 64
"""Utterances whose bytes are in memory at a time, where the dataset is remote."""


@dataclass(frozen=True)
class AudioPlace:
    """Where the encoded audio of an utterance is."""

    address: str
    """A tar, or a file of its own."""
    offset: int | None = None
    """Of the audio's first byte; None if the whole file is the audio."""
    nbytes: int | None = None


@dataclass(frozen=True)
class Utterance:
    """What an exporter writes down."""

    key: str
    shard: int
    member: str
    """Name of the audio member in its tar."""
    audio: AudioPlace
    num_samples: int
    sample_rate: int
    channels: int
    text: str | None
    metadata: Mapping[str, Any]

    @property
    def seconds(self) -> float:
        """Length of the audio."""
        return self.num_samples / self.sample_rate


def read_utterances(dataset: ShardSet, extract_to: Path | None) -> Iterator[Utterance]:
    """Yield all utterances in dataset order, each held against its checksum.

    Args:
        dataset: What is exported.
        extract_to: Folder for the audio files; None leaves the audio where it is.

    Raises:
        DataError: An utterance is damaged; the message names shard, id and offset.
    """
    storage = open_storage(dataset, StorageSettings())
    for shard in range(len(dataset.manifest.shards)):
        tar = absolute(dataset.tar_address(shard))
        folder = None if extract_to is None else extract_to / Path(tar).stem
        for batch in dataset.sidecar(shard)[0].to_batches(max_chunksize=_ROWS):
            rows = batch.to_pylist()
            offsets = np.array([row["offset"] for row in rows], np.int64)
            sizes = np.array([row["nbytes"] for row in rows], np.int64)
            spans = storage.read(Spans(np.full(len(rows), shard, np.int32), offsets, sizes))
            for row, span in zip(rows, spans, strict=True):
                yield _utterance(row, span, shard, tar, folder)


def _utterance(row: Mapping[str, Any], span: memoryview, shard: int, tar: str, folder: Path | None) -> Utterance:
    where = f"{tar}: utterance {row['key']!r} at offset {row['offset']}"
    if row["xxh3"] not in (UNCHECKED, span_checksum(span)):
        raise DataError(f"{where}: its bytes are damaged; `uttershard verify` lists all that is. Nothing was finished")
    members = {split_name(member.name)[1]: member for member in walk_span(span)}
    parts = {ending: span[member.start : member.start + member.size] for ending, member in members.items()}
    endings = audio_members(parts)
    if len(endings) != 1:
        raise DataError(f"{where}: {len(endings)} audio members")
    try:
        metadata = read_metadata(parts)
        text = read_text(parts, metadata)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    audio = members[endings[0]]
    if folder is None:
        place = AudioPlace(tar, int(row["offset"]) + audio.start, audio.size)
    else:
        place = AudioPlace(str(_extract(parts[endings[0]], folder, row["key"], endings[0])))
    return Utterance(
        key=row["key"],
        shard=shard,
        member=audio.name,
        audio=place,
        num_samples=row["num_samples"],
        sample_rate=row["sample_rate"],
        channels=row["channels"],
        text=text,
        metadata={name: value for name, value in metadata.items() if name not in ("id", "text")},
    )


def _extract(audio: memoryview, folder: Path, key: str, ending: str) -> Path:
    path = folder / f"{member_name(key)}.{ending.rpartition('.')[2]}"
    with storage_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(audio)
    return path


def absolute(address: str) -> str:
    """Return an address that means the same from every folder."""
    path = local_path(address)
    return address if path is None else str(Path(path).absolute())
