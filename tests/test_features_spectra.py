"""Fbank, LogMel, Resample: each utterance as torchaudio computes it alone, whatever it is batched and padded with."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchaudio
from features_cases import padded, speechlike
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torchaudio.compliance import kaldi
from uttershard.pipeline import Fbank, LogMel, Resample
from uttershard.pipeline.errors import ConfigError

LENGTHS = (16_000, 400, 401, 559, 560, 7_999, 24_321)


def assert_equal_per_utterance(
    transform: nn.Module,
    utterances: list[Tensor],
    expected: Callable[[Tensor], Tensor],
    tolerance: float,
    **padding: Any,
) -> None:
    results, lengths = transform(*padded(utterances, **padding))
    for result, length, utterance in zip(results, lengths.tolist(), utterances, strict=True):
        wanted = expected(utterance)
        assert length == len(wanted)
        torch.testing.assert_close(result[:length], wanted, atol=tolerance, rtol=0)
        assert not result[length:].any()


@pytest.mark.parametrize(
    ("ours", "kaldis"),
    [
        ({}, {}),
        ({"num_mel_bins": 23}, {"num_mel_bins": 23}),
        ({"num_mel_bins": 128}, {"num_mel_bins": 128}),
        ({"snip_edges": False}, {"snip_edges": False}),
        ({"sample_rate": 8_000, "num_mel_bins": 40}, {"sample_frequency": 8_000, "num_mel_bins": 40}),
        ({"sample_rate": 22_050}, {"sample_frequency": 22_050}),
        ({"frame_length_ms": 20, "frame_shift_ms": 12.5}, {"frame_length": 20.0, "frame_shift": 12.5}),
        ({"low_freq": 60, "high_freq": -400}, {"low_freq": 60.0, "high_freq": -400.0}),
        ({"preemphasis": 0, "remove_dc_offset": False}, {"preemphasis_coefficient": 0.0, "remove_dc_offset": False}),
        ({"use_power": False}, {"use_power": False}),
        ({"scale": 32768}, {"scale": 32768}),
        *[({"window_type": kind}, {"window_type": kind}) for kind in ("hamming", "hanning", "rectangular", "blackman")],
    ],
)
def test_fbank_is_kaldis(ours: dict[str, Any], kaldis: dict[str, Any]) -> None:
    scale = kaldis.pop("scale", 1.0)
    options = {"num_mel_bins": 80, "dither": 0.0, **kaldis}
    window = int(options.get("sample_frequency", 16_000) * options.get("frame_length", 25) / 1000)
    utterances = [speechlike(max(length, window), seed) for seed, length in enumerate(LENGTHS)]
    assert_equal_per_utterance(
        Fbank(**ours), utterances, lambda one: kaldi.fbank(scale * one[None], **options), 1e-4, extra=777, fill=0.7
    )


def test_fbank_without_logarithm() -> None:
    utterances = [speechlike(length, 1) for length in LENGTHS]
    expected = [kaldi.fbank(one[None], num_mel_bins=80, dither=0.0, use_log_fbank=False) for one in utterances]
    for utterance, wanted in zip(utterances, expected, strict=True):
        found, _ = Fbank(use_log=False)(*padded([utterance]))
        torch.testing.assert_close(found[0], wanted, rtol=1e-4, atol=1e-7)


def test_fbank_of_digital_silence_is_kaldis_floor() -> None:
    silence = torch.zeros(1600)
    assert_equal_per_utterance(Fbank(), [silence], lambda one: kaldi.fbank(one[None], num_mel_bins=80), 1e-6)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {"n_fft": 512, "win_length": 400, "hop_length": 160, "n_mels": 80}),
        (
            {"mel_scale": "slaney", "norm": "slaney", "win_length": None},
            {"n_fft": 512, "hop_length": 160, "n_mels": 80, "mel_scale": "slaney", "norm": "slaney"},
        ),
        (
            {
                "sample_rate": 22_050,
                "n_fft": 1024,
                "win_length": 1024,
                "hop_length": 256,
                "high_freq": 8_000,
                "power": 1,
            },
            {"sample_rate": 22_050, "n_fft": 1024, "hop_length": 256, "n_mels": 80, "f_max": 8_000.0, "power": 1.0},
        ),
        (
            {"n_fft": 402, "win_length": 301, "num_mel_bins": 40},
            {"n_fft": 402, "win_length": 301, "hop_length": 160, "n_mels": 40},
        ),
    ],
)
def test_log_mel_is_torchaudios(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    spectrogram = torchaudio.transforms.MelSpectrogram(**theirs)
    utterances = [speechlike(max(length, 600), seed) for seed, length in enumerate(LENGTHS)]
    assert_equal_per_utterance(
        LogMel(**ours),
        utterances,
        lambda one: spectrogram(one).clamp(min=1e-10).log().T,
        1e-3,
        extra=501,
        fill=-0.5,
    )


def test_log_mel_to_base_ten() -> None:
    batch = padded([speechlike(3200, 1)])
    torch.testing.assert_close(LogMel(log_base=10)(*batch)[0], LogMel()(*batch)[0] / 2.302585, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("old", "new"), [(16_000, 8_000), (8_000, 16_000), (44_100, 16_000), (10, 9), (5, 5)])
def test_resample_is_torchaudios(old: int, new: int) -> None:
    utterances = [speechlike(length, seed) for seed, length in enumerate((*LENGTHS, 1, 2, 3))]
    assert_equal_per_utterance(
        Resample(old, new),
        utterances,
        lambda one: torchaudio.functional.resample(one, old, new),
        1e-5,
        extra=333,
        fill=0.9,
    )


TRANSFORMS = {
    "fbank": Fbank(num_mel_bins=20),
    "fbank, mirrored": Fbank(num_mel_bins=20, snip_edges=False),
    "log mel": LogMel(num_mel_bins=20),
    "resample": Resample(16_000, 11_025),
}


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 2_000), min_size=1, max_size=6),
    extra=st.integers(0, 700),
    garbage=st.sampled_from([0.0, 1e30, float("inf"), float("nan")]),
    name=st.sampled_from(sorted(TRANSFORMS)),
)
def test_neighbours_and_padding_do_not_matter(lengths: list[int], extra: int, garbage: float, name: str) -> None:
    utterances = [speechlike(length, seed) for seed, length in enumerate(lengths)]
    together, counts = TRANSFORMS[name](*padded(utterances, extra=extra, fill=garbage))
    assert counts.dtype == torch.int64
    for row, count, utterance in zip(together, counts.tolist(), utterances, strict=True):
        alone, own_count = TRANSFORMS[name](*padded([utterance]))
        assert count == int(own_count) == alone.shape[1]
        torch.testing.assert_close(row[:count], alone[0], atol=1e-4, rtol=1e-5)
        assert not row[count:].any()


def test_shorter_than_a_window() -> None:
    features, lengths = Fbank()(*padded([speechlike(399, 1), speechlike(400, 2)]))
    assert lengths.tolist() == [0, 1]
    assert not features[0].any()
    only_short, lengths = Fbank()(*padded([speechlike(80, 1)]))
    assert (only_short.shape, lengths.tolist()) == ((1, 0, 80), [0])
    mirrored, lengths = Fbank(snip_edges=False)(*padded([speechlike(100, 1), speechlike(80, 1), speechlike(79, 1)]))
    assert lengths.tolist() == [1, 1, 0]
    assert torch.isfinite(mirrored).all()


@pytest.mark.parametrize("make", [Fbank, LogMel])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_goes_in_and_float32_comes_out(make: Callable[[], nn.Module], dtype: torch.dtype) -> None:
    audio, lengths = padded([speechlike(3_000, 1), speechlike(2_000, 2)])
    rounded = audio.to(dtype)
    features, _ = make()(rounded, lengths)
    assert features.dtype == torch.float32
    torch.testing.assert_close(features, make()(rounded.float(), lengths)[0])


def test_autocast_does_not_round_the_spectrum() -> None:
    audio, lengths = padded([speechlike(3_000, 1)])
    plain, _ = Fbank()(audio, lengths)
    with torch.autocast("cpu", torch.bfloat16):
        cast, _ = Fbank()(audio, lengths)
    torch.testing.assert_close(cast, plain)


@pytest.mark.parametrize("name", sorted(TRANSFORMS))
def test_gradients_are_finite_and_stay_out_of_the_padding(name: str) -> None:
    audio, lengths = padded([speechlike(1_600, 1), torch.zeros(900)], extra=100, fill=float("nan"))
    audio.requires_grad_()
    TRANSFORMS[name](audio, lengths)[0].sum().backward()
    assert audio.grad is not None
    assert torch.isfinite(audio.grad).all()
    assert audio.grad[0, :1_600].any()
    assert not audio.grad[0, 1_600:].any()


def test_a_chunked_batch_equals_a_small_one() -> None:
    long = speechlike(16_000 * 25, 1)
    both, lengths = Fbank()(*padded([long, speechlike(30_000, 2)]))
    torch.testing.assert_close(both[0, : lengths[0]], kaldi.fbank(long[None], num_mel_bins=80), atol=1e-4, rtol=0)


def test_modules_hold_no_parameters_and_no_state() -> None:
    for transform in TRANSFORMS.values():
        assert not list(transform.parameters())
        assert not transform.state_dict()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Fbank(num_mel_bins=0), "num_mel_bins=0"),
        (lambda: Fbank(high_freq=9_000), "half of sample_rate"),
        (lambda: Fbank(frame_shift_ms=30), "at most a window"),
        (lambda: Fbank(window_type="kaiser"), "choose one of 'povey'"),
        (lambda: LogMel(win_length=600), "win_length=600"),
        (lambda: LogMel(n_fft=401), "n_fft=401"),
        (lambda: LogMel(norm="area"), "choose"),
        (lambda: Resample(16_000.0, 8_000), "sample_rate=16000.0"),
        (lambda: Fbank()(torch.zeros(2, 3, 800), torch.tensor([800, 800])), "channels=1"),
        (lambda: Fbank()(torch.zeros(2, 800), torch.tensor([800])), "expected int64 [2]"),
        (lambda: Fbank()(torch.zeros(2, 800), torch.tensor([1.0, 0.5])), "torch.float32, expected int64"),
        (lambda: Fbank()(torch.zeros(1, 800, dtype=torch.int16), torch.tensor([800])), "expected floats"),
    ],
)
def test_mistakes_are_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call()
    assert message in str(caught.value)
