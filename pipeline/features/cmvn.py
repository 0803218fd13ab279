"""Cepstral mean and variance normalisation: with the statistics of a corpus, or of each utterance."""

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import ConfigError, DataError
from .padded import clear_padding, is_inside, parse_features
from .settings import number

_SMALLEST_STD = 1e-5
"""A dimension that never changes is only shifted, not blown up."""


_GIVE_NPZ = "give feats_stats.npz, which `uttershard stats` writes into the folder beside its json"

_ZIP = b"PK"


class GlobalCmvn(nn.Module):
    """Features less the corpus' mean, divided by its standard deviation, dimension by dimension.

    The statistics are sums over all frames of the corpus: `count` (frames, one number), `sum` [D] and `sum_square`
    [D], as `uttershard stats` and ESPnet (`feats_stats.npz`) write them.

    Args:
        stats: Path of the .npz file, or the three by name.
        norm_mean: Whether to subtract the mean.
        norm_std: Whether to divide by the standard deviation.

    Raises:
        ConfigError: There is no such file.
        DataError: The file does not hold such statistics.

    Example:
        >>> cmvn = GlobalCmvn({"count": 2, "sum": [2.0, 6.0], "sum_square": [10.0, 20.0]})
        >>> cmvn(torch.tensor([[[3.0, 3.0]]]), torch.tensor([1]))[0].tolist()
        [[[1.0, 0.0]]]
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, stats: str | os.PathLike[str] | Mapping[str, Any], *, norm_mean: bool = True, norm_std: bool = True
    ) -> None:
        super().__init__()
        mean, std = _mean_and_std(stats)
        self.register_buffer("mean", mean if norm_mean else torch.zeros_like(mean))
        self.register_buffer("std", std if norm_std else torch.ones_like(std))

    def forward(self, features: Tensor, feature_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return normalised features.

        Args:
            features: floating point [B, F, D].
            feature_lengths: int64 [B], frames of each utterance.

        Returns:
            float32 [B, F, D], zero after each utterance's last frame, and `feature_lengths`.
        """
        values = parse_features(features, feature_lengths)
        if values.shape[2] != len(self.mean):
            raise ConfigError(
                f"the statistics have {len(self.mean)} dimensions, the features {values.shape[2]}: collect them with "
                "the settings of the features that are normalised"
            )
        return clear_padding((values - self.mean) / self.std, feature_lengths), feature_lengths


class UtteranceCmvn(nn.Module):
    """Features less the utterance's own mean, divided by its own standard deviation, dimension by dimension.

    Args:
        norm_mean: Whether to subtract the mean.
        norm_std: Whether to divide by the standard deviation (of the population, that is by the number of frames).
        smallest_std: A lower standard deviation counts as this.

    Example:
        >>> UtteranceCmvn()(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([2]))[0].flatten().tolist()
        [-1.0, 1.0, 0.0]
    """

    def __init__(self, *, norm_mean: bool = True, norm_std: bool = True, smallest_std: float = _SMALLEST_STD) -> None:
        super().__init__()
        self.norm_mean = norm_mean
        self.norm_std = norm_std
        self.smallest_std = number("smallest_std", smallest_std, 1e-20)

    def forward(self, features: Tensor, feature_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return normalised features; arguments and result as of GlobalCmvn."""
        values = parse_features(features, feature_lengths)
        inside = is_inside(feature_lengths, values.shape[1])[:, :, None]
        count = feature_lengths.clamp(min=1)[:, None, None]
        mean = values.sum(1, keepdim=True) / count
        centred = torch.where(inside, values - mean, 0)
        if self.norm_std:
            variance = centred.square().sum(1, keepdim=True) / count
            # Clamped before the root, which has no gradient at 0.
            std = variance.clamp(min=self.smallest_std**2).sqrt()
        else:
            std = torch.ones_like(mean)
        return (centred if self.norm_mean else values) / std, feature_lengths


def _mean_and_std(stats: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    if not isinstance(stats, str | os.PathLike | Mapping):
        raise ConfigError(f"GlobalCmvn({stats!r}): give the path of a feats_stats.npz, which `uttershard stats` writes")
    where = "the statistics" if isinstance(stats, Mapping) else str(stats)
    sums = stats if isinstance(stats, Mapping) else _read_stats(Path(stats))
    missing = {"count", "sum", "sum_square"}.difference(sums)
    if missing:
        raise DataError(f"{where}: no {', '.join(sorted(missing))} among {', '.join(sums)}; collect them again")
    count, total, squares = (np.asarray(sums[name], np.float64) for name in ("count", "sum", "sum_square"))
    if count.size != 1 or not count.reshape(()) > 0 or total.ndim != 1 or total.shape != squares.shape:
        raise DataError(
            f"{where}: count {count!r:.40}, sum of shape {total.shape} and sum_square of shape {squares.shape}: "
            "expected a positive number and two lists equally long; collect them again"
        )
    mean = total / count.reshape(())
    variance = np.maximum(squares / count.reshape(()) - mean**2, 0)
    std = np.where(variance > _SMALLEST_STD**2, np.sqrt(variance), 1.0)
    if not (np.isfinite(mean).all() and np.isfinite(std).all()):
        raise DataError(f"{where}: the sums hold NaN or infinity; a feature of the corpus did, collect them again")
    return torch.from_numpy(mean).float(), torch.from_numpy(std).float()


def _read_stats(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file; `uttershard stats` writes it") from error
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror or error}); {_GIVE_NPZ}") from error
    if not data.startswith(_ZIP):
        raise DataError(f"{path}: not an .npz file of statistics; {_GIVE_NPZ}")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, AttributeError, BadZipFile, NotImplementedError, RuntimeError) as error:
        # The last two are of a zip whose damage reads as encryption, or as a method of compression.
        raise DataError(f"{path}: damaged ({error}); {_GIVE_NPZ}") from error
