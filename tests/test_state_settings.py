"""G8: a state belongs to one dataset and one set of settings, whichever of them is set, left out or changed."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packed import BINS, Packed
from uttershard.pipeline import Mix, Part, ShardLoader
from uttershard.pipeline.errors import ConfigError, ShardingError
from uttershard.pipeline.loader.settings import Workers

CHANGES: dict[str, tuple[str, Any]] = {
    "batch_bins": ("batch_bins", BINS + 1),
    "max_batch_size": ("max_batch_size", 7),
    "quadratic": ("quadratic", 900),
    "longest_first": ("longest_first", True),
    "oversize": ("oversize", "alone"),
    "equal_steps": ("equal_steps", "pad"),
    "windows": ("windows", 2),
    "min_seconds": ("filters", 0.25),
    "max_seconds": ("filters", 1.1),
    "where": ("filters", 'speaker != "s1"'),
    "seed": ("seed", 1),
    "frame_shift": ("frame_shift", 0.005),
    "speed": ("speed", (0.9, 1.0, 1.1)),
}
"""Of each setting that a plan depends on: the field that names it in a state, and another value than the default."""

OTHERS = {
    "batch_size": "instead of batch_bins",
    "batch_type": "below",
    "shuffle": "below",
    "stats": "below",
    "rotate": "shows in total_shards",
    "rank": "a state is that of all ranks",
    **dict.fromkeys(("total_shards", "world_size"), "elastic: test_g09_elastic.py"),
}
"""Settings that are compared elsewhere, or in another way."""

NO_MATTER = {
    *("dataset", "sample_rate", "channels", "map_utterance", "tokenizer", "token_pad", "on_error", "max_skipped"),
    *("on_epoch_end", "device", "storage_options", "cache", "cache_bytes", "prefetch_bytes"),
    *("read_timeout", "read_deadline", *Workers.__dataclass_fields__),
}
"""What a plan does not depend on: a run may go on with other workers, or on another device."""


def _state(loader: ShardLoader) -> Any:
    text = json.dumps(loader.state_dict())
    assert len(text) < 1024
    return json.loads(text)


def _named(message: str) -> set[str]:
    return set(re.findall(r"(\w+) was .*?, is ", message.partition("nothing here: ")[2]))


def test_every_setting_of_the_loader_is_compared_or_known_not_to_matter() -> None:
    names = set(inspect.signature(ShardLoader).parameters) - {"rules"}
    assert names == {*CHANGES, *OTHERS, *NO_MATTER}


@given(before=st.sets(st.sampled_from(sorted(CHANGES))), now=st.sets(st.sampled_from(sorted(CHANGES))))
def test_what_differs_is_named_and_nothing_else(flac: Packed, before: set[str], now: set[str]) -> None:
    old, new = (flac.loader(**{name: CHANGES[name][1] for name in chosen}) for chosen in (before, now))
    differing = {CHANGES[name][0] for name in before ^ now}
    if not differing:
        new.load_state_dict(_state(old))
        return
    with pytest.raises(ConfigError, match="other data or settings") as refused:
        new.load_state_dict(_state(old))
    assert _named(str(refused.value)) == differing
    new.load_state_dict(_state(old), force=True)
    assert new.epoch == 1


@pytest.mark.parametrize(
    ("before", "now", "named"),
    [
        ({"max_batch_size": 7}, {}, "max_batch_size was 7, is None"),
        ({"batch_size": 4}, {}, f"batch_bins was None, is {BINS}.*batch_size was 4, is None"),
        ({"speed": (0.9, 1.1)}, {}, "speed was .*, is None"),
        ({"where": 'speaker == "s1"'}, {}, r"filters was \{'where': .*, is \{\}"),
        ({"shuffle": False}, {}, "shuffle was False, is True"),
        ({"batch_type": "length"}, {"equal_steps": "pad"}, "rules was .*'length'.*, is None"),
        ({"batch_type": "length", "min_batch_size": 2}, {"batch_type": "length"}, "rules was"),
        ({"batch_type": "length", "drop_last": True}, {"batch_type": "length"}, "rules was"),
    ],
    ids=str,
)
def test_both_ways(flac: Packed, before: dict[str, Any], now: dict[str, Any], named: str) -> None:
    loaders = [flac.loader(**settings) for settings in (before, now)]
    with pytest.raises(ConfigError, match=named):
        loaders[1].load_state_dict(_state(loaders[0]))
    with pytest.raises(ConfigError, match="other data or settings"):
        loaders[0].load_state_dict(_state(loaders[1]))


def test_the_state_stays_small_with_everything_set_at_once(flac: Packed) -> None:
    parts = [Part(flac.address, f"number {n}", repeat=0.3 + n / 7, where=f"seconds < {9 + n}") for n in range(40)]
    many: dict[str, Any] = {name: value for name, (_, value) in CHANGES.items() if name != "windows"}
    many |= {"where": [f'speaker != "{"x" * 50}{n}"' for n in range(30)], "seed": 2**64 - 1, "batch_bins": 10**9}

    def loader(count: int, **changed: Any) -> ShardLoader:
        return ShardLoader(Mix(parts[:count]), **{**many, "rank": 0, "world_size": 2, "total_shards": 4, **changed})

    for count in (1, 12, 13, 40):
        state = _state(loader(count))
        loader(count).load_state_dict(state)
        for name in ("where", "speed", "max_batch_size", "quadratic"):
            with pytest.raises(ConfigError, match=f"{CHANGES[name][0]} was"):
                loader(count, **{name: None}).load_state_dict(state)


def test_datasets_are_added_to_a_mix_of_many(flac: Packed) -> None:
    parts = [Part(flac.address, f"part{number}", where=f"seconds < {30 + number}") for number in range(16)]

    def loader(chosen: list[Part]) -> ShardLoader:
        return ShardLoader(Mix(chosen), batch_bins=BINS, rank=0, world_size=1)

    state = _state(loader(parts[:14]))
    loader(parts).load_state_dict(state)
    other = Part(flac.address, "part3", where="seconds < 5")
    for chosen in (parts[:13], parts[1:], [*parts[:3], other, *parts[4:]], [parts[15], *parts[:14]]):
        with pytest.raises(ConfigError, match="parts was"):
            loader(chosen).load_state_dict(state)


def test_another_world_with_other_settings_is_refused_too(flac: Packed) -> None:
    state = _state(flac.loader(world_size=2, max_batch_size=5))
    with pytest.raises(ConfigError, match="max_batch_size was 5, is None"):
        flac.loader(world_size=3).load_state_dict(state)
    with pytest.raises(ShardingError, match="total_shards"):
        flac.loader(world_size=3).load_state_dict(_state(flac.loader(world_size=2, total_shards=4)))
