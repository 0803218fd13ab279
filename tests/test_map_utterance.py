"""map_utterance: called where decoding runs, with randomness of (seed, epoch, id) alone."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from packed import Packed, seen
from torch.utils.data import DataLoader
from uttershard.pipeline import Utterance
from uttershard.pipeline.errors import ConfigError, DataError, UttershardError

PLACES: dict[str, dict[str, Any]] = {
    "one thread": {"threads": 1},
    "three threads": {"threads": 3},
    "one process": {"num_workers": 1},
    "two spawned processes": {"num_workers": 2, "multiprocessing_context": "spawn"},
}


def add_noise(utterance: Utterance) -> Utterance:
    """Change samples, text and metadata by what the utterance's random numbers say."""
    utterance.samples += 0.01 * utterance.rng.standard_normal(utterance.samples.shape, dtype=np.float32)
    utterance.text = f"{utterance.text} / {utterance.epoch} / {utterance.rng.integers(1_000_000)}"
    utterance.meta["seconds"] = len(utterance.samples) / utterance.sample_rate
    return utterance


def cut_or_repeat(utterance: Utterance) -> Utterance:
    """Change how long an utterance is: half of it, or twice."""
    samples = utterance.samples
    utterance.samples = samples[: len(samples) // 2] if utterance.rng.random() < 0.5 else np.concatenate([samples] * 2)
    return utterance


def by_key(loader: Any) -> dict[str, tuple[Any, ...]]:
    return {
        key: (row[:length].tolist(), text, meta)
        for batch in loader
        for key, row, length, text, meta in zip(
            batch.keys, batch.audio, batch.audio_lengths.tolist(), batch.text, batch.meta, strict=True
        )
    }


@pytest.mark.parametrize("place", sorted(PLACES))
def test_batches_are_the_same_wherever_it_runs(flac: Packed, place: str) -> None:
    expected = [seen(batch) for batch in flac.loader(map_utterance=add_noise, threads=2, seed=4)]
    assert [seen(batch) for batch in flac.loader(map_utterance=add_noise, seed=4, **PLACES[place])] == expected


def test_random_numbers_do_not_depend_on_rank_batch_or_order(flac: Packed) -> None:
    alone = by_key(flac.loader(map_utterance=add_noise))
    assert set(alone) == set(flac.sources)
    shared: dict[str, tuple[Any, ...]] = {}
    for rank in range(2):
        shared |= by_key(flac.loader(map_utterance=add_noise, rank=rank, world_size=2, batch_bins=None, batch_size=3))
    assert shared == alone


def test_epoch_and_seed_change_the_random_numbers(flac: Packed) -> None:
    loader = flac.loader(map_utterance=add_noise)
    first = by_key(loader)
    loader.set_epoch(1)
    second = by_key(loader)
    other_seed = by_key(flac.loader(map_utterance=add_noise, seed=1))
    for key, (_, text, _) in first.items():
        assert text.split(" / ")[:2] == [str(flac.sources[key].text), "0"]
        assert second[key][1].split(" / ")[1] == "1"
        assert len({second[key][1].split(" / ")[2], text.split(" / ")[2], other_seed[key][1].split(" / ")[2]}) == 3


def test_it_gets_what_was_packed(flac: Packed) -> None:
    lock, given = threading.Lock(), {}

    def keep(utterance: Utterance) -> Utterance:
        with lock:
            given[utterance.key] = utterance
        return utterance

    for _ in flac.loader(map_utterance=keep, threads=2):
        pass
    assert set(given) == set(flac.sources)
    for key, source in flac.sources.items():
        utterance = given[key]
        np.testing.assert_array_equal(utterance.samples, source.samples())
        assert utterance.samples.dtype == np.float32
        assert utterance.samples.flags.writeable
        assert (utterance.sample_rate, utterance.text, utterance.epoch) == (16_000, source.text, 0)
        assert utterance.meta["take"] == source.meta["take"]


@pytest.mark.parametrize("place", ["three threads", "one process"])
def test_a_batch_is_padded_to_its_new_longest(flac: Packed, place: str) -> None:
    plain = by_key(flac.loader())
    changed = 0
    for batch in flac.loader(map_utterance=cut_or_repeat, **PLACES[place]):
        assert batch.audio.shape == (len(batch), int(batch.audio_lengths.max()))
        for key, row, length in zip(batch.keys, batch.audio, batch.audio_lengths.tolist(), strict=True):
            before = plain[key][0]
            assert row[:length].tolist() in (before[: len(before) // 2], before * 2)
            assert not row[length:].any()
            changed += 1
    assert changed == len(flac.sources)


def test_stereo_and_int16(stereo: Packed, wav: Packed) -> None:
    def swap(utterance: Utterance) -> Utterance:
        assert utterance.samples.shape[1:] == (2,)
        utterance.samples = utterance.samples[:, ::-1]
        return utterance

    plain = {key: row for batch in stereo.loader() for key, row in zip(batch.keys, batch.audio, strict=True)}
    for batch in stereo.loader(map_utterance=swap):
        for key, row in zip(batch.keys, batch.audio, strict=True):
            assert torch.equal(row, plain[key].flip(0))

    def to_int16(utterance: Utterance) -> Utterance:
        utterance.samples = (utterance.samples * 32768).astype(np.int16)
        return utterance

    assert [seen(batch) for batch in wav.loader(map_utterance=to_int16)] == [seen(batch) for batch in wav.loader()]


def test_in_a_data_loader_of_ones_own(flac: Packed) -> None:
    expected = by_key(flac.loader(map_utterance=add_noise))
    ours = flac.loader(map_utterance=add_noise)
    assert by_key(DataLoader(ours.dataset, batch_size=None, num_workers=2)) == expected


def fail_on_third(utterance: Utterance) -> Utterance:
    """Fail as a user's function does."""
    if utterance.meta["take"] == 3:
        raise KeyError("phonemes")
    return utterance


@pytest.mark.parametrize("settings", [{"threads": 2}, {"num_workers": 2}])
def test_its_errors_name_shard_id_and_offset(flac: Packed, settings: dict[str, Any]) -> None:
    with pytest.raises(UttershardError) as caught:
        list(flac.loader(map_utterance=fail_on_third, on_error="skip", **settings))
    message = str(caught.value)
    assert "map_utterance raised KeyError: 'phonemes'" in message
    assert "shard-00000" in message
    assert "'語 3'" in message
    assert "at offset" in message
    if "num_workers" in settings:
        assert "fail_on_third" in "".join(caught.value.__notes__), "the traceback of the user's function travels"


def _returning(value: Callable[[Utterance], Any]) -> Callable[[Utterance], Any]:
    return value


def _setting(name: str, value: Any) -> Callable[[Utterance], Utterance]:
    def change(utterance: Utterance) -> Utterance:
        setattr(utterance, name, value)
        return utterance

    return change


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda utterance: None, "returned NoneType, not the Utterance"),
        (lambda utterance: utterance.samples, "returned ndarray"),
        (_setting("key", "another"), "changed key or sample_rate to 'another'"),
        (_setting("sample_rate", 8_000), "changed key or sample_rate"),
        (_setting("samples", np.zeros(0, np.float32)), "at least one"),
        (_setting("samples", np.zeros((5, 2), np.float32)), "shape (5, 2)"),
        (_setting("samples", np.zeros(5, np.int64)), "type int64"),
        (_setting("samples", "noise"), "type <U5"),
    ],
)
def test_what_it_may_not_return(flac: Packed, function: Callable[[Utterance], Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        list(flac.loader(map_utterance=function))
    assert message in str(caught.value)
    assert "at offset" in str(caught.value)


def test_a_function_that_can_not_travel_is_refused_at_once(flac: Packed) -> None:
    with pytest.raises(ConfigError, match=r"map_utterance=.*started by spawn.*no lambda"):
        flac.loader(map_utterance=lambda utterance: utterance, num_workers=1, multiprocessing_context="spawn")
    loader = flac.loader(map_utterance=lambda utterance: utterance, num_workers=1, multiprocessing_context="fork")
    assert sum(len(batch) for batch in loader) == len(flac.sources)


def test_no_function_at_all(flac: Packed) -> None:
    with pytest.raises(ConfigError, match="map_utterance='add_noise'"):
        flac.loader(map_utterance="add_noise")


def refuse_long(utterance: Utterance) -> Utterance:
    """Say that an utterance is bad."""
    if utterance.meta["take"] in (3, 7):
        raise DataError("clipped")
    return utterance


@pytest.fixture(params=[{"threads": 2}, {"num_workers": 1}], ids=["threads", "process"])
def place(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    yield request.param


def test_it_may_call_an_utterance_bad(flac: Packed, place: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="map_utterance: clipped"):
        list(flac.loader(map_utterance=refuse_long, **place))
    loader = flac.loader(map_utterance=refuse_long, on_error="skip", **place)
    keys = {key for batch in loader for key in batch.keys}
    assert {flac.sources[key].meta["take"] for key in set(flac.sources) - keys} == {3, 7}
    assert {one["reason"] for one in loader.metrics()["skipped_utterances"]} == {"map_utterance: clipped"}
