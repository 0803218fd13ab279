"""Cepstral mean and variance normalisation: with the statistics of a corpus, or of each utterance."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..dataset.feats_stats import SUMS, MadeOf, decode_sums, features_of
from ..dataset.stats import DatasetStats
from ..errors import ConfigError, DataError
from .fbank import Fbank
from .log_mel import LogMel
from .padded import clear_padding, is_inside, parse_features
from .settings import number, switch

_SMALLEST_STD = 1e-5
"""A dimension that never changes is only shifted, not blown up."""


_GIVE_NPZ = "give feats_stats.npz, which `uttershard stats` writes into the folder beside its json"

_RUN_AGAIN = "run `uttershard stats` for these, and give the file that it writes"

_TRANSFORMS: dict[str, type[Fbank] | type[LogMel]] = {"fbank": Fbank, "log_mel": LogMel}


class GlobalCmvn(nn.Module):
    """Features less the corpus' mean, divided by its standard deviation, dimension by dimension.

    The statistics are sums over all frames of the corpus: `count` (frames, one number), `sum` [D] and `sum_square`
    [D], as `uttershard stats` and ESPnet (`feats_stats.npz`) write them.

    Args:
        stats: Path of the .npz file, the three by name, or what `ShardSet.stats` gives: its mean and variance are exact
            also where the mean is large beside the deviation, which sums of squares are not.
        transform: What computes the features: a file of features that were computed otherwise is refused.
        dataset_digest: `ShardSet.digest` of a dataset: a file of another one, or of what it was before, is refused.
        norm_mean: Whether to subtract the mean.
        norm_std: Whether to divide by the standard deviation.

    Raises:
        ConfigError: There is no such file, or it does not say what it is of (as ESPnet's own) and should be held
            against something.
        DataError: The file does not hold such statistics, or those of other features or another dataset.

    Example:
        >>> cmvn = GlobalCmvn({"count": 2, "sum": [2.0, 6.0], "sum_square": [10.0, 20.0]})
        >>> cmvn(torch.tensor([[[3.0, 3.0]]]), torch.tensor([1]))[0].tolist()
        [[[1.0, 0.0]]]
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        stats: str | os.PathLike[str] | Mapping[str, Any] | DatasetStats,
        *,
        transform: Fbank | LogMel | None = None,
        dataset_digest: str | None = None,
        norm_mean: bool = True,
        norm_std: bool = True,
    ) -> None:
        super().__init__()
        where, means, variances, made_of = _parse(stats)
        if transform is not None or dataset_digest is not None:
            _refuse_others(where, made_of, transform, dataset_digest)
        mean, std = torch.from_numpy(means).float(), torch.from_numpy(_std(variances)).float()
        self.register_buffer("mean", mean if switch("norm_mean", norm_mean) else torch.zeros_like(mean))
        self.register_buffer("std", std if switch("norm_std", norm_std) else torch.ones_like(std))

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
        self.norm_mean = switch("norm_mean", norm_mean)
        self.norm_std = switch("norm_std", norm_std)
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


_Parsed = tuple[str, NDArray[np.float64], NDArray[np.float64], MadeOf | None]
"""How statistics are called in errors, their mean and variance, [D] each, and what they are of."""


def _parse(stats: object) -> _Parsed:
    if isinstance(stats, DatasetStats):
        if not stats.body["features"]["frames"]:
            raise DataError(f"{stats.path}: no features were computed, or no utterance has a frame of them")
        return stats.path, stats.mean, stats.variance, MadeOf(stats.dataset_digest, features_of(stats.settings))
    if isinstance(stats, Mapping):
        return "the statistics", *_mean_and_variance(stats, "the statistics"), None
    if isinstance(stats, str | os.PathLike):
        sums, made_of = _read_stats(Path(stats))
        return str(stats), *_mean_and_variance(sums, str(stats)), made_of
    raise ConfigError(f"GlobalCmvn({stats!r}): give the path of a feats_stats.npz, which `uttershard stats` writes")


def _mean_and_variance(sums: Mapping[str, Any], where: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    missing = set(SUMS).difference(sums)
    if missing:
        raise DataError(f"{where}: no {', '.join(sorted(missing))} among {', '.join(sums)}; collect them again")
    count, total, squares = (np.asarray(sums[name], np.float64) for name in SUMS)
    if count.size != 1 or not count.reshape(()) > 0 or total.ndim != 1 or total.shape != squares.shape:
        raise DataError(
            f"{where}: count {count!r:.40}, sum of shape {total.shape} and sum_square of shape {squares.shape}: "
            "expected a positive number and two lists equally long; collect them again"
        )
    mean = total / count.reshape(())
    variance = np.maximum(squares / count.reshape(()) - mean**2, 0)
    if not (np.isfinite(mean).all() and np.isfinite(variance).all()):
        raise DataError(f"{where}: the sums hold NaN or infinity; a feature of the corpus did, collect them again")
    return mean, variance


def _std(variance: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(variance > _SMALLEST_STD**2, np.sqrt(variance), 1.0)


def _read_stats(path: Path) -> tuple[dict[str, Any], MadeOf | None]:
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file; `uttershard stats` writes it") from error
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror or error}); {_GIVE_NPZ}") from error
    try:
        return decode_sums(data)
    except DataError as error:
        raise DataError(f"{path}: {error}; {_GIVE_NPZ}") from error


def _refuse_others(
    where: str, made_of: MadeOf | None, transform: Fbank | LogMel | None, dataset_digest: str | None
) -> None:
    """Refuse statistics of other features or another dataset, and those that do not say what they are of."""
    if made_of is None:
        raise ConfigError(
            f"{where}: they do not say what they are of, only a feats_stats.npz of `uttershard stats` does: leave out "
            "transform= and dataset_digest=, or run that"
        )
    if dataset_digest is not None and dataset_digest != made_of.dataset_digest:
        raise DataError(
            f"{where}: of the dataset {made_of.dataset_digest}, but wanted are those of {dataset_digest}: they are "
            f"stale, or of another dataset; {_RUN_AGAIN}"
        )
    if transform is None:
        return
    if not isinstance(transform, Fbank | LogMel):
        raise ConfigError(f"transform={type(transform).__name__}: give the Fbank or LogMel that computes the features")
    name = made_of.features["features"]
    if not isinstance(transform, _TRANSFORMS.get(name, ())):
        raise DataError(f"{where}: of features {name}, not {type(transform).__name__}; {_RUN_AGAIN}")
    options = {**made_of.features["feature_options"], "sample_rate": made_of.features["sample_rate"]}
    there, here = _TRANSFORMS[name](**options).settings, transform.settings
    changed = "; ".join(
        f"{setting}: {there[setting]!r} there, {value!r} here"
        for setting, value in here.items()
        if there[setting] != value
    )
    if changed:
        raise DataError(f"{where}: of features that were computed otherwise ({changed}); {_RUN_AGAIN}")
