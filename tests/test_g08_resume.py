"""G8 resume: a small state of what was consumed; what follows is what would have followed, bit for bit, at once."""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
import pytest
from packed import BINS, Packed, Seen, run, seen
from uttershard.pipeline import ShardLoader
from uttershard.pipeline.errors import ConfigError, ShardingError
from uttershard.pipeline.storage.base import Spans
from uttershard.pipeline.storage.local import LocalTars

EPOCHS = (0, 1)
HANDS: tuple[dict[str, Any], ...] = (
    {"threads": 1, "prefetch_factor": 1},
    {"threads": 3, "prefetch_factor": 4},
    {"num_workers": 2, "multiprocessing_context": "fork"},
    {"num_workers": 1, "multiprocessing_context": "fork", "persistent_workers": True},
)


def saved(loader: ShardLoader) -> Any:
    """Take the state through JSON."""
    text = json.dumps(loader.state_dict())
    assert len(text.encode()) < 1024
    return json.loads(text)


@pytest.fixture(scope="module")
def uninterrupted(flac: Packed) -> list[Seen]:
    return list(run(flac.loader(), *EPOCHS))


def resumed(flac: Packed, state: Any, **settings: Any) -> list[Seen]:
    """Go on as a trainer does: from the state's epoch to the last."""
    loader = flac.loader(**settings)
    loader.load_state_dict(state)
    return list(run(loader, *range(state["epoch"], EPOCHS[-1] + 1)))


def test_every_step_can_be_resumed_with_any_hands(flac: Packed, uninterrupted: list[Seen]) -> None:
    loader = flac.loader(threads=2)
    taken = 0
    for epoch in EPOCHS:
        loader.set_epoch(epoch)
        for batch in loader:
            assert seen(batch) == uninterrupted[taken]
            taken += 1
            assert resumed(flac, saved(loader), **HANDS[taken % len(HANDS)]) == uninterrupted[taken:]
    assert taken == len(uninterrupted)


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_other_start_methods(flac: Packed, uninterrupted: list[Seen], context: str) -> None:
    loader = flac.loader()
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    settings = {"num_workers": 1, "multiprocessing_context": context, "persistent_workers": True}
    assert resumed(flac, saved(loader), **settings) == uninterrupted[3:]


@pytest.mark.parametrize("hands", HANDS, ids=str)
def test_what_was_only_prefetched_does_not_count(flac: Packed, hands: dict[str, Any]) -> None:
    loader = flac.loader(**hands)
    assert (saved(loader)["epoch"], saved(loader)["step"]) == (0, 0)
    batches = iter(loader)
    assert saved(loader)["step"] == 0
    for step in range(len(loader)):
        assert next(batches).step == step
        assert (saved(loader)["epoch"], saved(loader)["step"]) == (0, step + 1)
    assert next(batches, None) is None
    assert (saved(loader)["epoch"], saved(loader)["step"]) == (1, 0)


def test_the_state_is_the_same_on_all_ranks(flac: Packed) -> None:
    states = []
    for rank in range(4):
        loader = flac.loader(rank=rank, world_size=4, where='speaker != "s1"')
        batches = iter(loader)
        next(batches)
        states.append(saved(loader))
    assert states[1:] == states[:-1]


def test_a_state_with_long_filters_is_still_small(flac: Packed) -> None:
    rules = [f'speaker != "{"x" * 300}{number}"' for number in range(20)]
    loader = flac.loader(where=rules, max_batch_size=10**9, quadratic=10**9, min_seconds=0.000001, max_seconds=99999)
    state = saved(loader)
    flac.loader(
        where=rules, max_batch_size=10**9, quadratic=10**9, min_seconds=0.000001, max_seconds=99999
    ).load_state_dict(state)
    with pytest.raises(ConfigError, match="filters was 'digest "):
        flac.loader(
            where=rules[1:], max_batch_size=10**9, quadratic=10**9, min_seconds=0.000001, max_seconds=99999
        ).load_state_dict(state)


