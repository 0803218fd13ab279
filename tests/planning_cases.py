"""Small corpora for the planning tests, and the strategies that draw them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from numpy.typing import NDArray
from uttershard.pipeline.planning.corpus import Corpus, build_corpus
from uttershard.pipeline.planning.plan import EpochLayout, lay_out_epoch
from uttershard.pipeline.planning.settings import Batching, Filters

RATE = 16_000
SAMPLES_PER_FRAME = 160


def columns_of(frames: NDArray[np.int64]) -> pa.Table:
    """Return sidecar columns of utterances with these lengths in frames."""
    return pa.table(
        {
            "key": [f"utt/{i}" for i in range(frames.size)],
            "num_samples": frames * SAMPLES_PER_FRAME,
            "sample_rate": np.full(frames.size, RATE, np.int32),
        }
    )


def corpus_of(
    frames: NDArray[np.int64], *, tars: int = 1, total_shards: int = 1, filters: Filters | None = None
) -> Corpus:
    """Return a corpus of utterances with these lengths in frames, spread over the tars."""
    rows_per_tar = np.diff(np.arange(tars + 1) * frames.size // tars)
    return build_corpus(columns_of(frames), rows_per_tar=rows_per_tar, total_shards=total_shards, filters=filters)


def speech_like(utterances: int, seed: int = 0) -> NDArray[np.int64]:
    """Return lengths in frames distributed like those of LibriSpeech: a hump near 15 s and a flat rest below."""
    random = np.random.default_rng(seed)
    hump = round(0.62 * utterances)
    seconds = np.concatenate([random.triangular(11.5, 14.8, 16.7, hump), random.uniform(1.3, 13, utterances - hump)])
    random.shuffle(seconds)
    return np.round(seconds * 100).astype(np.int64)


@dataclass(frozen=True)
class Case:
    """One corpus and one world to plan it for."""

    frames: NDArray[np.int64]
    tars: int
    world_size: int
    total_shards: int
    seed: int
    epoch: int

    def corpus(self, filters: Filters | None = None) -> Corpus:
        """Return the corpus, cut into the logical shards."""
        return corpus_of(self.frames, tars=self.tars, total_shards=self.total_shards, filters=filters)

    def cycle(self, corpus: Corpus, batching: Batching) -> list[EpochLayout]:
        """Return the layouts of a whole cycle that begins with the epoch."""
        return [
            lay_out_epoch(corpus, self.world_size, self.total_shards, batching, epoch=self.epoch + i, seed=self.seed)
            for i in range(self.total_shards // self.world_size)
        ]


@st.composite
def cases(draw: st.DrawFn, fewest_per_shard: int = 0) -> Case:
    """Draw a case: lengths of few or many distinct values, any number of tars, T a multiple of W."""
    world_size = draw(st.integers(1, 6))
    total_shards = world_size * draw(st.integers(1, 4))
    least = max(1, total_shards * fewest_per_shard)
    utterances = draw(st.integers(least, least + 300))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    longest = draw(st.sampled_from([1, 5, 300, 3000]))
    return Case(
        frames=random.integers(1, longest, utterances, endpoint=True),
        tars=draw(st.integers(1, 20)),
        world_size=world_size,
        total_shards=total_shards,
        seed=draw(st.integers(0, 2**64 - 1)),
        epoch=draw(st.integers(0, 1000)),
    )
