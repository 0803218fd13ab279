"""Filters and lengths: limits are inclusive and exact, rules say what they mean, mistakes are named."""

from __future__ import annotations

import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packed import Packed
from uttershard.pipeline.errors import ConfigError, DataError
from uttershard.pipeline.planning import filters as filters_module
from uttershard.pipeline.planning.filters import apply_filters
from uttershard.pipeline.planning.frames import count_frames
from uttershard.pipeline.planning.settings import Filters

COLUMNS = pa.table(
    {
        "key": [f"u{i}" for i in range(6)],
        "num_samples": pa.array([16_000, 32_000, 48_000, 8_000, 16_000, 24_000], pa.int64()),
        "sample_rate": pa.array([16_000, 16_000, 16_000, 8_000, 8_000, 8_000], pa.int32()),
        "codec": pa.array(["flac", "wav", "flac", "wav", "opus", "flac"]).dictionary_encode(),
        "speaker": ["a", "b", None, "c", "a", None],
        "text_chars": pa.array([0, 10, 20, 30, 40, 50], pa.int32()),
        "clean": [True, False, True, None, True, True],
    }
)


def _kept(filters: Filters, columns: pa.Table = COLUMNS) -> list[int]:
    frames = count_frames(columns["num_samples"].to_numpy(), columns["sample_rate"].to_numpy())
    kept, counts = apply_filters(columns, frames, filters)
    assert counts["kept"] == np.count_nonzero(kept)
    assert sum(counts.values()) == columns.num_rows
    return np.flatnonzero(kept).tolist()


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ("codec == 'flac'", [0, 2, 5]),
        ('codec != "flac"', [1, 3, 4]),
        ("codec in ['flac', 'opus']", [0, 2, 4, 5]),
        ("speaker == 'a'", [0, 4]),
        ("speaker != 'a'", [1, 3]),
        ("speaker not in ['a']", [1, 3]),
        ("not speaker in ('a', 'b')", [3]),
        ("speaker is None", [2, 5]),
        ("speaker is not None", [0, 1, 3, 4]),
        ("clean", [0, 2, 4, 5]),
        ("not clean", [1]),
        ("clean == True", [0, 2, 4, 5]),
        ("speaker == 'b' or speaker is None", [1, 2, 5]),
        ("1 < seconds <= 3", [1, 2, 4, 5]),
        ("1 < seconds <= 2.0", [1, 4]),
        ("frames >= 300", [2, 5]),
        ("text_chars / seconds > 10", [3, 4, 5]),
        ("seconds / text_chars < 0.1", [3, 4, 5]),
        ("text_chars + 10 * 2 - 5 == 35", [2]),
        ("-text_chars < -30", [4, 5]),
        ("text_chars in [-1, 10]", [1]),
        ("(codec == 'wav') and not (seconds < 2)", [1]),
        (pc.field("codec") == "wav", [1, 3]),
        (pc.field("seconds") > 2, [2, 5]),
        (["codec == 'flac'", pc.field("speaker").is_valid()], [0]),
        ([], [0, 1, 2, 3, 4, 5]),
    ],
)
def test_rules_keep_what_they_say(rule: Any, kept: list[int]) -> None:
    assert _kept(Filters(where=rule)) == kept


