"""Batch: what a trainer gets.

Samples wait packed (one after the other, int16 where the source is) until they are where they are needed, and become a
padded float32 tensor there:

    packed   [ a a a a a | b b b | c c c c ]     int16, in a worker, on the way, in pinned memory
    padded   [ a a a a a ]                       float32 in [-1, 1), on the trainer's device
             [ b b b 0 0 ]
             [ c c c c 0 ]
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from ..errors import DataError

INT16_SCALE = 1.0 / 32768.0
"""Full scale of int16 becomes 1.0, as soundfile does it."""


@dataclass(frozen=True)
class SkippedUtterance:
    """An utterance that was left out of its batch with `on_error="skip"`."""

    key: str
    shard: str
    """Address of its tar."""
    offset: int
    """Where in the tar, in bytes."""
    reason: str
    seconds: float


Allocate = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
"""Makes an uninitialised CPU tensor, e.g. BufferPool.empty."""


@dataclass
class Batch:
    """A batch of utterances.

    Attributes:
        keys: Ids, as written when packing.
        audio_lengths: int64 [B], samples of each utterance.
        text: Transcripts; None for an utterance that has none.
        meta: Metadata of each utterance, as in its `.json` member; in a Mix, its dataset's name as `dataset` besides.
        epoch: Epoch of the plan that the batch belongs to.
        step: Its step in that epoch, from 0.
        filler: Whether it repeats another batch of this rank: with `equal_steps="pad"`, or with `on_error="skip"` if
            none of its own utterances could be read.
        tokens: int64 [B, U], if there is a tokenizer.
        token_lengths: int64 [B].
        features: float32 [B, F, D], if a transform made them.
        feature_lengths: int64 [B].
        skipped: What was left out of it, with `on_error="skip"`.
        decode_seconds: How long reading and decoding it took.
        storage: What the storage did meanwhile, by name, see `uttershard.pipeline.storage.base.Counts`.
    """

    keys: list[str]
    audio_lengths: torch.Tensor
    text: list[str | None]
    meta: list[dict[str, Any]]
    epoch: int
    step: int
    filler: bool = False
    tokens: torch.Tensor | None = None
    token_lengths: torch.Tensor | None = None
    features: torch.Tensor | None = None
    feature_lengths: torch.Tensor | None = None
    skipped: tuple[SkippedUtterance, ...] = ()
    decode_seconds: float = 0.0
    storage: dict[str, float] = field(default_factory=dict, repr=False)
    packed: torch.Tensor | None = field(default=None, repr=False)
    """Samples one utterance after the other, int16 or float32, [total] or [total, C]; None once they are padded."""
    padded: torch.Tensor | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def audio(self) -> torch.Tensor:
        """Samples, float32 in [-1, 1), [B, T] or [B, C, T]; zero after the end of each utterance."""
        if self.padded is None:
            if self.packed is None:
                raise DataError("this batch holds no audio")
            self.padded = pad(self.packed, self.audio_lengths)
            self.packed = None
        return self.padded

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """Return the batch with its tensors on `device`; packed samples travel as they are and are padded there."""
        return self.map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """Return the batch in pinned memory (torch's DataLoader calls this with `pin_memory=True`)."""
        return self.map_tensors(lambda tensor: tensor.pin_memory())

    def map_tensors(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Batch":
        """Return the batch with each of its tensors changed."""
        changed: dict[str, Any] = {
            name: change(value) for name, value in self.__dict__.items() if isinstance(value, torch.Tensor)
        }
        return replace(self, **changed)


def pad(packed: torch.Tensor, lengths: torch.Tensor, allocate: Allocate | None = None) -> torch.Tensor:
    """Turn packed samples into a padded float32 batch, on the device where they are.

    Args:
        packed: int16 or float32, [total] or [total, C].
        lengths: int64 [B], samples of each utterance.
        allocate: Makes the result on a CPU; None for torch.empty.

    Returns:
        float32 [B, T] or [B, C, T].
    """
    count, longest = len(lengths), int(lengths.max())
    scale = INT16_SCALE if packed.dtype == torch.int16 else 1.0
    if packed.device.type == "cpu":
        shape = (count, longest) if packed.ndim == 1 else (count, packed.shape[1], longest)
        padded = (allocate or _empty)(shape, torch.float32)
        rows, samples, begin = padded.numpy(), packed.numpy(), 0
        for row, length in enumerate(lengths.tolist()):
            fill_row(rows[row], samples[begin : begin + length])
            begin += length
        return padded
    inside = torch.arange(longest, device=packed.device) < lengths.to(packed.device)[:, None]
    padded = torch.zeros((count, longest, *packed.shape[1:]), dtype=torch.float32, device=packed.device)
    padded[inside] = packed.to(torch.float32) * scale
    return padded if packed.ndim == 1 else padded.transpose(1, 2).contiguous()


def fill_row(row: Any, samples: Any) -> None:
    """Write one utterance into its row of a padded batch, as float32, and zeros after it.

    Args:
        row: float32 ndarray [T] or [C, T].
        samples: int16 or float32 ndarray [n] or [n, C], n <= T.
    """
    length = len(samples)
    target = row[..., :length]
    source = samples.T if samples.ndim > 1 else samples
    if samples.dtype == np.int16:
        np.multiply(source, np.float32(INT16_SCALE), out=target)
    else:
        target[...] = source
    row[..., length:] = 0


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)
