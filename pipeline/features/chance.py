"""Random integers for augmentation: hashes of (seed, epoch, utterance id), never a stateful generator.

They are drawn on the CPU, where ids are, and only they are copied to the device; what they decide is worked out there
in whole numbers, so that a GPU and a CPU decide the same.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigError
from ..planning.hashing import Stream, hash_keys, stream_key
from .settings import whole

_LARGEST_SEED = 2**64 - 1
"""All that is hashed of one."""


class Chance:
    """Draws for one kind of augmentation of a run.

    Args:
        stream: What is decided.
        seed: Of the run.
        draws: Numbers an utterance needs.
    """

    def __init__(self, stream: Stream, seed: int, draws: int) -> None:
        self._stream, self._seed, self._draws = stream, whole("seed", seed, 0, _LARGEST_SEED), draws

    def draw(self, keys: Sequence[str], epoch: int, count: int) -> Tensor:
        """Return integers from 0 up to 2**32 - 1 for each utterance, int64 [B, draws], on the CPU.

        Args:
            keys: Ids of the utterances of the batch.
            epoch: Of the batch.
            count: Utterances of the batch, to be compared with the keys.
        """
        if isinstance(keys, str) or len(keys) != count:
            raise ConfigError(f"{len(keys)} keys for {count} utterances: give batch.keys and batch.epoch of this batch")
        streams = (stream_key(self._stream, self._seed, epoch, number) for number in range(self._draws))
        hashes = np.stack([hash_keys(stream, keys) for stream in streams], axis=1)
        return torch.from_numpy((hashes >> np.uint64(32)).astype(np.int64))


def below(draws: Tensor, limit: Tensor | int) -> Tensor:
    """Return integers from 0 up to limit - 1, each as likely as another, out of draws; limit < 2**31."""
    return (draws * limit) >> 32


def between(draws: Tensor, low: float, high: float) -> Tensor:
    """Return float64 numbers from low up to high out of draws."""
    return low + (high - low) * (draws.double() / 2**32)


def happens(draws: Tensor, probability: float) -> Tensor:
    """Return whether something of that probability happens, to a millionth, bool."""
    return below(draws, 1_000_000) < round(probability * 1_000_000)
