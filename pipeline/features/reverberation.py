"""Reverberation: speech as it sounds in a room, by the room's impulse response."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from ..planning.hashing import Stream
from .bank import AudioBank
from .chance import Chance, happens
from .padded import clear_padding, mean_power, parse_audio
from .settings import number, whole


class Reverberate(nn.Module):
    """Each utterance convolved with an impulse response drawn for it by a hash of (seed, epoch, utterance id).

    Responses begin at their highest peak, the direct sound, so that nothing is delayed and alignments hold; what would
    sound on after an utterance's end is cut; its power stays. In evaluation mode audio passes unchanged.

    Args:
        responses: The impulse responses, at the sampling rate of the speech.
        probability: Share of the utterances that get one.
        longest_samples: Cut longer responses; half a second at 16 kHz holds the audible part of most rooms.
        seed: Of the run.
    """

    peaks: Tensor

    def __init__(
        self, responses: AudioBank, *, probability: float = 1.0, longest_samples: int = 8_000, seed: int = 0
    ) -> None:
        super().__init__()
        if not isinstance(responses, AudioBank):
            raise ConfigError(f"responses is {type(responses).__name__}: give an AudioBank of impulse responses")
        self.responses = responses
        self.probability = number("probability", probability, 0, 1)
        places = zip(responses.starts.tolist(), responses.lengths.tolist(), strict=True)
        peaks = torch.stack([responses.samples[start : start + count].abs().argmax() for start, count in places])
        self.register_buffer("peaks", peaks, persistent=False)
        self.longest_samples = min(whole("longest_samples", longest_samples), int((responses.lengths - peaks).max()))
        self._chance = Chance(Stream.REVERBERATION, seed, 2)

    def forward(
        self, audio: Tensor, audio_lengths: Tensor, *, keys: Sequence[str], epoch: int
    ) -> tuple[Tensor, Tensor]:
        """Return the batch as heard in rooms.

        Args:
            audio: floating point [B, T].
            audio_lengths: int64 [B], samples of each utterance.
            keys: Ids of the utterances (`batch.keys`).
            epoch: Of the batch (`batch.epoch`).

        Returns:
            float32 [B, T], zero after each utterance's end, and `audio_lengths`.
        """
        speech = parse_audio(audio, audio_lengths)
        if not self.training:
            return speech, audio_lengths
        draws = self._chance.draw(keys, epoch, len(speech)).to(speech.device, non_blocking=True)
        with torch.autocast(speech.device.type, enabled=False):
            wet = clear_padding(_convolve(speech, self._responses(draws[:, 0])), audio_lengths)
        tiny = torch.finfo(torch.float32).tiny
        power, wet_power = (mean_power(signal, audio_lengths) for signal in (speech, wet))
        wet = wet * (power.clamp(min=tiny) / wet_power.clamp(min=tiny)).sqrt()[:, None]
        heard = happens(draws[:, 1], self.probability) & (wet_power > tiny)
        return torch.where(heard[:, None], wet, speech), audio_lengths

    def _responses(self, draws: Tensor) -> Tensor:
        """Return a response for each utterance, from its peak on, [B, longest_samples]."""
        bank = self.responses
        chosen = bank.choose(draws)
        peaks, lengths = self.peaks[chosen][:, None], bank.lengths[chosen][:, None]
        places = peaks + torch.arange(self.longest_samples, device=draws.device)
        samples = bank.samples[bank.starts[chosen][:, None] + torch.minimum(places, lengths - 1)]
        return samples.masked_fill(places >= lengths, 0)


def _convolve(speech: Tensor, responses: Tensor) -> Tensor:
    """Return the first T samples of each convolution, by FFT of a length that is fast and does not wrap."""
    longest = speech.shape[1]
    size = 1 << (longest + responses.shape[1] - 2).bit_length()
    spectrum = torch.fft.rfft(speech, n=size) * torch.fft.rfft(responses.to(speech.dtype), n=size)
    wet: Tensor = torch.fft.irfft(spectrum, n=size)[:, :longest]
    return wet
