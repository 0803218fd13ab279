"""Log mel spectrograms as torchaudio, librosa and ESPnet define them, for whole padded batches."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from .padded import clear_padding, map_frames, parse_audio, reflect_ends
from .settings import HIGHEST_RATE, MOST_BINS, band, choice, number, whole

_LARGEST_FFT = 1 << 20

_SETTINGS = (
    "num_mel_bins",
    "sample_rate",
    "n_fft",
    "win_length",
    "hop_length",
    "low_freq",
    "high_freq",
    "power",
    "mel_scale",
    "norm",
    "floor",
    "log_base",
)


class LogMel(nn.Module):
    """Logarithm of a mel spectrogram with centred windows: `log(max(mel, floor))`.

    The mel spectrogram equals `torchaudio.transforms.MelSpectrogram` (with `center=True`, `pad_mode="reflect"`) of each
    utterance alone: it is mirrored at its own ends, where a spectrogram of the padded batch would see zeros. An
    utterance of n samples has `1 + n // hop_length` frames (none if it has no samples).

    Args:
        num_mel_bins: D, mel filters.
        sample_rate: Of the audio, in Hz.
        n_fft: Samples of the Fourier transform, an even number.
        win_length: Samples of the (periodic Hann) window, in the middle of it; None for n_fft.
        hop_length: Samples of a step.
        low_freq: Lower end of the lowest filter, in Hz.
        high_freq: Upper end of the highest filter; None for half the rate.
        power: 2 for power spectra, 1 for magnitudes.
        mel_scale: "htk" or "slaney" (librosa's and ESPnet's default).
        norm: "slaney" gives each filter the same area; None the same height.
        floor: Least value the logarithm is taken of.
        log_base: Of the logarithm; e by default, 10 for Whisper's and HiFi-GAN's numbers.

    Example:
        >>> audio, lengths = torch.zeros(2, 16_000), torch.tensor([16_000, 8_000])
        >>> features, feature_lengths = LogMel(num_mel_bins=80)(audio, lengths)
        >>> tuple(features.shape), feature_lengths.tolist()
        ((2, 101, 80), [101, 51])
    """

    window: Tensor
    filters: Tensor

    def __init__(
        self,
        num_mel_bins: int = 80,
        sample_rate: int = 16_000,
        *,
        n_fft: int = 512,
        win_length: int | None = 400,
        hop_length: int = 160,
        low_freq: float = 0.0,
        high_freq: float | None = None,
        power: Literal[1, 2] = 2,
        mel_scale: Literal["htk", "slaney"] = "htk",
        norm: Literal["slaney"] | None = None,
        floor: float = 1e-10,
        log_base: float = math.e,
    ) -> None:
        super().__init__()
        self.num_mel_bins = whole("num_mel_bins", num_mel_bins, 1, MOST_BINS)
        self.sample_rate = whole("sample_rate", sample_rate, 1, HIGHEST_RATE)
        self.n_fft = whole("n_fft", n_fft, 2, _LARGEST_FFT)
        self.hop_length = whole("hop_length", hop_length)
        self.win_length = win_length = n_fft if win_length is None else whole("win_length", win_length)
        if win_length > n_fft or n_fft % 2:
            raise ConfigError(
                f"n_fft={n_fft} and win_length={win_length}: n_fft must be even, and win_length no longer"
            )
        choice("mel_scale", mel_scale, ("htk", "slaney"))
        choice("norm", norm, ("slaney", None))
        self.mel_scale, self.norm = mel_scale, norm
        self.low_freq, self.high_freq = band(low_freq, high_freq, sample_rate)
        if isinstance(power, bool) or power not in (1, 2):
            raise ConfigError(f"power={power!r}: choose 1 (magnitudes) or 2 (power spectra)")
        self.power = int(power)
        self.floor = number("floor", floor, 1e-30, 1e10)
        self.log_base = number("log_base", log_base, 1.001, 1e10)
        before = (n_fft - win_length) // 2
        window = torch.nn.functional.pad(torch.hann_window(win_length), (before, n_fft - win_length - before))
        self.register_buffer("window", window, persistent=False)
        filters = _mel_filters(num_mel_bins, n_fft, sample_rate, self.low_freq, self.high_freq, mel_scale, norm)
        self.register_buffer("filters", filters, persistent=False)

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides the features, by name; equal settings give equal features, however they were written."""
        return {name: getattr(self, name) for name in _SETTINGS}

    def forward(self, audio: Tensor, audio_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of a padded batch.

        Args:
            audio: floating point [B, T].
            audio_lengths: int64 [B], samples of each utterance.

        Returns:
            float32 [B, F, D], zero after each utterance's last frame, and its number of frames, int64 [B].
        """
        with torch.autocast(audio.device.type, enabled=False):
            return self._compute(audio, audio_lengths)

    def num_frames(self, num_samples: Tensor) -> Tensor:
        """Return the frames of utterances of so many samples, int64."""
        return torch.where(num_samples > 0, num_samples // self.hop_length + 1, 0)

    def _compute(self, audio: Tensor, audio_lengths: Tensor) -> tuple[Tensor, Tensor]:
        samples = parse_audio(audio, audio_lengths)
        lengths = self.num_frames(audio_lengths)
        if not samples.shape[1]:
            return samples.new_zeros(len(samples), 0, self.num_mel_bins), lengths
        half = self.n_fft // 2
        samples = reflect_ends(samples, audio_lengths, half, self.n_fft - half, repeat_edge=False)
        frames = samples.unfold(1, self.n_fft, self.hop_length)[:, : 1 + audio.shape[1] // self.hop_length]
        return clear_padding(map_frames(self._energies, frames), lengths), lengths

    def _energies(self, frames: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(frames * self.window)
        power = torch.view_as_real(spectrum).square().sum(-1)
        # A square root has no gradient at 0, and silence is 0.
        values = power if self.power == 2 else power.clamp(min=torch.finfo(torch.float32).tiny).sqrt()
        mel = values @ self.filters.to(values.dtype)
        return mel.clamp(min=self.floor).log() / math.log(self.log_base)


def _mel_filters(
    bins: int, n_fft: int, sample_rate: int, low: float, high: float, mel_scale: str, norm: str | None
) -> Tensor:
    """Return triangles that are straight in Hz and whose corners are evenly spaced in mel, [n_fft // 2 + 1, bins]."""
    corners = torch.linspace(_to_mel(low, mel_scale), _to_mel(high, mel_scale), bins + 2, dtype=torch.float64)
    edges = _to_hz(corners, mel_scale)
    hz = torch.linspace(0, sample_rate // 2, n_fft // 2 + 1, dtype=torch.float64)[:, None]
    left, center, right = edges[:-2], edges[1:-1], edges[2:]
    triangles = torch.minimum((hz - left) / (center - left), (right - hz) / (right - center)).clamp(min=0)
    if norm == "slaney":
        triangles = triangles * (2 / (right - left))
    return triangles.float()


# Slaney's scale (Auditory Toolbox, 1998) is straight up to 1 kHz, 15 mel there, and logarithmic above, 27 mel for each
# factor of 6.4.
_SLANEY_HZ_A_MEL = 200 / 3
_SLANEY_LOG_STEP = math.log(6.4) / 27


def _to_mel(hz: float, mel_scale: str) -> float:
    if mel_scale == "htk":
        return 2595.0 * math.log10(1.0 + hz / 700.0)
    return hz / _SLANEY_HZ_A_MEL if hz < 1000 else 15 + math.log(hz / 1000) / _SLANEY_LOG_STEP


def _to_hz(mel: Tensor, mel_scale: str) -> Tensor:
    if mel_scale == "htk":
        return 700.0 * (10.0 ** (mel / 2595.0) - 1.0)
    return torch.where(mel < 15, mel * _SLANEY_HZ_A_MEL, 1000.0 * torch.exp(_SLANEY_LOG_STEP * (mel - 15)))