# Ends of epochs, set_epoch


def test_a_state_of_the_last_step_leaves_nothing_of_its_epoch(flac: Packed, uninterrupted: list[Seen]) -> None:
    loader = flac.loader()
    for _ in loader:
        state = saved(loader)
    assert (state["epoch"], state["step"]) == (0, len(loader))
    again = flac.loader()
    again.load_state_dict(state)
    assert list(run(again, 0)) == []
    assert list(run(again, 1)) == [batch for batch in uninterrupted if batch.epoch == 1]


@pytest.mark.parametrize("hands", [HANDS[0], HANDS[3]], ids=str)
def test_set_epoch_before_and_after_loading(flac: Packed, uninterrupted: list[Seen], hands: dict[str, Any]) -> None:
    loader = flac.loader()
    loader.set_epoch(1)
    batches = iter(loader)
    next(batches), next(batches)
    state = saved(loader)
    second = [batch for batch in uninterrupted if batch.epoch == 1]
    other = flac.loader(**hands)
    other.set_epoch(7)
    other.load_state_dict(state)
    other.set_epoch(1)  # the epoch of the state: its position is kept
    assert [seen(batch) for batch in other] == second[2:]
    other.load_state_dict(state)
    assert [seen(batch) for batch in other] == second[2:]  # without set_epoch
    other.load_state_dict(state)
    other.set_epoch(0)  # another: from its start
    assert [seen(batch) for batch in other] == [batch for batch in uninterrupted if batch.epoch == 0]
    other.load_state_dict(state)
    other.set_epoch(1)
    next(iter(other))
    other.set_epoch(1)  # begun already: from its start again
    assert [seen(batch) for batch in other] == second


def test_epochs_advance_by_themselves_and_that_is_said_once(flac: Packed, caplog: pytest.LogCaptureFixture) -> None:
    loader = flac.loader()
    with caplog.at_level(logging.WARNING, "uttershard"):
        assert {batch.epoch for batch in loader} == {0}
        assert not caplog.records
        assert {batch.epoch for batch in loader} == {1}
        next(iter(loader))  # epoch 2, left early
        assert {batch.epoch for batch in loader} == {3}
    assert [record.getMessage() for record in caplog.records] == [
        "set_epoch was not called: going on with epoch 1 by itself (said once)"
    ]


def test_nothing_is_said_where_set_epoch_is_called(flac: Packed, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "uttershard"):
        list(run(flac.loader(), 0, 1, 5))
    assert not caplog.records


@pytest.mark.parametrize("epoch", [-1, 1.0, True, "1"])
def test_an_epoch_is_a_whole_number(flac: Packed, epoch: Any) -> None:
    with pytest.raises(ConfigError, match="epoch"):
        flac.loader().set_epoch(epoch)


# Only one iteration at a time


@pytest.mark.parametrize("hands", HANDS, ids=str)
def test_an_older_iterator_takes_nothing_from_a_newer_one(
    flac: Packed, uninterrupted: list[Seen], hands: dict[str, Any]
) -> None:
    loader = flac.loader(**hands)
    old = iter(loader)
    next(old)
    loader.set_epoch(1)
    new = iter(loader)
    first = seen(next(new))
    with pytest.raises(ConfigError, match="this iteration of the loader is over"):
        next(old)
    assert [first, *map(seen, new)] == [batch for batch in uninterrupted if batch.epoch == 1]


def test_an_older_iterator_that_gave_nothing_yet_is_over_too(flac: Packed, uninterrupted: list[Seen]) -> None:
    loader = flac.loader()
    old, new = iter(loader), iter(loader)
    with pytest.raises(ConfigError, match="this iteration of the loader is over"):
        next(old)
    assert [seen(batch) for batch in new] == [batch for batch in uninterrupted if batch.epoch == 0]


