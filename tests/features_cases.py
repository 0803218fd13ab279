"""Padded batches for the tests of the transforms."""

from collections.abc import Sequence

import torch
from torch import Tensor


def speechlike(samples: int, seed: int, rate: int = 16_000) -> Tensor:
    """Harmonics with a changing loudness over noise, float32 [samples], at the level of recorded speech."""
    generator = torch.Generator().manual_seed(seed)
    time = torch.arange(samples, dtype=torch.float64) / rate
    pitch = 90 + 20 * seed % 120
    tone = sum(torch.sin(2 * torch.pi * pitch * k * time) / k for k in range(1, 20))
    loudness = 0.55 + 0.45 * torch.sin(2 * torch.pi * 3 * time + seed)
    noise = torch.randn(samples, generator=generator, dtype=torch.float64)
    return (0.05 * tone * loudness + 0.01 * noise).float()


def padded(utterances: Sequence[Tensor], *, extra: int = 0, fill: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return a padded batch, [B, longest + extra], with `fill` in the padding, and its lengths."""
    lengths = torch.tensor([len(one) for one in utterances])
    batch = torch.full((len(utterances), int(lengths.max()) + extra, *utterances[0].shape[1:]), fill)
    for row, one in zip(batch, utterances, strict=True):
        row[: len(one)] = one
    return batch, lengths
