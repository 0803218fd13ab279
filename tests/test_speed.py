"""speed=: each utterance is played at a speed drawn for it, and the plan knows how long it is then."""

from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st
from packed import Packed, keys_of, run, seen
from uttershard.pipeline import ShardLoader
from uttershard.pipeline.errors import ConfigError
from uttershard.pipeline.planning.speed import Speed

SPEEDS = (0.9, 1.0, 1.1)
PLACES: list[dict[str, Any]] = [{"threads": 1}, {"threads": 3}, {"num_workers": 2}]


def lengths_of(loader: ShardLoader) -> dict[str, int]:
    return {
        key: length for batch in loader for key, length in zip(batch.keys, batch.audio_lengths.tolist(), strict=True)
    }


def factor_of(packed: Packed, key: str, length: int) -> Fraction:
    """Find the speed that made an utterance so long."""
    samples = packed.sources[key].samples().shape[-1]
    fitting = [
        factor
        for factor in (Fraction(9, 10), Fraction(1), Fraction(11, 10))
        if abs(length - samples / factor) <= Fraction(1, 2)
    ]
    assert len(fitting) == 1, (key, samples, length)
    return fitting[0]


def test_lengths_are_rounded_quotients_and_every_speed_comes(flac: Packed) -> None:
    loader = flac.loader(speed=SPEEDS)
    found = lengths_of(loader)
    assert set(found) == set(flac.sources)
    counts = Counter(factor_of(flac, key, length) for key, length in found.items())
    assert len(counts) == 3
    assert min(counts.values()) >= 7


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_the_budget_holds_for_the_changed_lengths(flac: Packed, epoch: int) -> None:
    loader = flac.loader(speed=SPEEDS, batch_bins=400)
    loader.set_epoch(epoch)
    plan, count = loader.plan, 0
    for batch in loader:
        frames = [max(1, round(Fraction(length, 160))) for length in batch.audio_lengths.tolist()]
        assert len(batch) * max(frames) <= 400
        assert abs(max(frames) - int(plan.longest[batch.step])) <= 1
        count += len(batch)
    assert count == len(flac.sources)
    seconds = sum(lengths_of(flac.loader(speed=SPEEDS)).values()) / 16_000
    first = flac.loader(speed=SPEEDS)
    list(first)
    assert abs(first.metrics()["hours"] * 3600 - seconds) < 0.01 * count


def test_samples_are_those_of_soxr(flac: Packed) -> None:
    plain = {
        key: row[:length].numpy()
        for batch in flac.loader()
        for key, row, length in zip(batch.keys, batch.audio, batch.audio_lengths.tolist(), strict=True)
    }
    for batch in flac.loader(speed=SPEEDS):
        for key, row, length in zip(batch.keys, batch.audio, batch.audio_lengths.tolist(), strict=True):
            factor = factor_of(flac, key, length)
            expected = soxr.resample(plain[key], 16_000 * float(factor), 16_000, quality="HQ")
            compared = min(length, len(expected))
            np.testing.assert_allclose(row[:compared], expected[:compared], atol=1e-4)
            assert not row[length:].any()


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_same_batches_wherever_they_are_decoded(flac: Packed, place: dict[str, Any]) -> None:
    expected = list(run(flac.loader(speed=SPEEDS, threads=2), 3))
    assert list(run(flac.loader(speed=SPEEDS, **place), 3)) == expected


def test_the_draw_is_of_seed_epoch_and_utterance(flac: Packed) -> None:
    loader = flac.loader(speed=SPEEDS)
    first, second = lengths_of(loader), lengths_of(loader)
    assert first != second
    assert lengths_of(flac.loader(speed=SPEEDS, seed=1)) != first
    ranks = [flac.loader(speed=SPEEDS, rank=rank, world_size=2, batch_size=5) for rank in range(2)]
    assert lengths_of(ranks[0]) | lengths_of(ranks[1]) == first


def test_resume_and_its_refusal(flac: Packed) -> None:
    whole = list(run(flac.loader(speed=SPEEDS), 1))
    loader = flac.loader(speed=SPEEDS)
    loader.set_epoch(1)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    other = flac.loader(speed=SPEEDS)
    other.load_state_dict(state)
    assert [seen(batch) for batch in other] == whole[3:]
    for speed in (None, (0.9, 1.0), (0.9, 1.1, 1.0)):
        with pytest.raises(ConfigError, match="speed"):
            flac.loader(speed=speed).load_state_dict(state)
    with pytest.raises(ConfigError, match="speed"):
        other.load_state_dict(flac.loader().state_dict())


