"""Noise from another dataset, mixed in at a random signal-to-noise ratio."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from ..planning.hashing import Stream
from .bank import AudioBank
from .chance import Chance, between, happens
from .padded import clear_padding, mean_power, parse_audio
from .settings import number


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
        self, noise: AudioBank, *, snr_db: tuple[float, float] = (5.0, 20.0), probability: float = 1.0, seed: int = 0
    ) -> None:
        super().__init__()
        if not isinstance(noise, AudioBank):
            raise ConfigError(f"noise is {type(noise).__name__}: give an AudioBank of recordings")
        self.noise = noise
        self.snr_db = _span(snr_db)
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
        # 10 ** (-snr / 20) as float32 on the CPU: the same factor whatever the device.
        factors = (10 ** (between(draws[:, 2], *self.snr_db) / -20)).float()
        factors = factors.masked_fill(~happens(draws[:, 3], self.probability), 0)
        draws, factors = (one.to(speech.device, non_blocking=True) for one in (draws, factors))
        looped = self.noise.loop(self.noise.choose(draws[:, 0]), draws[:, 1], speech.shape[1])
        noise = clear_padding(looped, audio_lengths)
        speech_power, noise_power = (mean_power(signal, audio_lengths) for signal in (speech, noise))
        tiny = torch.finfo(torch.float32).tiny
        level = (speech_power.clamp(min=tiny) / noise_power.clamp(min=tiny)).sqrt()
        level = torch.where((speech_power > tiny) & (noise_power > tiny), level, 0)
        return speech + noise * (level * factors)[:, None], audio_lengths


def _span(snr_db: object) -> tuple[float, float]:
    if not isinstance(snr_db, tuple | list) or len(snr_db) != 2:
        raise ConfigError(f"snr_db={snr_db!r}: give two numbers of decibels, such as (5, 20)")
    low, high = (number("snr_db", end, -100, 100) for end in snr_db)
    if low > high:
        raise ConfigError(f"snr_db={snr_db!r}: the first must not be above the second")
    return low, high
