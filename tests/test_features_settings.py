"""Every setting of every transform: what it can't be is refused when the transform is made, by its name and value."""

import inspect
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from test_features_random import Recordings
from uttershard.pipeline import Fbank, GlobalCmvn, LogMel, Resample, SpecAugment, UtteranceCmvn
from uttershard.pipeline.errors import ConfigError
from uttershard.pipeline.features import AudioBank, MixNoise, Reverberate, SpeedPerturb

RECORDINGS = [Recordings(["a"], torch.ones(1, 900), torch.tensor([900]))]

TRANSFORMS: dict[type[Any], dict[str, Any]] = {
    AudioBank: {"batches": RECORDINGS},
    Fbank: {},
    GlobalCmvn: {"stats": {"count": 1, "sum": [0.0], "sum_square": [1.0]}},
    LogMel: {},
    MixNoise: {"noise": AudioBank(RECORDINGS)},
    Resample: {"sample_rate": 16_000, "new_rate": 8_000},
    Reverberate: {"responses": AudioBank(RECORDINGS)},
    SpecAugment: {},
    SpeedPerturb: {},
    UtteranceCmvn: {},
}
"""Each, with what it must be given."""

NEVER = ("x", math.nan, math.inf, -math.inf, 10**400, -1e9, [], {}, b"", object())

MAY_BE_NONE = {"high_freq", "win_length", "norm", "transform", "dataset_digest"}


def settings() -> Iterator[tuple[type[Any], str]]:
    for transform in TRANSFORMS:
        for name in inspect.signature(transform).parameters:
            if name not in ("batches", "stats", "dataset_digest"):
                yield transform, name


@pytest.mark.parametrize(
    ("transform", "name"), [pytest.param(*one, id=f"{one[0].__name__}-{one[1]}") for one in settings()]
)
def test_a_value_that_a_setting_cannot_be(transform: type[Any], name: str) -> None:
    needed, default = TRANSFORMS[transform], inspect.signature(transform).parameters[name].default
    wrong = [*NEVER, *([] if name in MAY_BE_NONE else [None]), *([0, 1] if isinstance(default, bool) else [True])]
    for value in wrong:
        with pytest.raises(ConfigError) as caught:
            transform(**{**needed, name: value})
        assert name.removesuffix("s") in str(caught.value), value


@pytest.mark.parametrize("transform", [Fbank, LogMel])
def test_settings_tell_apart_what_gives_other_features(transform: type[Any]) -> None:
    parameters = inspect.signature(transform).parameters.values()
    others = {"window_type": "hamming", "high_freq": 7_000, "mel_scale": "slaney", "norm": "slaney", "power": 1}
    for one in parameters:
        if isinstance(one.default, bool):
            value = not one.default
        else:
            value = others[one.name] if one.name in others else 2 * one.default or 50
        if one.name not in ("preemphasis", "n_fft", "win_length"):
            assert transform(**{one.name: value}).settings != transform().settings, one.name
    assert transform(low_freq=20, high_freq=8_000).settings == transform(low_freq=20.0).settings