@pytest.mark.parametrize(
    ("rule", "parts"),
    [
        ("speker == 'a'", ["'speker'", "speaker", "seconds and frames"]),
        ("seconds <", ["'seconds <'", "does not parse"]),
        ("", ["does not parse"]),
        ("__import__('os').system('x')", ["not allowed"]),
        ("codec.x == 1", ["codec.x", "not allowed"]),
        ("clean & (seconds > 1)", ["`and` and `or`"]),
        ("speaker == None", ["is None"]),
        ("speaker is 'a'", ["use =="]),
        ("seconds in []", ["at least one"]),
        ("speaker in [None]", ["is None"]),
        ("speaker in codec", ["list of literals"]),
        ("num_samples < 99999999999999999999999", ["no usable rule"]),
        ("seconds", ["double", "not true or false"]),
        ("speaker > 3", ["does not fit", "speaker (string)"]),
        (pc.field("nope") == 1, ["nope", "does not fit"]),
        (3, ["where=3", "int"]),
    ],
)
def test_mistakes_in_rules_are_named(rule: Any, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        _kept(Filters(where=[rule]))
    for part in parts:
        assert part in str(caught.value)


def test_a_rule_that_is_none_is_named() -> None:
    with pytest.raises(ConfigError, match="where=3 is a int"):
        Filters(where=3)  # type: ignore[arg-type]


def test_limits_are_inclusive() -> None:
    assert _kept(Filters(min_seconds=2, max_seconds=2)) == [1, 4]
    assert _kept(Filters(min_seconds=2.0001)) == [2, 5]


@given(rate=st.sampled_from([8_000, 11_025, 16_000, 44_100, 48_000]), hundredths=st.integers(0, 5_000))
def test_limits_are_exact_at_every_rate(rate: int, hundredths: int) -> None:
    limit = hundredths / 100
    near = hundredths * rate // 100
    samples = np.arange(max(near - 2, 1), near + 3)
    columns = pa.table({"num_samples": samples, "sample_rate": np.full(samples.size, rate, np.int32)})
    exact = [Fraction(int(count), rate) for count in samples]
    below = [i for i, seconds in enumerate(exact) if seconds <= Fraction(hundredths, 100)]
    above = [i for i, seconds in enumerate(exact) if seconds >= Fraction(hundredths, 100)]
    assert _kept(Filters(max_seconds=limit), columns) == below
    assert _kept(Filters(min_seconds=limit), columns) == above


def test_result_does_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = pa.concat_tables([COLUMNS, COLUMNS.slice(2, 3), COLUMNS])
    filters = Filters(1.5, where=["codec in ['flac', 'wav']", "speaker is None or text_chars > 10"])
    whole = _kept(filters, columns)
    monkeypatch.setattr(filters_module, "_ROWS_AT_A_TIME", 2)
    assert _kept(filters, columns) == whole
    assert _kept(filters, columns.combine_chunks()) == whole


def test_rule_named_like_a_count_has_a_count_of_its_own() -> None:
    columns = COLUMNS.append_column("kept", COLUMNS["clean"])
    frames = count_frames(columns["num_samples"].to_numpy(), columns["sample_rate"].to_numpy())
    _, counts = apply_filters(columns, frames, Filters(where="kept"))
    assert counts == {"kept": 4, "too_short": 0, "too_long": 0, "where kept": 2}


def test_filters_compare_describe_and_travel_to_workers() -> None:
    filters = Filters(0.5, 30, ["seconds < 3", pc.field("codec") == "wav"])
    assert filters == pickle.loads(pickle.dumps(filters))  # noqa: S301
    assert filters != Filters(0.5, 30, ["seconds < 4", pc.field("codec") == "wav"])
    assert filters.describe() == {
        "min_seconds": "1/2",
        "max_seconds": "30",
        "where": ["seconds < 3", '(codec == "wav")'],
    }
    assert filters.columns is None
    assert Filters(where="seconds < 3 and speaker == 'a'").columns == frozenset(["seconds", "speaker"])


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({"min_seconds": -1}, "min_seconds=-1"),
        ({"max_seconds": "30"}, "max_seconds='30'"),
        ({"max_seconds": float("inf")}, "max_seconds=inf"),
        ({"max_seconds": float("nan")}, "max_seconds=nan"),
        ({"max_seconds": True}, "max_seconds=True"),
        ({"min_seconds": 3, "max_seconds": 2}, "min_seconds=3 is above max_seconds=2"),
    ],
)
def test_limits_that_are_no_durations_are_refused(limits: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Filters(**limits)


@given(
    samples=st.lists(st.integers(0, 10**9), min_size=1, max_size=20),
    rate=st.sampled_from([8_000, 11_025, 16_000, 22_050, 44_100, 48_000]),
    shift=st.sampled_from([0.01, 0.0125, 0.02, 0.04, 1, 256 / 22_050]),
)
def test_frames_are_rounded_exactly_halves_to_even(samples: list[int], rate: int, shift: float) -> None:
    exact_shift = {256 / 22_050: Fraction(256, 22_050)}.get(shift, Fraction(str(shift)))
    expected = [max(1, round(Fraction(count, rate) / exact_shift)) for count in samples]
    assert count_frames(samples, rate, shift).tolist() == expected


def test_frames_that_make_no_sense_are_refused() -> None:
    with pytest.raises(DataError, match=r"utterance 1 has num_samples=-5"):
        count_frames([3, -5], 16_000)
    with pytest.raises(DataError, match=r"utterance 0 has sample_rate=0"):
        count_frames([3, 5], [0, 16_000])
    with pytest.raises(DataError, match="more than 2147483647 frames"):
        count_frames([2**40], 8_000, 0.0001)
    for shift in (0, -1, float("nan"), True, 11, "x"):
        with pytest.raises(ConfigError, match="frame_shift"):
            count_frames([3], 16_000, shift)  # type: ignore[arg-type]


def test_an_unknown_column_is_named_with_all_that_there_are(flac: Packed) -> None:
    with pytest.raises(ConfigError, match=r"no column 'speeker'; there are key, .*text_chars, xxh3, speaker.*seconds"):
        flac.loader(where="speeker == 's1'")
