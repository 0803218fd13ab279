"""Member names: any id gives a plain, short name; no two ids share one; bad ids are refused with a reason (G10)."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from uttershard.pipeline.dataset.members import MAX_MEMBER_BYTES, key_problem, member_name
from uttershard.pipeline.dataset.tar import split_name

# Text that is often the same for a while, so that cut names have a chance to collide.
IDS = st.one_of(
    st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=120),
    st.text("ab./%_-é語", min_size=60, max_size=300),
)


@given(key=IDS)
def test_a_name_is_short_plain_and_has_no_dot(key: str) -> None:
    name = member_name(key)
    assert re.fullmatch(r"[A-Za-z0-9_%-]+", name)
    assert len(name) <= MAX_MEMBER_BYTES
    # WebDataset takes the id up to the first dot.
    assert split_name(f"{name}.flac") == (name, "flac")


@given(key=IDS)
def test_an_id_that_is_not_cut_can_be_read_off_its_name(key: str) -> None:
    name = member_name(key)
    if "%h" not in name:
        assert unquote(name) == key
    else:
        assert len("".join(f"%{byte:02X}" for byte in key.encode())) > MAX_MEMBER_BYTES


@given(keys=st.lists(IDS, min_size=2, max_size=20, unique=True))
def test_no_two_ids_share_a_name(keys: list[str]) -> None:
    assert len({member_name(key) for key in keys}) == len(keys)


def test_ids_that_look_like_names_of_other_ids_stay_apart() -> None:
    long = "x" * 200
    ids = ["a/b", "a%2Fb", "a%252Fb", long, member_name(long), member_name(member_name(long))]
    assert len({member_name(key) for key in ids}) == len(ids)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("84-121123-0000", "84-121123-0000"),
        ("a" * 80, "a" * 80),
        ("a" * 81, "a" * 62 + "%h" + "530aa99fd7a36129"),
        ("tom/chapter.1", "tom%2Fchapter%2E1"),
        ("é" * 20, "%C3%A9" * 10 + "%h" + "471a52ada69eed01"),
        ("語" * 20, "%E8%AA%9E" * 6 + "%h" + "92257cef3ce8a0b1"),
        (" ", "%20"),
    ],
)
def test_golden_names(key: str, name: str) -> None:
    assert member_name(key) == name


@given(key=IDS)
def test_ordinary_text_is_a_good_id(key: str) -> None:
    assert key_problem(key) is None


@given(key=IDS, bad=st.sampled_from("\0\n\t\x1f\x7f\x85\ud800\udfff"), data=st.data())
def test_control_characters_and_lone_surrogates_are_refused_with_their_place(
    key: str, bad: str, data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, len(key)))
    problem = key_problem(key[:position] + bad + key[position:])
    assert problem is not None
    assert f"position {position}" in problem


def test_an_empty_id_is_refused() -> None:
    assert key_problem("") == "the id is empty"