def test_after_a_change_of_world_size_each_utterance_comes_once_at_its_speed(flac: Packed) -> None:
    expected = lengths_of(flac.loader(speed=SPEEDS))
    loader = flac.loader(speed=SPEEDS)
    batches = iter(loader)
    found: dict[str, int] = {}
    for _ in range(4):
        batch = next(batches)
        found |= dict(zip(batch.keys, batch.audio_lengths.tolist(), strict=True))
    state = loader.state_dict()
    rest: list[str] = []
    for rank in range(2):
        other = flac.loader(speed=SPEEDS, rank=rank, world_size=2)
        other.load_state_dict(state)
        for batch in other:
            rest += batch.keys
            found |= dict(zip(batch.keys, batch.audio_lengths.tolist(), strict=True))
    assert found == expected
    assert len(set(rest)) == len(rest)


def test_with_other_rates_and_channels(mixed: Packed) -> None:
    loader = mixed.loader(speed=(1.1,), sample_rate=8_000, channels=1)
    seconds = {key: length / 8_000 for key, length in lengths_of(loader).items()}
    assert len(seconds) == len(mixed.sources)
    plain = lengths_of(mixed.loader(sample_rate=8_000, channels=1))
    for key, played in seconds.items():
        assert abs(played - plain[key] / 8_000 / 1.1) < 2 / 8_000
    with pytest.raises(ConfigError, match="sample_rate"):
        mixed.loader(speed=SPEEDS, channels=1)


def test_a_speed_of_one_changes_nothing(wav: Packed) -> None:
    assert list(run(wav.loader(speed=[1.0]), 0)) == list(run(wav.loader(), 0))


def test_filters_look_at_recorded_lengths(flac: Packed) -> None:
    keys = {key for keys in keys_of(flac.loader(max_seconds=0.7)) for key in keys}
    assert {key for keys in keys_of(flac.loader(max_seconds=0.7, speed=(0.5,))) for key in keys} == keys


def test_what_gets_too_long_is_found_at_the_start_and_not_in_some_epoch(flac: Packed) -> None:
    longest = max(source.samples().shape[-1] for source in flac.sources.values()) // 160 + 1
    flac.loader(batch_bins=longest)
    with pytest.raises(ConfigError, match=r"at the slowest of speed=9/10, 1, 11/10: .*longer than batch_bins"):
        flac.loader(batch_bins=longest, speed=SPEEDS)
    flac.loader(batch_bins=longest, speed=SPEEDS, oversize="drop")


@settings(max_examples=60, deadline=None)
@given(
    rate=st.sampled_from([8_000, 11_025, 16_000, 22_050, 44_100]),
    factors=st.lists(st.integers(10, 1000), min_size=1, max_size=5),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 1000),
)
def test_rates_as_played(rate: int, factors: list[int], seed: int, epoch: int) -> None:
    speed = Speed([factor / 100 for factor in factors])
    ordinals = np.arange(200)
    rates = np.full(200, rate, np.int32)
    played = speed.played_rates(rates, ordinals, seed=seed, epoch=epoch)
    allowed = {(2 * rate * factor + 100) // 200 for factor in factors}
    assert set(played.tolist()) <= allowed
    some = ordinals[::7]
    np.testing.assert_array_equal(speed.played_rates(rates[::7], some, seed=seed, epoch=epoch), played[::7])


def test_golden_draws() -> None:
    played = Speed(SPEEDS).played_rates(np.full(12, 16_000, np.int32), np.arange(12), seed=7, epoch=3)
    assert played.tolist() == [14400, 14400, 17600, 17600, 17600, 16000, 14400, 16000, 14400, 16000, 16000, 14400]


@pytest.mark.parametrize("speed", [(), "0.9", 0.9, (0.9, 0), (True,), ("0.9",), (20,), (float("nan"),)])
def test_speeds_that_can_not_be(flac: Packed, speed: Any) -> None:
    with pytest.raises(ConfigError, match="speed"):
        flac.loader(speed=speed)