@pytest.mark.parametrize("hands", HANDS, ids=str)
def test_loading_ends_the_running_iteration(flac: Packed, uninterrupted: list[Seen], hands: dict[str, Any]) -> None:
    loader = flac.loader(**hands)
    batches = iter(loader)
    next(batches)
    state = saved(loader)
    next(batches)
    loader.load_state_dict(state)
    with pytest.raises(ConfigError, match="a state was loaded"):
        next(batches)
    assert saved(loader) == state
    loader.set_epoch(0)
    assert [seen(batch) for batch in loader] == [batch for batch in uninterrupted if batch.epoch == 0][1:]


# What does not fit is refused


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 1}, "seed was 0, is 1"),
        ({"batch_bins": BINS + 1}, f"batch_bins was {BINS}, is {BINS + 1}"),
        ({"batch_bins": None, "batch_size": 4}, "batch_size was None, is 4"),
        ({"max_batch_size": 7}, "max_batch_size was None, is 7"),
        ({"longest_first": True}, "longest_first was False, is True"),
        ({"equal_steps": "drop"}, "equal_steps was 'split', is 'drop'"),
        ({"frame_shift": 0.02}, "frame_shift was 0.01, is 0.02"),
        ({"min_seconds": 0.25}, r"filters was {}, is {'min_seconds': '1/4'}"),
        ({"where": 'speaker == "s1"'}, r"filters was {}, is {'where': "),
        ({"seed": 3, "longest_first": True}, "seed was 0, is 3; .*longest_first was False, is True"),
    ],
    ids=str,
)
def test_other_settings_are_refused_by_name(flac: Packed, changed: dict[str, Any], message: str) -> None:
    state = saved(flac.loader())
    with pytest.raises(ConfigError, match=message):
        flac.loader(**changed).load_state_dict(state)


def test_another_dataset_is_refused(flac: Packed, wav: Packed) -> None:
    digests = flac.loader().state_dict()["dataset"], wav.loader().state_dict()["dataset"]
    with pytest.raises(ConfigError, match="dataset was '{}', is '{}'".format(*digests)):
        wav.loader().load_state_dict(saved(flac.loader()))


def test_other_shards_of_the_same_world_are_refused(flac: Packed) -> None:
    with pytest.raises(ShardingError, match="total_shards"):
        flac.loader(total_shards=2).load_state_dict(saved(flac.loader(total_shards=4)))


@pytest.mark.parametrize(
    "damage",
    [
        {"format": "torchdata"},
        {"version": 99},
        {"step": -1},
        {"step": 1.5},
        {"step": True},
        {"epoch": "0"},
        {"step": 10_000},
        {"world_size": None},
        {"world_size": 3, "total_shards": 4},
        {"rotation": 3},
        {"stages": [[1]]},
        {"stages": 5},
    ],
    ids=str,
)
def test_a_damaged_state_is_refused(flac: Packed, damage: dict[str, Any]) -> None:
    loader = flac.loader()
    with pytest.raises(ConfigError, match="state"):
        loader.load_state_dict({**saved(loader), **damage})
    assert len(list(loader)) == len(loader)


@pytest.mark.parametrize("state", [None, [], "state", {}], ids=str)
def test_what_is_no_state_is_refused(flac: Packed, state: Any) -> None:
    with pytest.raises(ConfigError, match="not a loader state"):
        flac.loader().load_state_dict(state)


# Cost


def test_a_resume_reads_only_what_comes_next(flac: Packed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in utterances: to the first batch after a resume it reads the batches that it would have ahead anyway."""
    read: list[int] = []
    original = LocalTars.read

    def counted(storage: LocalTars, spans: Spans) -> Any:
        read.extend(spans.offset.tolist())
        return original(storage, spans)

    monkeypatch.setattr(LocalTars, "read", counted)
    loader = flac.loader()
    sizes = np.diff(loader.plan.splits)
    for step in range(len(loader)):
        again = flac.loader(threads=1, prefetch_factor=1)
        again.load_state_dict({**saved(loader), "step": step})
        read.clear()
        batches = iter(again)
        assert next(batches).step == step
        del batches
        again.state_dict()
        assert len(read) <= sizes[step : step + 2].sum()
