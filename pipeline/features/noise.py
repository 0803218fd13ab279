"""Noise from another dataset, mixed in at a random signal-to-noise ratio."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from ..planning.hashing import Stream
from .chance import Chance, below, between
from .padded import clear_padding, parse_audio
from .settings import number


class AudioBatch(Protocol):
    """What a noise bank takes: a Batch of a ShardLoader, or anything like it."""

    keys: list[str]
    audio_lengths: Tensor

    @property
    def audio(self) -> Tensor:
        """Samples, floating point [B, T]."""


class NoiseBank(nn.Module):
    """Recordings of noise, held in memory one after the other; moves to a device with the module it is part of.

    Args:
        batches: One epoch of the noise dataset, whole on every rank, at the sampling rate of the speech. Which
            batches, and their order, do not matter: recordings are sorted by id.
        max_seconds: Refuse more than this; a bank is memory (MUSAN's noise, 6 hours at 16 kHz, takes 1.4 GB).
        sample_rate: Of the noise, in Hz; what max_seconds is counted with.

    Raises:
        ConfigError: There is no noise, or too much.

    Example:
        >>> noise = ShardLoader("musan-noise", batch_size=32, rank=0, world_size=1)  # doctest: +SKIP
        >>> mix = MixNoise(NoiseBank(noise), snr_db=(5, 20)).to("cuda")  # doctest: +SKIP
    """

    samples: Tensor
    starts: Tensor
    lengths: Tensor

    def __init__(
        self, batches: Iterable[AudioBatch], *, max_seconds: float = 36_000, sample_rate: int = 16_000
    ) -> None:
        super().__init__()
        limit = round(number("max_seconds", max_seconds, 0) * sample_rate)
        recordings, held = _collect(batches, limit)
        if not recordings:
            raise ConfigError("the noise bank is empty: its loader gave no samples")
        ordered = [recordings[key] for key in sorted(recordings)]
        lengths = torch.tensor([len(one) for one in ordered])
        self.register_buffer("samples", torch.cat(ordered), persistent=False)
        self.register_buffer("starts", lengths.cumsum(0) - lengths, persistent=False)
        self.register_buffer("lengths", lengths, persistent=False)
        self.seconds = held / sample_rate

    def __len__(self) -> int:
        """Return the number of recordings."""
        return len(self.lengths)

    def pick(self, draws: Tensor, longest: int) -> Tensor:
        """Return noise for each utterance, [B, longest]: a recording from a random place on, again and again.

        Args:
            draws: int64 [B, 2], which recording and where it starts.
            longest: Samples wanted.
        """
        chosen = below(draws[:, 0], len(self))
        lengths = self.lengths[chosen]
        offsets = below(draws[:, 1], lengths)
        places = (offsets[:, None] + torch.arange(longest, device=draws.device)) % lengths[:, None]
        return self.samples[self.starts[chosen][:, None] + places]


class MixNoise(nn.Module):
    """Speech with noise at a ratio drawn for each utterance.

    Recording, place in it and ratio are hashes of (seed, epoch, utterance id). Both powers are means over the samples
    of the utterance, padding excluded; silent speech, or silent noise, passes unchanged. In evaluation mode all does.

    Args:
        noise: Where the noise comes from.
        snr_db: Lowest and highest ratio of speech to noise in decibels; even between them.
        probability: Share of the utterances that get noise.
        seed: Of the run.
    """

    def __init__(
        self, noise: NoiseBank, *, snr_db: tuple[float, float] = (5.0, 20.0), probability: float = 1.0, seed: int = 0
    ) -> None:
        super().__init__()
        low, high = snr_db
        if not number("snr_db", low, -100, 100) <= number("snr_db", high, -100, 100):
            raise ConfigError(f"snr_db={snr_db}: the first must not be above the second")
        self.noise = noise
        self.snr_db = (low, high)
        self.probability = number("probability", probability, 0, 1)
        self._chance = Chance(Stream.NOISE, seed, 4)

    def forward(
        self, audio: Tensor, audio_lengths: Tensor, *, keys: Sequence[str], epoch: int
    ) -> tuple[Tensor, Tensor]:
        """Return the batch with noise.

        Args:
            audio: floating point [B, T].
            audio_lengths: int64 [B], samples of each utterance.
            keys: Ids of the utterances (`batch.keys`).
            epoch: Of the batch (`batch.epoch`).

        Returns:
            float32 [B, T], zero after each utterance's end, and `audio_lengths`. Sums may exceed 1.
        """
        speech = parse_audio(audio, audio_lengths)
        if not self.training:
            return speech, audio_lengths
        draws = self._chance.draw(keys, epoch, len(speech))
        noisy = below(draws[:, 3], 1_000_000) < round(self.probability * 1_000_000)
        # 10 ** (-snr / 20) as float32 on the CPU: the same factor whatever the device.
        factors = (10 ** (between(draws[:, 2], *self.snr_db) / -20)).masked_fill(~noisy, 0).float()
        draws, factors = (one.to(speech.device, non_blocking=True) for one in (draws, factors))
        noise = clear_padding(self.noise.pick(draws, speech.shape[1]), audio_lengths)
        count = audio_lengths.clamp(min=1)
        speech_power, noise_power = (signal.square().sum(1) / count for signal in (speech, noise))
        tiny = torch.finfo(torch.float32).tiny
        level = (speech_power.clamp(min=tiny) / noise_power.clamp(min=tiny)).sqrt()
        level = torch.where((speech_power > tiny) & (noise_power > tiny), level, 0)
        return speech + noise * (level * factors)[:, None], audio_lengths


def _collect(batches: Iterable[AudioBatch], limit: int) -> tuple[dict[str, Tensor], int]:
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
                f"the noise has over {held} samples, max_seconds= allows {limit}: raise it if the memory is there, or "
                "filter the noise dataset"
            )
    return recordings, held
