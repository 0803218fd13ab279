"""Change of sampling rate for whole padded batches, by a windowed sinc (band-limited interpolation, J. O. Smith)."""

import math

import torch
from torch import Tensor, nn

from .padded import clear_padding, parse_audio
from .settings import HIGHEST_RATE, number, whole

_MOST_CROSSINGS = 1000


class Resample(nn.Module):
    """Audio at another rate, equal for each utterance to `torchaudio.functional.resample`.

    An utterance of n samples has `ceil(n * new_rate / sample_rate)` samples after it.

    Args:
        sample_rate: Of the audio, in Hz.
        new_rate: Wanted, in Hz.
        zero_crossings: Of the sinc on each side; more are sharper and slower.
        rolloff: Cutoff as a share of the lower rate's half.

    Example:
        >>> audio, lengths = Resample(16_000, 8_000)(torch.zeros(2, 16_000), torch.tensor([16_000, 7_999]))
        >>> tuple(audio.shape), lengths.tolist()
        ((2, 8000), [8000, 4000])
    """

    kernels: Tensor

    def __init__(self, sample_rate: int, new_rate: int, *, zero_crossings: int = 6, rolloff: float = 0.99) -> None:
        super().__init__()
        rates = whole("sample_rate", sample_rate, 1, HIGHEST_RATE), whole("new_rate", new_rate, 1, HIGHEST_RATE)
        divisor = math.gcd(*rates)
        self.old, self.new = sample_rate // divisor, new_rate // divisor
        kernels, self.width = _sinc_kernels(
            self.old,
            self.new,
            whole("zero_crossings", zero_crossings, 1, _MOST_CROSSINGS),
            number("rolloff", rolloff, 0.1, 1),
        )
        self.register_buffer("kernels", kernels, persistent=False)

    def forward(self, audio: Tensor, audio_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return a padded batch at the new rate.

        Args:
            audio: floating point [B, T].
            audio_lengths: int64 [B], samples of each utterance.

        Returns:
            float32 [B, T'], zero after each utterance's end, and its number of samples, int64 [B].
        """
        with torch.autocast(audio.device.type, enabled=False):
            return self._compute(audio, audio_lengths)

    def num_samples(self, num_samples: Tensor) -> Tensor:
        """Return the samples that utterances of so many samples come to, int64."""
        return (num_samples * self.new + self.old - 1) // self.old

    def _compute(self, audio: Tensor, audio_lengths: Tensor) -> tuple[Tensor, Tensor]:
        samples = parse_audio(audio, audio_lengths)
        if self.old == self.new:
            return samples, audio_lengths
        lengths = self.num_samples(audio_lengths)
        longest = int(self.num_samples(torch.tensor(audio.shape[1])))
        padded = torch.nn.functional.pad(samples, (self.width, self.width + self.old))
        # One kernel for each place of a new sample between old ones: [B, new, blocks], read block by block.
        blocks = torch.nn.functional.conv1d(padded[:, None], self.kernels.to(samples.dtype), stride=self.old)
        resampled = blocks.transpose(1, 2).reshape(len(audio), -1)[:, :longest]
        return clear_padding(resampled, lengths), lengths


def _sinc_kernels(old: int, new: int, zero_crossings: int, rolloff: float) -> tuple[Tensor, int]:
    """Return float32 [new, 1, 2 * width + old], a kernel for each new sample of a block of `old` samples, and width."""
    cutoff = min(old, new) * rolloff
    width = math.ceil(zero_crossings * old / cutoff)
    places = torch.arange(-width, width + old, dtype=torch.float64) / old
    phases = torch.arange(new, dtype=torch.float64) / new
    time = ((places - phases[:, None]) * cutoff).clamp(-zero_crossings, zero_crossings)
    window = torch.cos(time * math.pi / zero_crossings / 2).square()
    kernels = torch.sinc(time) * window * (cutoff / old)
    return kernels.float()[:, None], width
