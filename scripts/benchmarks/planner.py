"""What is measured of planning: time, memory, padding and fill."""

import statistics
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from uttershard.pipeline.planning.corpus import Corpus, build_corpus
from uttershard.pipeline.planning.plan import EpochPlan, plan_epoch
from uttershard.pipeline.planning.settings import Batching, Sharding

from .lengths import SAMPLE_RATE, librispeech_like

BATCHING = Batching(batch_bins=60_000)
_TARS = 1024


@dataclass(frozen=True)
class Planning:
    """What one rank's plan of an epoch costs; it plans for all ranks."""

    utterances: int
    ranks: int
    corpus_seconds: float
    """From sidecar columns to what all epochs share, once a run; median."""
    epoch_seconds: float
    """From there to the plan of an epoch; median."""
    lowest_seconds: float
    """Of both together."""
    highest_seconds: float
    steps: int
    batch_microseconds: float
    """epoch_seconds for each batch of each rank."""
    step_microseconds: float
    """epoch_seconds for each step of the rank that plans."""
    bytes_per_utterance: float
    """Most memory in use at once beyond the columns given, plan included."""


@dataclass(frozen=True)
class Padding:
    """Of all ranks together, one epoch of one draw of lengths."""

    utterances: int
    ranks: int
    seed: int
    steps: int
    padding: float
    fill: float
    lowest_fill: float
    """Of the emptiest batch of any rank."""


def measure_planning(utterances: int, ranks: int, rounds: int) -> Planning:
    """Plan for rank 0 of so many, over and over; the last time with every allocation counted."""
    table = _columns(utterances)
    corpus_seconds, epoch_seconds = [], []
    for epoch in range(rounds):
        started = time.perf_counter()
        corpus = _corpus(table, ranks)
        built = time.perf_counter()
        plan = _plan(corpus, ranks, epoch)
        epoch_seconds.append(time.perf_counter() - built)
        corpus_seconds.append(built - started)
        steps = plan.steps
        del corpus, plan
    tracemalloc.start()
    _plan(_corpus(table, ranks), ranks, rounds)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    both = [first + second for first, second in zip(corpus_seconds, epoch_seconds, strict=True)]
    of_epoch = statistics.median(epoch_seconds)
    return Planning(
        utterances=utterances,
        ranks=ranks,
        corpus_seconds=statistics.median(corpus_seconds),
        epoch_seconds=of_epoch,
        lowest_seconds=min(both),
        highest_seconds=max(both),
        steps=steps,
        batch_microseconds=1e6 * of_epoch / (steps * ranks),
        step_microseconds=1e6 * of_epoch / steps,
        bytes_per_utterance=peak_bytes / utterances,
    )


def measure_padding(utterances: int, ranks: int, seeds: Sequence[int]) -> list[Padding]:
    """Lay out one epoch of all ranks for each draw of lengths, and add up its batches."""
    return [_padding(utterances, ranks, seed) for seed in seeds]


def _padding(utterances: int, ranks: int, seed: int) -> Padding:
    corpus = _corpus(_columns(utterances, seed), ranks)
    plans = [plan_epoch(corpus, Sharding(rank, ranks), BATCHING, epoch=0) for rank in range(ranks)]
    padded = np.concatenate([plan.longest * np.diff(plan.splits) for plan in plans])
    budget = BATCHING.batch_bins or 1
    return Padding(
        utterances=utterances,
        ranks=ranks,
        seed=seed,
        steps=plans[0].steps,
        padding=1 - sum(rank.frames for rank in plans[0].ranks) / int(padded.sum()),
        fill=float(padded.mean()) / budget,
        lowest_fill=float(padded.min()) / budget,
    )


def _columns(utterances: int, seed: int = 0) -> pa.Table:
    samples = librispeech_like(utterances, seed)
    return pa.table({"num_samples": samples, "sample_rate": np.full(utterances, SAMPLE_RATE, np.int32)})


def _corpus(table: pa.Table, ranks: int) -> Corpus:
    rows_per_tar = np.diff(np.arange(_TARS + 1) * table.num_rows // _TARS)
    return build_corpus(table, rows_per_tar=rows_per_tar, total_shards=ranks)


def _plan(corpus: Corpus, ranks: int, epoch: int) -> EpochPlan:
    return plan_epoch(corpus, Sharding(0, ranks), BATCHING, epoch=epoch)
