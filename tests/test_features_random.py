"""SpecAugment, SpeedPerturb and MixNoise: a hash of (seed, epoch, id) decides, lengths are respected."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torchaudio
from features_cases import padded, speechlike
from torch import Tensor, nn
from uttershard.pipeline import SpecAugment
from uttershard.pipeline.errors import ConfigError
from uttershard.pipeline.features import AudioBank, MixNoise, Reverberate, SpeedPerturb

KEYS = [f"speaker-{number}/utterance.{number}" for number in range(8)]


@dataclass
class Recordings:
    """What a AudioBank reads."""

    keys: list[str]
    audio: Tensor
    audio_lengths: Tensor


def noise_bank() -> AudioBank:
    sounds = [torch.randn(length, generator=torch.Generator().manual_seed(length)) for length in (700, 5_000, 90)]
    return AudioBank([Recordings(["a", "b", "c"], *padded(sounds, extra=40, fill=3.0))])


def features_batch(*frames: int) -> tuple[Tensor, Tensor]:
    return padded([torch.ones(count, 80) + torch.arange(80) for count in frames])


def _response(seed: int, delay: int, length: int) -> Tensor:
    """Return silence, a direct sound, and a noisy decay."""
    noise = torch.randn(length, generator=torch.Generator().manual_seed(seed))
    decay = 0.2 * noise * torch.exp(-torch.arange(length) / 60)
    return torch.cat((torch.zeros(delay), torch.ones(1), decay))


RESPONSES = Recordings(["r1", "r2", "r3"], *padded([_response(1, 40, 300), _response(2, 0, 500), _response(3, 7, 90)]))


RANDOM: dict[str, tuple[nn.Module, tuple[Tensor, Tensor]]] = {
    "spec augment": (SpecAugment(seed=3), features_batch(200, 150, 90, 20, 10, 300, 41, 7)),
    "spec augment with means": (SpecAugment(fill="mean", seed=3), features_batch(200, 150, 90, 20, 10, 300, 41, 7)),
    "speed": (SpeedPerturb(seed=3), padded([speechlike(500 + 100 * number, number) for number in range(8)])),
    "rooms": (
        Reverberate(AudioBank([RESPONSES]), seed=3),
        padded([speechlike(500 + 300 * number, number) for number in range(8)]),
    ),
    "noise": (MixNoise(noise_bank(), seed=3), padded([speechlike(500 + 300 * number, number) for number in range(8)])),
}


@pytest.mark.parametrize("name", sorted(RANDOM))
def test_batch_order_padding_and_device_state_do_not_matter(name: str) -> None:
    transform, (values, lengths) = RANDOM[name]
    together, new_lengths = transform(values, lengths, keys=KEYS, epoch=5)
    torch.manual_seed(1)
    for row in reversed(range(len(KEYS))):
        garbage = torch.full((1, 33, *values.shape[2:]), float("nan"))
        alone = torch.cat((values[row : row + 1, : lengths[row]], garbage), dim=1)
        result, length = transform(alone, lengths[row : row + 1], keys=[KEYS[row]], epoch=5)
        assert int(length) == int(new_lengths[row])
        torch.testing.assert_close(result[0, :length], together[row, :length], atol=1e-6, rtol=1e-5)
        assert not together[row, int(length) :].any()


@pytest.mark.parametrize("name", sorted(RANDOM))
def test_epoch_and_key_change_the_draw_and_evaluation_does_nothing(name: str) -> None:
    transform, (values, lengths) = RANDOM[name]
    first, first_lengths = transform(values, lengths, keys=KEYS, epoch=0)
    for keys, epoch in ((KEYS, 1), ([key + "x" for key in KEYS], 0)):
        other, other_lengths = transform(values, lengths, keys=keys, epoch=epoch)
        assert not torch.equal(first_lengths, other_lengths) or not torch.equal(first, other)
    transform.eval()
    try:
        same, same_lengths = transform(values, lengths, keys=KEYS, epoch=0)
        assert torch.equal(same, values)
        assert torch.equal(same_lengths, lengths)
    finally:
        transform.train()


@pytest.mark.parametrize("name", sorted(RANDOM))
def test_keys_of_another_batch_are_refused(name: str) -> None:
    transform, (values, lengths) = RANDOM[name]
    with pytest.raises(ConfigError, match="7 keys for 8 utterances"):
        transform(values, lengths, keys=KEYS[1:], epoch=0)


def test_time_masks_keep_to_their_share_of_each_utterance() -> None:
    frames = (1_000, 500, 100, 30, 10, 4)
    masking = SpecAugment(freq_masks=0, time_masks=1, time_width=80, time_share=0.2)
    widest = dict.fromkeys(frames, 0)
    for epoch in range(300):
        masked, lengths = masking(*features_batch(*frames), keys=KEYS[: len(frames)], epoch=epoch)
        for row, length in zip(masked, lengths.tolist(), strict=True):
            blank = torch.nonzero(row[:length, 0] == 0)[:, 0]
            if len(blank):
                assert len(blank) == int(blank[-1] - blank[0]) + 1, "one mask is one stretch"
            assert ((row == 0) == (row[:, :1] == 0)).all(), "a time mask covers every dimension"
            widest[length] = max(widest[length], len(blank))
    assert widest == {length: min(80, length // 5) for length in frames}


def test_frequency_masks_reach_every_bin_and_their_width() -> None:
    masking = SpecAugment(freq_masks=1, freq_width=10, time_masks=0)
    blank = []
    for epoch in range(400):
        masked, _ = masking(*features_batch(6, 6), keys=KEYS[:2], epoch=epoch)
        blank.append(masked[:, 0] == 0)
    masks = torch.cat(blank)
    assert masks.sum(1).unique().tolist() == list(range(11))
    assert masks.any(0).all()
    assert abs(float(masks.sum(1).float().mean()) - 5) < 0.4


def test_masks_hold_the_mean_where_asked_to() -> None:
    features, lengths = padded([torch.rand(60, 80) + 2, torch.rand(30, 80) + 5])
    masked, _ = SpecAugment(fill="mean", time_share=0.5)(features, lengths, keys=KEYS[:2], epoch=1)
    for row, (mine, length) in enumerate(zip(masked, lengths.tolist(), strict=True)):
        changed = mine[:length] != features[row, :length]
        assert changed.any()
        torch.testing.assert_close(
            mine[:length][changed], features[row, :length].mean().expand(int(changed.sum())), rtol=1e-4, atol=0
        )


def test_speeds_are_even_and_each_is_a_resampling() -> None:
    speeds = SpeedPerturb((0.9, 1.0, 1.1))
    count = 300
    audio, lengths = padded([speechlike(990, 1)] * count)
    played, new_lengths = speeds(audio, lengths, keys=[f"utterance {n}" for n in range(count)], epoch=0)
    expected = {1100: (9, 10), 990: (1, 1), 900: (11, 10)}
    seen = {length: int((new_lengths == length).sum()) for length in expected}
    assert sum(seen.values()) == count
    assert min(seen.values()) > count / 3 - 30
    for row in range(20):
        length = int(new_lengths[row])
        wanted = torchaudio.functional.resample(audio[row], *expected[length])
        torch.testing.assert_close(played[row, :length], wanted, atol=1e-5, rtol=0)


def test_noise_has_the_power_that_was_asked_for() -> None:
    bank = noise_bank()
    speech, lengths = padded([speechlike(2_000 + 500 * number, number) for number in range(8)], extra=3_000)
    for decibels in (-5.0, 0.0, 12.0):
        noisy, same = MixNoise(bank, snr_db=(decibels, decibels))(speech, lengths, keys=KEYS, epoch=2)
        assert torch.equal(same, lengths)
        noise = noisy - speech
        for row, length in enumerate(lengths.tolist()):
            ratio = speech[row, :length].square().mean() / noise[row, :length].square().mean()
            assert abs(10 * math.log10(ratio) - decibels) < 0.05
            assert not noisy[row, length:].any()


def test_ratios_spread_over_their_range_and_share_of_noisy_is_kept() -> None:
    count = 400
    speech, lengths = padded([speechlike(400, 1)] * count)
    mixing = MixNoise(noise_bank(), snr_db=(5, 20), probability=0.25)
    noisy, _ = mixing(speech, lengths, keys=[f"utterance {n}" for n in range(count)], epoch=0)
    noise_power = (noisy - speech).square().mean(1)
    touched = noise_power > 0
    assert 70 < int(touched.sum()) < 130
    ratios = 10 * torch.log10(speech[touched].square().mean(1) / noise_power[touched])
    assert 4.9 < float(ratios.min()) < 7 < 18 < float(ratios.max()) < 20.1


def test_rooms_are_convolutions_without_delay_at_the_same_power() -> None:
    speech, lengths = padded([speechlike(700 + 400 * number, number) for number in range(8)], extra=50)
    heard, same = Reverberate(AudioBank([RESPONSES]))(speech, lengths, keys=KEYS, epoch=1)
    assert torch.equal(same, lengths)
    recordings = zip(RESPONSES.audio, RESPONSES.audio_lengths.tolist(), strict=True)
    directs = [recording[int(recording.abs().argmax()) : length] for recording, length in recordings]
    seen: set[int] = set()
    for row, length in enumerate(lengths.tolist()):
        dry, wet = speech[row, :length], heard[row, :length]
        wanted = [torchaudio.functional.convolve(dry, direct)[:length] for direct in directs]
        wanted = [one * (dry.square().mean() / one.square().mean()).sqrt() for one in wanted]
        errors = [float((wet - one).abs().max()) for one in wanted]
        assert min(errors) < 1e-5
        seen.add(errors.index(min(errors)))
        assert not heard[row, length:].any()
    assert len(seen) > 1


def test_a_share_of_rooms_and_silence() -> None:
    count = 400
    speech, lengths = padded([speechlike(200, 1)] * count)
    names = [f"utterance {n}" for n in range(count)]
    heard, _ = Reverberate(AudioBank([RESPONSES]), probability=0.5)(speech, lengths, keys=names, epoch=0)
    assert 160 < int((heard != speech).any(1).sum()) < 240
    silent, _ = Reverberate(AudioBank([RESPONSES]))(torch.zeros(1, 50), torch.tensor([50]), keys=["a"], epoch=0)
    assert not silent.any()


def test_silence_stays_silent() -> None:
    quiet, _ = MixNoise(noise_bank())(*padded([torch.zeros(500), speechlike(500, 1)]), keys=KEYS[:2], epoch=0)
    assert not quiet[0].any()
    silent_noise = AudioBank([Recordings(["zero"], torch.zeros(1, 100), torch.tensor([100]))])
    speech, lengths = padded([speechlike(500, 1)])
    same, _ = MixNoise(silent_noise)(speech, lengths, keys=KEYS[:1], epoch=0)
    assert torch.equal(same, speech)


def test_a_bank_does_not_depend_on_how_its_loader_batches() -> None:
    sounds = {key: speechlike(length, length) for key, length in (("x", 300), ("b", 200), ("m", 450))}
    one = AudioBank([Recordings(list(sounds), *padded(list(sounds.values())))])
    three = AudioBank([Recordings([key], *padded([sounds[key]], extra=9)) for key in ("m", "x", "b", "m")])
    assert torch.equal(one.samples, three.samples)
    assert one.lengths.tolist() == three.lengths.tolist() == [200, 450, 300]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SpecAugment(freq_masks=0, time_masks=0), "would do nothing"),
        (lambda: SpecAugment(time_share=20), "time_share=20"),
        (lambda: SpecAugment(seed=-1), "seed=-1"),
        (lambda: SpecAugment(fill="median"), "fill='median'"),
        (lambda: SpeedPerturb(()), "factors is empty"),
        (lambda: SpeedPerturb((0.9, 0)), "speed factor 0"),
        (lambda: SpeedPerturb((1.0001,)), "small numbers"),
        (lambda: MixNoise(noise_bank(), snr_db=(20, 5)), "snr_db=(20, 5)"),
        (lambda: MixNoise(noise_bank(), probability=2), "probability=2"),
        (lambda: AudioBank([]), "empty"),
        (
            lambda: AudioBank([Recordings(["a"], torch.ones(1, 900), torch.tensor([900]))], max_seconds=0.05),
            "max_seconds",
        ),
    ],
)
def test_mistakes_are_named(call: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call()
    assert message in str(caught.value)
