"""What all transforms share: a padded batch is checked, its padding cleared, each utterance mirrored at its ends."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import ConfigError

_CPU_CHUNK_FRAMES = 2048
"""Frames worked on at a time on a CPU: 3 MB of them stay in its cache, and memory does not grow with the batch."""


def parse_audio(audio: Tensor, lengths: Tensor) -> Tensor:
    """Return a padded batch of audio as float32, with zeros after the end of each utterance.

    What lies in the padding is thrown away before anything is computed, so that not even NaN there can reach the
    result or a gradient.

    Args:
        audio: floating point [B, T].
        lengths: int64 [B], samples of each utterance.

    Raises:
        ConfigError: The shapes do not belong together, or the samples are no floats.
    """
    if audio.ndim != 2:
        hint = "; choose a channel, or let the loader mix them with channels=1" if audio.ndim == 3 else ""
        raise ConfigError(f"audio has shape {tuple(audio.shape)}, expected [B, T]{hint}")
    _check(audio, lengths, "audio")
    return clear_padding(audio.to(_working_dtype(audio)), lengths)


def parse_features(features: Tensor, lengths: Tensor) -> Tensor:
    """Return a padded batch of features as float32, with zeros after the end of each utterance.

    Args:
        features: floating point [B, F, D].
        lengths: int64 [B], frames of each utterance.

    Raises:
        ConfigError: The shapes do not belong together, or the values are no floats.
    """
    if features.ndim != 3:
        raise ConfigError(f"features have shape {tuple(features.shape)}, expected [B, F, D]")
    _check(features, lengths, "features")
    return clear_padding(features.to(_working_dtype(features)), lengths)


def is_inside(lengths: Tensor, longest: int) -> Tensor:
    """Return bool [B, longest]: whether a place is before the end of its utterance."""
    return torch.arange(longest, device=lengths.device) < lengths[:, None]


def clear_padding(values: Tensor, lengths: Tensor) -> Tensor:
    """Return [B, T, ...] with zeros from each utterance's end on, whatever was there."""
    outside = ~is_inside(lengths, values.shape[1])
    return values.masked_fill(outside.view(*outside.shape, *[1] * (values.ndim - 2)), 0)


def mean_power(audio: Tensor, lengths: Tensor) -> Tensor:
    """Return the mean square of each utterance's samples, [B]; audio is zero after each utterance's end."""
    return audio.square().sum(1) / lengths.clamp(min=1)


def reflect_ends(audio: Tensor, lengths: Tensor, left: int, right: int, *, repeat_edge: bool) -> Tensor:
    """Continue each utterance beyond both of its ends by its mirror image.

    Args:
        audio: float32 [B, T], zero after each utterance's end.
        lengths: int64 [B].
        left: Samples to add before the first.
        right: Samples to add after the last.
        repeat_edge: Whether the sample at the edge comes twice (2 1 0 | 0 1 2, as in Kaldi) or once (2 1 | 0 1 2).

    Returns:
        float32 [B, left + T + right]; utterance i has `left + lengths[i] + right` samples there.
    """
    width = audio.shape[1]
    extended = torch.nn.functional.pad(audio, (left, right))
    if width == 0:
        return extended
    before = torch.arange(-left, 0, device=audio.device).expand(len(lengths), left)
    after = lengths[:, None] + torch.arange(right, device=audio.device)
    places = torch.cat((before, after), dim=1)
    mirrored = audio.gather(1, _mirror(places, lengths[:, None], repeat_edge=repeat_edge))
    return extended.scatter(1, places + left, mirrored)


def map_frames(compute: Callable[[Tensor], Tensor], frames: Tensor) -> Tensor:
    """Return `compute(frames)`, [B, F, window] to [B, F, D], worked out a piece at a time where there is a cache."""
    if frames.device.type != "cpu":
        return compute(frames)
    rows = max(1, _CPU_CHUNK_FRAMES // frames.shape[1])
    return torch.cat(
        [
            torch.cat([compute(piece) for piece in torch.split(part, _CPU_CHUNK_FRAMES, dim=1)], dim=1)
            for part in torch.split(frames, rows)
        ]
    )


def _mirror(places: Tensor, lengths: Tensor, *, repeat_edge: bool) -> Tensor:
    """Return the sample that stands at each place when the utterance is mirrored again and again."""
    last = (lengths - 1).clamp(min=0)
    period = (2 * last + 2 if repeat_edge else 2 * last).clamp(min=1)
    folded = places.remainder(period)
    mirror = period - 1 - folded if repeat_edge else period - folded
    return torch.where(folded > last, mirror, folded)


def _check(values: Tensor, lengths: Tensor, name: str) -> None:
    if lengths.shape != values.shape[:1] or lengths.dtype != torch.int64:
        raise ConfigError(
            f"lengths have shape {tuple(lengths.shape)} and type {lengths.dtype}, expected int64 [{len(values)}] for "
            f"{name} of shape {tuple(values.shape)}"
        )
    if not values.is_floating_point():
        raise ConfigError(f"{name} of type {values.dtype}: expected floats; batch.audio is float32 in [-1, 1)")
    if lengths.device != values.device:
        raise ConfigError(f"{name} is on {values.device}, its lengths on {lengths.device}: move both to one device")


def _working_dtype(values: Tensor) -> torch.dtype:
    # Spectra of bfloat16 samples computed in bfloat16 would have two digits.
    return torch.float64 if values.dtype == torch.float64 else torch.float32
