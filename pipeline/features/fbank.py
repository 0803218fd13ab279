"""Log mel filter banks as Kaldi computes them, for whole padded batches."""

import math
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from .padded import clear_padding, map_frames, parse_audio, reflect_ends
from .settings import HIGHEST_RATE, MOST_BINS, band, choice, number, switch, whole

WindowType = Literal["povey", "hamming", "hanning", "rectangular", "blackman"]

_LONGEST_MS = 10_000

_SETTINGS = (
    "num_mel_bins",
    "sample_rate",
    "window_samples",
    "shift_samples",
    "window_type",
    "low_freq",
    "high_freq",
    "preemphasis",
    "remove_dc_offset",
    "snip_edges",
    "use_power",
    "use_log",
    "scale",
)


class Fbank(nn.Module):
    """Kaldi's log mel filter bank energies, equal for each utterance to `torchaudio.compliance.kaldi.fbank(dither=0)`.

    Names and defaults are Kaldi's; those that differ are said to. An utterance shorter than a window has no frames
    (as in Kaldi; torchaudio refuses it). Computed in float32 under autocast too.

    Args:
        num_mel_bins: D, mel filters; 80 (Kaldi: 23) is what nearly every recipe sets.
        sample_rate: Of the audio, in Hz.
        frame_length_ms: Window.
        frame_shift_ms: Step; the frames of a plan's budget are 10 ms as well.
        window_type: Shape of the window.
        low_freq: Lower end of the lowest filter, in Hz.
        high_freq: Upper end of the highest filter; None for half the rate; up to 0 counts down from there, as in Kaldi.
        preemphasis: Coefficient of the high-pass before the window; 0 for none.
        remove_dc_offset: Whether to subtract each window's mean.
        snip_edges: Whether only windows that lie wholly inside count: `1 + (n - window) // shift` frames. Otherwise
            utterances go on mirrored at their ends: `(n + shift // 2) // shift` frames.
        use_power: Whether to sum power spectra, else magnitudes.
        use_log: Whether to take the logarithm.
        scale: Factor on the samples. Kaldi and WeNet work on the range of int16: give 32768 for numbers like theirs.

    Example:
        >>> audio, lengths = torch.zeros(2, 16_000), torch.tensor([16_000, 8_000])
        >>> features, feature_lengths = Fbank(num_mel_bins=80, sample_rate=16_000)(audio, lengths)
        >>> tuple(features.shape), feature_lengths.tolist()
        ((2, 98, 80), [98, 48])
    """

    window: Tensor
    filters: Tensor

    def __init__(
        self,
        num_mel_bins: int = 80,
        sample_rate: int = 16_000,
        *,
        frame_length_ms: float = 25.0,
        frame_shift_ms: float = 10.0,
        window_type: WindowType = "povey",
        low_freq: float = 20.0,
        high_freq: float | None = None,
        preemphasis: float = 0.97,
        remove_dc_offset: bool = True,
        snip_edges: bool = True,
        use_power: bool = True,
        use_log: bool = True,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.num_mel_bins = whole("num_mel_bins", num_mel_bins, 4, MOST_BINS)
        self.sample_rate = whole("sample_rate", sample_rate, 1, HIGHEST_RATE)
        self.window_samples = int(sample_rate * number("frame_length_ms", frame_length_ms, 0, _LONGEST_MS) / 1000)
        self.shift_samples = int(sample_rate * number("frame_shift_ms", frame_shift_ms, 0, _LONGEST_MS) / 1000)
        if not 1 <= self.shift_samples <= self.window_samples or self.window_samples < 2:
            raise ConfigError(
                f"frame_shift_ms={frame_shift_ms} and frame_length_ms={frame_length_ms} are {self.shift_samples} and "
                f"{self.window_samples} samples: a shift must be at least a sample and at most a window"
            )
        if high_freq is not None and number("high_freq", high_freq, -sample_rate / 2) <= 0:
            high_freq += sample_rate / 2
        self.low_freq, self.high_freq = band(low_freq, high_freq, sample_rate)
        self.fft_samples = 1 << (self.window_samples - 1).bit_length()
        self.preemphasis = number("preemphasis", preemphasis, 0, 1)
        self.remove_dc_offset = switch("remove_dc_offset", remove_dc_offset)
        self.snip_edges = switch("snip_edges", snip_edges)
        self.use_power = switch("use_power", use_power)
        self.use_log = switch("use_log", use_log)
        self.scale = number("scale", scale, 1e-9, 1e10)
        choice("window_type", window_type, get_args(WindowType))
        self.window_type = window_type
        self.register_buffer("window", _window(window_type, self.window_samples), persistent=False)
        banks = _kaldi_filters(num_mel_bins, self.fft_samples, sample_rate, self.low_freq, self.high_freq)
        self.register_buffer("filters", banks, persistent=False)

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
            float32 [B, F, D], zero after each utterance's last frame, and its number of frames, int64 [B]. F is
            what T samples have.
        """
        with torch.autocast(audio.device.type, enabled=False):
            return self._compute(audio, audio_lengths)

    def num_frames(self, num_samples: Tensor) -> Tensor:
        """Return the frames of utterances of so many samples, int64."""
        if not self.snip_edges:
            return (num_samples + self.shift_samples // 2) // self.shift_samples
        return ((num_samples - self.window_samples) // self.shift_samples + 1).clamp(min=0)

    def _compute(self, audio: Tensor, audio_lengths: Tensor) -> tuple[Tensor, Tensor]:
        samples = parse_audio(audio, audio_lengths)
        if self.scale != 1.0:
            samples = samples * self.scale
        longest = int(self.num_frames(torch.tensor(samples.shape[1])))
        lengths = self.num_frames(audio_lengths)
        if not longest:
            return samples.new_zeros(len(samples), 0, self.num_mel_bins), lengths
        if not self.snip_edges:
            left = self.window_samples // 2 - self.shift_samples // 2
            samples = reflect_ends(samples, audio_lengths, left, self.window_samples, repeat_edge=True)
        frames = samples.unfold(1, self.window_samples, self.shift_samples)[:, :longest]
        return clear_padding(map_frames(self._energies, frames), lengths), lengths

    def _energies(self, frames: Tensor) -> Tensor:
        """Return the mel energies of frames, [..., window] to [..., D]."""
        if self.remove_dc_offset:
            frames = frames - frames.mean(-1, keepdim=True)
        if self.preemphasis:
            before = torch.cat((frames[..., :1], frames[..., :-1]), dim=-1)
            frames = frames - self.preemphasis * before
        spectrum = torch.fft.rfft(frames * self.window, n=self.fft_samples)
        power = torch.view_as_real(spectrum).square().sum(-1)
        # A square root has no gradient at 0, and silence is 0.
        values = power if self.use_power else power.clamp(min=torch.finfo(torch.float32).tiny).sqrt()
        energies = values @ self.filters.to(values.dtype)
        return energies.clamp(min=torch.finfo(torch.float32).eps).log() if self.use_log else energies


def _window(window_type: WindowType, samples: int) -> Tensor:
    if window_type == "povey":
        return torch.hann_window(samples, periodic=False).pow(0.85)
    if window_type == "hanning":
        return torch.hann_window(samples, periodic=False)
    if window_type == "hamming":
        return torch.hamming_window(samples, periodic=False)
    if window_type == "blackman":
        return torch.blackman_window(samples, periodic=False)
    return torch.ones(samples)


def _kaldi_filters(bins: int, fft_samples: int, sample_rate: int, low: float, high: float) -> Tensor:
    """Return Kaldi's triangles, straight in mel, float32 [fft_samples // 2 + 1, bins]; the Nyquist bin counts nowhere.

    Mel of the FFT bins is computed in float32, as Kaldi does: where a narrow filter catches one bin near its foot, the
    rounding of that number shows in the logarithm.
    """
    mel_low, mel_high = (1127.0 * math.log(1.0 + hz / 700.0) for hz in (low, high))
    step = (mel_high - mel_low) / (bins + 1)
    numbers = torch.arange(bins)
    left, center, right = (mel_low + (numbers + place) * step for place in (0.0, 1.0, 2.0))
    hz = sample_rate / fft_samples * torch.arange(fft_samples // 2)
    mel = (1127.0 * (1.0 + hz / 700.0).log())[:, None]
    rising, falling = (mel - left) / (center - left), (right - mel) / (right - center)
    triangles = torch.minimum(rising, falling).clamp(min=0)
    return torch.nn.functional.pad(triangles, (0, 0, 0, 1))
