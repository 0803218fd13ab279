"""The peer: webdataset's own reader, decoding with soundfile, bucketing by length, in torch's DataLoader.

Written as its users do: shards split over workers, a buffer for each range of lengths, a batch whenever one is full.
"""

import io
from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
import webdataset
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset

from .reading import BATCH_BINS, Speed, Window, clock

_SAMPLES_PER_FRAME = 160
_BUCKET_SECONDS = (3, 5, 7, 9, 11, 12, 13, 14, 15, 16)


def webdataset_buckets(dataset: Path, window: Window, *, num_workers: int) -> Speed:
    """Measure it, with shuffling off."""
    tars = sorted(str(path) for path in dataset.glob("shard-*.tar"))
    utterances = webdataset.WebDataset(tars, shardshuffle=False).map(_decode)
    loader = DataLoader(_Buckets(utterances), batch_size=None, num_workers=num_workers)
    return clock((len(audio) for audio, _ in loader), window)


class _Buckets(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Batches of utterances alike in length, pass after pass without emptying the buckets in between."""

    def __init__(self, utterances: Iterable[NDArray[np.float32]]) -> None:
        self._utterances = utterances

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return _in_buckets(chain.from_iterable(repeat(self._utterances)))


def _decode(sample: dict[str, Any]) -> NDArray[np.float32]:
    encoded = sample["flac"] if "flac" in sample else sample["wav"]
    audio, _ = soundfile.read(io.BytesIO(encoded), dtype="float32")
    return np.asarray(audio, np.float32)


def _in_buckets(utterances: Iterable[NDArray[np.float32]]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    edges = np.array(_BUCKET_SECONDS) * 16_000
    buckets: list[list[NDArray[np.float32]]] = [[] for _ in range(len(edges) + 1)]
    for audio in utterances:
        bucket = buckets[int(np.searchsorted(edges, len(audio)))]
        longest = max([len(audio), *map(len, bucket)])
        if bucket and (len(bucket) + 1) * longest > BATCH_BINS * _SAMPLES_PER_FRAME:
            yield _pad(bucket)
            bucket.clear()
        bucket.append(audio)


def _pad(utterances: list[NDArray[np.float32]]) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([len(audio) for audio in utterances])
    tensors = [torch.from_numpy(audio) for audio in utterances]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True), lengths
