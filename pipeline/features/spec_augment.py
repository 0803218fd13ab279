"""SpecAugment: bands of frequencies and stretches of time are blanked out (Park et al., 2019)."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from ..planning.hashing import Stream
from .chance import Chance, below
from .padded import clear_padding, is_inside, parse_features
from .settings import choice, number, whole

_MOST_MASKS = 1000


class SpecAugment(nn.Module):
    """Masks in time and frequency, sized by each utterance's own length.

    Where the masks are is a hash of (seed, epoch, utterance id): the same on any rank, device and in any batch. In
    evaluation mode features pass unchanged.

    Args:
        freq_masks: Masks along frequency.
        freq_width: Most bins of one, F in the paper; its width is even from 0 to that.
        time_masks: Masks along time.
        time_width: Most frames of one, T in the paper.
        time_share: Most of an utterance that one may cover, p in the paper; with time_width the lower limit counts.
        fill: What stands in a mask: "mean" of the utterance's own features, or 0 (the right one after CMVN).
        seed: Of the run.

    Example:
        >>> features, lengths = torch.ones(2, 200, 80), torch.tensor([200, 120])
        >>> masked, lengths = SpecAugment(seed=1)(features, lengths, keys=["a", "b"], epoch=0)
        >>> bool((masked == 0).any())
        True
    """

    def __init__(
        self,
        *,
        freq_masks: int = 2,
        freq_width: int = 27,
        time_masks: int = 2,
        time_width: int = 100,
        time_share: float = 0.2,
        fill: Literal["zero", "mean"] = "zero",
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.freq_masks = whole("freq_masks", freq_masks, 0, _MOST_MASKS)
        self.freq_width = whole("freq_width", freq_width, 0)
        self.time_masks = whole("time_masks", time_masks, 0, _MOST_MASKS)
        self.time_width = whole("time_width", time_width, 0)
        self._share_of_million = round(1_000_000 * number("time_share", time_share, 0, 1))
        choice("fill", fill, ("zero", "mean"))
        self.fill = fill
        if not freq_masks + time_masks:
            raise ConfigError("freq_masks=0 and time_masks=0: SpecAugment would do nothing; leave it out")
        self._chance = Chance(Stream.SPEC_AUGMENT, seed, 2 * (freq_masks + time_masks))

    def forward(
        self, features: Tensor, feature_lengths: Tensor, *, keys: Sequence[str], epoch: int
    ) -> tuple[Tensor, Tensor]:
        """Return the features with masks.

        Args:
            features: floating point [B, F, D].
            feature_lengths: int64 [B], frames of each utterance.
            keys: Ids of the utterances (`batch.keys`).
            epoch: Of the batch (`batch.epoch`).

        Returns:
            float32 [B, F, D], zero after each utterance's last frame, and `feature_lengths`.
        """
        values = parse_features(features, feature_lengths)
        if not self.training:
            return values, feature_lengths
        draws = self._chance.draw(keys, epoch, len(values)).to(values.device, non_blocking=True)
        in_freq, in_time = draws[:, : 2 * self.freq_masks], draws[:, 2 * self.freq_masks :]
        bins = torch.full_like(feature_lengths, values.shape[2])
        widest = (feature_lengths * self._share_of_million // 1_000_000).clamp(max=self.time_width)
        masked = _masks(in_freq, bins, bins.clamp(max=self.freq_width), values.shape[2])[:, None]
        masked = masked | _masks(in_time, feature_lengths, widest, values.shape[1])[:, :, None]
        if self.fill == "zero":
            return values.masked_fill(masked, 0), feature_lengths
        count = (feature_lengths * values.shape[2]).clamp(min=1)
        mean = (values.sum((1, 2)) / count)[:, None, None]
        return clear_padding(torch.where(masked, mean, values), feature_lengths), feature_lengths


def _masks(draws: Tensor, sizes: Tensor, widest: Tensor, longest: int) -> Tensor:
    """Return bool [B, longest], where any of the masks is.

    Args:
        draws: int64 [B, 2 * masks], a width and a start of each.
        sizes: int64 [B], places that a mask may lie in.
        widest: int64 [B], most places of a mask.
        longest: Places of the result.
    """
    widths = below(draws[:, ::2], widest[:, None] + 1)
    starts = below(draws[:, 1::2], sizes[:, None] - widths + 1)
    up_to_end, up_to_start = (
        is_inside(ends.reshape(-1), longest).view(*ends.shape, longest) for ends in (starts + widths, starts)
    )
    return (up_to_end & ~up_to_start).any(1)
