"""Validation: all data once in fixed slices, or another part each time with rotate=True (as ESPnet validates)."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from packed import Packed, Seen, run, seen
from uttershard.pipeline import Mix, Part, ShardLoader, ShardSet
from uttershard.pipeline.errors import ConfigError, ShardingError

WORLD = 3


def ranks_of(packed: Packed, world_size: int = WORLD, **settings: Any) -> list[ShardLoader]:
    """Return the loaders of all ranks."""
    settings = {"shuffle": False, **settings}
    return [packed.loader(rank=rank, world_size=world_size, **settings) for rank in range(world_size)]


def ids(batches: list[Seen]) -> list[tuple[str, ...]]:
    """Return the ids of each batch, without fillers."""
    return [batch.keys for batch in batches if not batch.filler]


def test_every_utterance_comes_once_and_ranks_have_equal_steps(flac: Packed) -> None:
    seen_by_rank = [list(run(loader, 0)) for loader in ranks_of(flac)]
    assert len({len(batches) for batches in seen_by_rank}) == 1
    delivered = [key for batches in seen_by_rank for batch in batches for key in batch.keys]
    assert sorted(delivered) == sorted(flac.sources), "each once, none twice, no filler"


def test_epochs_are_the_same_bit_for_bit(flac: Packed) -> None:
    for loader in ranks_of(flac):
        first, second, later = (list(run(loader, epoch)) for epoch in (0, 1, 17))
        for other in (second, later):
            assert [(one.keys, one.audio) for one in first] == [(one.keys, one.audio) for one in other]


def test_batches_come_from_long_to_short(flac: Packed) -> None:
    for loader in ranks_of(flac):
        longest = [max(batch.lengths) for batch in run(loader, 0)]
        # Inside a bucket of 1.5 % there is no order.
        assert all(later <= earlier * 1.016 + 160 for earlier, later in pairwise(longest))


def test_an_order_of_espnets_is_kept(flac: Packed) -> None:
    (loader,) = ranks_of(flac, 1, batch_type="sorted", batch_size=5, sort_batch="descending", sort_in_batch="ascending")
    batches = list(run(loader, 3))
    longest = [max(batch.lengths) for batch in batches]
    assert longest == sorted(longest, reverse=True)
    assert all(list(batch.lengths) == sorted(batch.lengths) for batch in batches)
    (unsorted,) = ranks_of(flac, 1, batch_type="unsorted", batch_size=5)
    assert [key for batch in run(unsorted, 0) for key in batch.keys] == [
        key for batch in run(unsorted, 1) for key in batch.keys
    ]


def test_fewer_utterances_than_ranks_have_steps_are_padded_and_marked(flac: Packed) -> None:
    loaders = ranks_of(flac, 4, max_seconds=0.35, equal_steps="pad", batch_bins=70)
    steps = [list(run(loader, 0)) for loader in loaders]
    assert len({len(batches) for batches in steps}) == 1
    assert any(batch.filler for batches in steps for batch in batches)
    delivered = [key for batches in steps for keys in ids(batches) for key in keys]
    assert sorted(delivered) == sorted(
        key for key, source in flac.sources.items() if source.samples().size <= 0.35 * 16_000
    )
    again = [list(run(loader, 1)) for loader in loaders]
    assert [[batch.keys for batch in batches] for batches in again] == [
        [batch.keys for batch in batches] for batches in steps
    ], "the same batches are repeated in every epoch"


def test_rotating_validation_reads_another_part_each_time(flac: Packed) -> None:
    loaders = ranks_of(flac, 2, total_shards=4, rotate=True)
    epochs = []
    for epoch in range(4):
        for loader in loaders:
            loader.set_epoch(epoch)
        assert [part.logical_shard for part in loaders[0].plan.ranks] == [(2 * epoch + rank) % 4 for rank in (0, 1)]
        parts = [list(run(loader, epoch)) for loader in loaders]
        assert len({len(batches) for batches in parts}) == 1
        epochs.append([key for batches in parts for batch in batches for key in batch.keys])
    assert sorted(epochs[0] + epochs[1]) == sorted(flac.sources)
    assert not set(epochs[0]) & set(epochs[1])
    assert epochs[0] == epochs[2], "a cycle later the very same"
    assert epochs[1] == epochs[3]


def test_it_resumes_in_the_middle(flac: Packed) -> None:
    for settings in ({}, {"batch_type": "numel", "batch_bins": 1500}):
        whole = list(run(ranks_of(flac, 1, **settings)[0], 0))
        (loader,) = ranks_of(flac, 1, **settings)
        for taken, batch in enumerate(loader, start=1):
            assert seen(batch) == whole[taken - 1]
            state = json.loads(json.dumps(loader.state_dict()))
            (resumed,) = ranks_of(flac, 1, **settings)
            resumed.load_state_dict(state)
            if taken in (1, len(whole) // 2, len(whole) - 1):
                assert list(map(seen, resumed)) == whole[taken:]


def test_it_goes_beside_training_without_touching_it(flac: Packed) -> None:
    undisturbed = list(run(flac.loader(), 0))
    training, (validation,) = flac.loader(), ranks_of(flac, 1)
    mixed = []
    for batch in training:
        mixed.append(seen(batch))
        assert len(list(validation)) == len(validation)
    assert mixed == undisturbed


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"total_shards": 6}, ShardingError, "makes an epoch 1/2 of it: leave total_shards out, or say rotate=True"),
        ({"shuffle": True, "rotate": True}, ConfigError, "rotate=True is for validation"),
        ({"speed": (0.9, 1.1)}, ConfigError, "speed= draws other lengths in every epoch"),
        ({"equal_steps": "drop"}, ConfigError, "would leave out the same utterances in every epoch"),
        ({"longest_first": True}, ConfigError, "where the order is fixed already"),
        ({"shuffle": 0}, ConfigError, "shuffle=0 is no truth value"),
    ],
)
def test_what_does_not_go_with_fixed_slices_is_refused(
    flac: Packed, settings: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error) as refused:
        flac.loader(rank=0, world_size=3, **{"shuffle": False, **settings})
    assert says in str(refused.value)


def test_an_unknown_setting_is_an_error(flac: Packed) -> None:
    with pytest.raises(
        TypeError, match="ShardLoader got an unexpected keyword argument 'shufle': did you mean 'shuffle'"
    ):
        flac.loader(shufle=False)


def test_windows_of_fixed_slices_come_in_the_order_of_the_tars(flac: Packed) -> None:
    (loader,) = ranks_of(flac, 1, windows=2)
    epochs = [[batch.keys for batch in run(loader, epoch)] for epoch in (0, 1)]
    assert epochs[0] == epochs[1]
    assert sorted(key for keys in epochs[0] for key in keys) == sorted(flac.sources)


def test_a_mix_is_fixed_too(flac: Packed) -> None:
    mix = Mix([Part(ShardSet.open(flac.address), name="whole"), Part(str(flac.address), name="half", repeat=0.5)])
    loader = ShardLoader(mix, batch_bins=600, shuffle=False, rank=0, world_size=1)
    epochs = []
    for epoch in (0, 1, 2):
        loader.set_epoch(epoch)
        counted = {part.name: part.utterances for part in loader.parts}
        keys = [batch.keys for batch in run(loader, epoch)]
        assert sum(map(len, keys)) == sum(counted.values())
        epochs.append((counted, keys))
    assert epochs[0] == epochs[1] == epochs[2]
