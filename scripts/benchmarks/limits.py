"""What the machine can do: rates that no loader with as many processes can pass.

decode   a bare loop over FLAC files in memory: nothing but the fastest decoder, into a buffer that is used again.
copy     WAV: the int16 samples of each utterance, where they lie in the mapped tar, become float32 in their row of a
         padded batch buffer that is used again. No headers are parsed, no checksums verified, no lists made. With two
         buffers in turn it is what a trainer leaves that holds a batch while the next is made: one buffer stays in a
         large cache, two may not.
"""

import itertools
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from uttershard.pipeline import ShardLoader, ShardSet
from uttershard.pipeline.dataset.tar import split_name, walk_span
from uttershard.pipeline.reading.batch import INT16_SCALE
from uttershard.pipeline.reading.codecs import decode
from uttershard.pipeline.reading.spans import INDEX_COLUMNS, SpanIndex
from uttershard.pipeline.storage.local import LocalTars

from .reading import BATCH_BINS, Speed, Window, clock

_WAV_HEADER_BYTES = 44
_FILES_A_LOOK = 16
"""Files between two looks at the clock."""


def bare_decode(dataset: Path, window: Window, *, processes: int) -> Speed:
    """Measure how fast that many processes decode FLAC, each its own share of the files; none waits for another."""
    # The warm-up is longer than their starts are apart, so that all of them run while each is timed.
    work = partial(_decode_share, dataset, window, processes)
    with ProcessPoolExecutor(processes, multiprocessing.get_context("fork")) as pool:
        return Speed(sum(pool.map(work, range(processes))))


def _decode_share(dataset: Path, window: Window, processes: int, share: int) -> float:
    audio, num_samples, _ = _spans(dataset)
    files = [(bytes(data), int(count)) for data, count in zip(audio, num_samples, strict=True)][share::processes]
    scratch = np.empty(int(num_samples.max()), np.int16)

    def sizes() -> Iterator[int]:
        while True:
            for first in range(0, len(files), _FILES_A_LOOK):
                some = files[first : first + _FILES_A_LOOK]
                for data, count in some:
                    decode("flac", data, count, 1, scratch)
                yield len(some)

    return clock(sizes(), window).utterances_per_second


def least_copy(dataset: Path, window: Window, *, buffers: int) -> Speed:
    """Measure the copy of WAV samples into padded float32 rows, in one process, into so many buffers in turn."""
    audio, num_samples, batches = _spans(dataset)
    lengths: list[int] = num_samples.tolist()
    largest = max(len(rows) * int(num_samples[rows].max()) for rows in batches)
    turn = itertools.cycle([np.empty(largest, np.float32) for _ in range(buffers)])
    plan = [(rows.tolist(), int(num_samples[rows].max())) for rows in batches]
    scale = np.float32(INT16_SCALE)

    def sizes() -> Iterator[int]:
        while True:
            for rows, longest in plan:
                padded = next(turn)[: len(rows) * longest].reshape(len(rows), longest)
                for row, utterance in zip(padded, rows, strict=True):
                    length = lengths[utterance]
                    samples = np.frombuffer(audio[utterance], np.int16, length, _WAV_HEADER_BYTES)
                    np.multiply(samples, scale, out=row[:length])
                    row[length:] = 0
                yield len(rows)

    return Speed(clock(sizes(), window).utterances_per_second)


def _spans(dataset: Path) -> tuple[list[memoryview], NDArray[np.int64], list[NDArray[np.int64]]]:
    """Return the audio member of every utterance in the mapped tars, its samples, and the batches of epoch 0."""
    shards = ShardSet.open(str(dataset))
    index = SpanIndex.from_table(shards.index(list(INDEX_COLUMNS)), shards.rows_per_shard)
    spec = index.spec(np.arange(len(index)), epoch=0, step=0)
    audio = []
    for span in LocalTars(shards).read(spec.spans):
        member = next(member for member in walk_span(span) if split_name(member.name)[1] in ("flac", "wav"))
        audio.append(span[member.start : member.start + member.size])
    plan = ShardLoader(shards, batch_bins=BATCH_BINS, rank=0, world_size=1).plan
    return audio, index.num_samples, [plan.batch(step) for step in range(plan.steps)]
