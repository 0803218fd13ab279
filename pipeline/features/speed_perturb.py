"""Speed perturbation on the device (Ko et al., 2015): resampled, so that pitch and tempo change together."""

from collections.abc import Iterable, Sequence
from fractions import Fraction

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from ..planning.hashing import Stream
from .chance import Chance, below
from .padded import parse_audio
from .resample import Resample


class SpeedPerturb(nn.Module):
    """Each utterance played at a speed drawn for it by a hash of (seed, epoch, utterance id).

    Batches grow by up to 1 / min(factors) after they were cut to the budget: `ShardLoader(speed=...)` does the same on
    the CPU with a plan that knows the changed lengths. In evaluation mode audio passes unchanged.

    Args:
        factors: Speeds, each as likely as another; 1.1 is faster and shorter.
        seed: Of the run.

    Example:
        >>> audio, lengths = torch.zeros(2, 990), torch.tensor([990, 900])
        >>> audio, lengths = SpeedPerturb([1.1])(audio, lengths, keys=["a", "b"], epoch=0)
        >>> lengths.tolist()
        [900, 819]
    """

    def __init__(self, factors: Sequence[float] = (0.9, 1.0, 1.1), *, seed: int = 0) -> None:
        super().__init__()
        self.factors = _speeds(factors)
        self.players = nn.ModuleList(Resample(factor.numerator, factor.denominator) for factor in self.factors)
        self._chance = Chance(Stream.DEVICE_SPEED, seed, 1)

    def forward(
        self, audio: Tensor, audio_lengths: Tensor, *, keys: Sequence[str], epoch: int
    ) -> tuple[Tensor, Tensor]:
        """Return the batch, each utterance at its speed.

        Args:
            audio: floating point [B, T].
            audio_lengths: int64 [B], samples of each utterance.
            keys: Ids of the utterances (`batch.keys`).
            epoch: Of the batch (`batch.epoch`).

        Returns:
            float32 [B, T'], zero after each utterance's end, and `ceil(n / factor)` samples of each, int64 [B].
        """
        samples = parse_audio(audio, audio_lengths)
        if not self.training:
            return samples, audio_lengths
        chosen = below(self._chance.draw(keys, epoch, len(samples))[:, 0], len(self.factors))
        played, lengths, places = [], [], []
        for number, player in enumerate(self.players):
            rows = torch.nonzero(chosen == number)[:, 0].to(samples.device, non_blocking=True)
            if len(rows):
                part, part_lengths = player(samples[rows], audio_lengths[rows])
                played.append(part)
                lengths.append(part_lengths)
                places.append(rows)
        if not played:
            return samples, audio_lengths
        longest = max(part.shape[1] for part in played)
        back = torch.cat(places).argsort()
        parts = [torch.nn.functional.pad(part, (0, longest - part.shape[1])) for part in played]
        return torch.cat(parts)[back], torch.cat(lengths)[back]


def _speeds(factors: object) -> tuple[Fraction, ...]:
    if isinstance(factors, str) or not isinstance(factors, Iterable):
        raise ConfigError(f"factors={factors!r}: give a list of speeds, such as (0.9, 1.0, 1.1)")
    speeds = tuple(_exact(factor) for factor in factors)
    if not speeds:
        raise ConfigError("factors is empty: give at least one speed, such as 0.9, 1.0, 1.1")
    return speeds


def _exact(factor: object) -> Fraction:
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0.1 <= factor <= 10:
        raise ConfigError(f"speed factor {factor!r}: give a number from 0.1 to 10")
    exact = Fraction(str(factor)).limit_denominator(100)
    if abs(exact - Fraction(str(factor))) > Fraction(1, 10**6):
        raise ConfigError(f"speed factor {factor!r}: give a ratio of small numbers, such as 0.95 or 1.1")
    return exact
