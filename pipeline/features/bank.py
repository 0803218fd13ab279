"""Recordings of another dataset, noise or room impulse responses, held in memory to be mixed into speech."""

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from .chance import below
from .padded import parse_audio
from .settings import HIGHEST_RATE, number, whole


class AudioBatch(Protocol):
    """What a bank takes: a Batch of a ShardLoader, or anything like it."""

    keys: list[str]
    audio_lengths: Tensor

    @property
    def audio(self) -> Tensor:
        """Samples, floating point [B, T]."""


class AudioBank(nn.Module):
    """Recordings one after the other; moves to a device with the module it is part of.

    Args:
        batches: One epoch of the dataset, whole on every rank, at the sampling rate of the speech. Which batches, and
            their order, do not matter: recordings are sorted by id.
        max_seconds: Refuse more than this; a bank is memory (MUSAN's noise, 6 hours at 16 kHz, takes 1.4 GB).
        sample_rate: Of the recordings, in Hz; what max_seconds is counted with.

    Raises:
        ConfigError: There is no recording, or too much.

    Example:
        >>> noise = ShardLoader("musan-noise", batch_size=32, rank=0, world_size=1)  # doctest: +SKIP
        >>> mix = MixNoise(AudioBank(noise), snr_db=(5, 20)).to("cuda")  # doctest: +SKIP
    """

    samples: Tensor
    starts: Tensor
    lengths: Tensor

    def __init__(
        self, batches: Iterable[AudioBatch], *, max_seconds: float = 36_000, sample_rate: int = 16_000
    ) -> None:
        super().__init__()
        limit = round(number("max_seconds", max_seconds, 0) * whole("sample_rate", sample_rate, 1, HIGHEST_RATE))
        recordings = _collect(batches, limit)
        if not recordings:
            raise ConfigError("the audio bank is empty: its loader gave no samples")
        ordered = [recordings[key] for key in sorted(recordings)]
        lengths = torch.tensor([len(one) for one in ordered])
        self.register_buffer("samples", torch.cat(ordered), persistent=False)
        self.register_buffer("starts", lengths.cumsum(0) - lengths, persistent=False)
        self.register_buffer("lengths", lengths, persistent=False)

    def __len__(self) -> int:
        """Return the number of recordings."""
        return len(self.lengths)

    def choose(self, draws: Tensor) -> Tensor:
        """Return a recording for each draw, by number."""
        return below(draws, len(self))

    def loop(self, chosen: Tensor, offset_draws: Tensor, longest: int) -> Tensor:
        """Return recordings from a random place on, again and again, [B, longest].

        Args:
            chosen: int64 [B], which recordings.
            offset_draws: int64 [B], where they start.
            longest: Samples wanted.
        """
        lengths = self.lengths[chosen]
        offsets = below(offset_draws, lengths)
        places = (offsets[:, None] + torch.arange(longest, device=chosen.device)) % lengths[:, None]
        return self.samples[self.starts[chosen][:, None] + places]


def _collect(batches: Iterable[AudioBatch], limit: int) -> dict[str, Tensor]:
    recordings: dict[str, Tensor] = {}
    held = 0
    for batch in batches:
        audio = parse_audio(batch.audio, batch.audio_lengths)
        for key, row, length in zip(batch.keys, audio, batch.audio_lengths.tolist(), strict=True):
            if length and key not in recordings:
                recordings[key] = row[:length].clone()
                held += length
        if held > limit:
            raise ConfigError(
                f"the audio bank would hold over {held} samples, max_seconds= allows {limit}: raise it if the memory "
                "is there, or filter the dataset"
            )
    return recordings
