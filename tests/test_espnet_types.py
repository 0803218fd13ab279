"""ESPnet's batch types give ESPnet2's batches: compared with what its own samplers gave (tests/espnet_record.py)."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from packed import Packed, run, seen
from planning_cases import Case, cases, columns_of
from torch.utils.data import DataLoader
from uttershard.pipeline.errors import ConfigError, ShardingError
from uttershard.pipeline.planning.batch_types import EspnetRules
from uttershard.pipeline.planning.categories import category_probabilities, take_balanced, take_in_turn
from uttershard.pipeline.planning.corpus import Corpus, build_corpus
from uttershard.pipeline.planning.elastic import Stage
from uttershard.pipeline.planning.espnet import close_when_over, make_batches
from uttershard.pipeline.planning.plan import lay_out_epoch, lay_out_rest, plan_epoch
from uttershard.pipeline.planning.settings import Batching, Filters, Sharding, make_batching

RECORDED = [
    json.loads(line) for line in Path(__file__).with_name("espnet_batches.jsonl").read_text("utf-8").splitlines()
]
TYPES = ("unsorted", "sorted", "folded", "length", "numel", "catbel", "catpow")


def difference(case: dict[str, Any]) -> str | None:
    """Say how our batches differ from those of ESPnet2 in a recorded case; None if they do not."""
    ours = {"catbel": _balanced, "catpow": _by_power}.get(case["type"], _sampled)(case)
    return None if ours == case["batches"] else f"{case}\nours: {ours}"


def _sampled(case: dict[str, Any]) -> list[list[int]]:
    settings, lengths = dict(case["settings"]), np.array(case["lengths"], np.int64)
    categories = settings.pop("categories", None)
    budget = settings.pop("batch_size", None) or settings.pop("batch_bins")
    if case["type"] != "unsorted":
        settings["length_columns"] = [f"column{number}" for number in range(len(lengths))]
    if categories is not None:
        settings["category"] = "speaker"
    rules = EspnetRules(case["type"], **settings)
    codes = None if categories is None else np.array(categories, np.int32)
    # Ordinals that are no places, so that one can't be taken for the other.
    rows = 100 + 3 * np.arange(lengths.shape[1])
    made = make_batches(rows, lengths, codes, rules, budget, key=0)
    assert made.left_out == rows.size - made.rows.size
    return [((part - 100) // 3).tolist() for part in np.split(made.rows, made.bounds[1:-1])]


def _balanced(case: dict[str, Any]) -> list[list[int]]:
    size, own = case["settings"]["batch_size"], {int(code): keys for code, keys in case["own"].items()}
    walk = np.array(case["walk"], np.int32)
    taken, batches = take_balanced(walk, size, len(own))
    # There, whoever comes next of a category is popped off its list.
    keys = [own[int(walk[place])].pop() for place in taken]
    return [keys[i * size : (i + 1) * size] for i in range(batches)]


def _by_power(case: dict[str, Any]) -> list[list[int]]:
    settings, lengths = case["settings"], np.array(case["lengths"][0], np.int64)
    categories, order = np.array(settings["categories"]), case["order"]
    frames = np.array([lengths[categories == code].sum() for code in order], np.float64)
    expected = category_probabilities(frames, settings["upsampling_factor"])
    assert np.allclose(expected, case["probabilities"], rtol=1e-12)
    total, dice = int(lengths.sum()), np.random.RandomState(1)
    draws = int(int(total * settings["scaling_factor"]) / (total / lengths.size))
    drawn = np.array([dice.choice(len(order), p=case["probabilities"]) for _ in range(draws)], np.int64)
    codes, hashes = np.empty(lengths.size, np.int64), np.empty(lengths.size, np.uint64)
    for code, name in enumerate(order):
        codes[categories == name] = code
        hashes[case["own"][str(name)]] = np.arange(len(case["own"][str(name)]))
    positions = take_in_turn(codes, hashes, drawn)
    bounds = close_when_over(
        lengths[positions],
        settings["batch_bins"],
        settings["min_batch_size"],
        most=settings["max_batch_size"],
        drop_last=settings["drop_last"],
    )
    return [positions[start:end].tolist() for start, end in pairwise(bounds)]


@pytest.mark.parametrize("batch_type", TYPES)
def test_batches_are_those_of_espnet2(batch_type: str) -> None:
    recorded = [case for case in RECORDED if case["type"] == batch_type]
    assert len(recorded) > 60
    problems = [problem for case in recorded if (problem := difference(case))]
    assert not problems, f"{len(problems)} of {len(recorded)} differ, the first:\n{problems[0]}"


def _corpus(case: Case, rules: EspnetRules | None, *, filters: Filters | None = None) -> Corpus:
    columns = columns_of(case.frames)
    random = np.random.default_rng(len(case.frames))
    columns = columns.append_column("text_chars", pa.array(random.integers(0, 200, case.frames.size, np.int32)))
    columns = columns.append_column("language", pa.array([f"l{i}" for i in random.integers(0, 3, case.frames.size)]))
    rows_per_tar = np.diff(np.arange(case.tars + 1) * case.frames.size // case.tars)
    return build_corpus(
        columns, rows_per_tar=rows_per_tar, total_shards=case.total_shards, filters=filters, rules=rules
    )


def _batching(batch_type: str, **settings: Any) -> Batching:
    used: dict[str, Any] = {
        "unsorted": {"batch_size": 5},
        "sorted": {"batch_size": 5},
        "folded": {"batch_size": 8, "fold_lengths": (100, 40), "length_columns": ("frames", "text_chars")},
        "length": {"batch_bins": 900, "length_columns": ("frames", "text_chars")},
        "numel": {"batch_bins": 9_000, "length_dims": (80, 1), "length_columns": ("frames", "text_chars")},
        "catbel": {"batch_size": 2, "category": "language"},
        "catpow": {"batch_bins": 900, "category": "language"},
    }[batch_type] | settings
    own = {name: used.pop(name) for name in ("batch_size", "batch_bins", "equal_steps", "shuffle") if name in used}
    return make_batching(batch_type, used, **own)  # type: ignore[arg-type]


@pytest.mark.parametrize("batch_type", ["unsorted", "sorted", "folded", "length", "numel"])
@given(case=cases(fewest_per_shard=1))
def test_each_rank_has_espnets_batches_of_its_logical_shard(batch_type: str, case: Case) -> None:
    batching = _batching(batch_type, equal_steps="off", shuffle=False)
    corpus = _corpus(case, batching.rules)
    layout = lay_out_epoch(corpus, case.world_size, case.total_shards, batching, epoch=case.epoch, seed=case.seed)
    for rank in range(case.world_size):
        plan = layout.plan(rank)
        shard = layout.ranks[rank].logical_shard
        assert shard == (case.epoch * case.world_size + rank) % case.total_shards
        rows = corpus.kept_rows(shard)
        lengths = np.stack([corpus.frames[rows], corpus.lengths[1, rows]]) if corpus.lengths is not None else None
        expected = make_batches(
            rows,
            corpus.frames[rows][None].astype(np.int64) if lengths is None else lengths.astype(np.int64),
            None,
            batching.rules,
            batching.batch_bins or batching.batch_size,
            key=0,
        )
        assert np.array_equal(plan.rows, expected.rows)
        assert np.array_equal(plan.splits, expected.bounds)
        assert np.array_equal(np.sort(plan.rows), rows), "nothing dropped, nothing twice"


@pytest.mark.parametrize("policy", ["pad", "drop"])
@pytest.mark.parametrize("batch_type", TYPES)
@given(case=cases(fewest_per_shard=12))
def test_ranks_have_equal_steps(batch_type: str, policy: str, case: Case) -> None:
    batching = _batching(batch_type, equal_steps=policy)
    try:
        layout = lay_out_epoch(
            _corpus(case, batching.rules), case.world_size, case.total_shards, batching, epoch=0, seed=case.seed
        )
    except ShardingError as error:
        # So few utterances of a category that a rank has no batch.
        assert batch_type == "catbel"
        assert "makes no batch" in str(error)
        return
    plans = [layout.plan(rank) for rank in range(case.world_size)]
    assert len({plan.steps for plan in plans}) == 1
    for plan in plans:
        summary = layout.ranks[plan.rank]
        assert (np.diff(plan.splits) > 0).all()
        assert summary.filler_steps == np.count_nonzero(plan.filler)
        if policy == "drop":
            assert not plan.filler.any()
        elif batch_type not in ("catbel", "catpow"):
            own = np.repeat(~plan.filler, np.diff(plan.splits))
            assert summary.dropped_utterances == 0
            assert np.unique(plan.rows[own]).size == np.count_nonzero(own) == summary.utterances


def test_steps_are_shuffled_alike_on_all_ranks_and_otherwise_in_each_epoch() -> None:
    case = Case(np.arange(1, 401), 4, 4, 4, seed=3, epoch=0)
    batching = _batching("sorted", equal_steps="drop")
    corpus = _corpus(case, batching.rules)
    orders = []
    for epoch in range(3):
        layout = lay_out_epoch(corpus, 4, 4, batching, epoch=epoch, seed=3)
        ranks = [np.argsort(layout.plan(rank).longest).tolist() for rank in range(4)]
        assert ranks.count(ranks[0]) == 4, "similar lengths at the same step"
        orders.append(ranks[0])
    assert orders[0] != orders[1] != orders[2]


def test_a_budget_of_frames_and_characters() -> None:
    case = Case(np.full(100, 50), 1, 1, 1, seed=0, epoch=0)
    batching = _batching("length", batch_bins=10_000, shuffle=False)
    corpus = _corpus(case, batching.rules)
    plan = plan_epoch(corpus, Sharding(), batching, epoch=0)
    chars = corpus.lengths[1]
    for step in range(plan.steps - 1):
        rows = plan.batch(step)
        # In ascending order the first is the one that closed the batch, since a batch is turned around.
        closing, before = int(rows[0]), int(rows[1])
        assert len(rows) * (50 + chars[closing]) > 10_000
        assert (len(rows) - 1) * (50 + chars[before]) <= 10_000


def test_balanced_batches_hold_no_more_than_their_share_of_a_category() -> None:
    case = Case(np.full(3000, 50), 1, 1, 1, seed=0, epoch=0)
    batching = _batching("catbel", batch_size=9)
    corpus = _corpus(case, batching.rules)
    seen = set()
    for epoch in range(2):
        plan = plan_epoch(corpus, Sharding(), batching, epoch=epoch, seed=7)
        assert plan.steps > 200
        for step in range(plan.steps):
            counts = Counter(corpus.categories[plan.batch(step)].tolist())
            assert max(counts.values()) <= 9 // 3 + 1
            assert sum(counts.values()) == 9
        assert np.unique(plan.rows).size == plan.rows.size
        seen.add(tuple(plan.rows.tolist()))
    assert len(seen) == 2


@pytest.mark.parametrize(("power", "shares"), [(0.0, (1 / 3, 1 / 3, 1 / 3)), (1.0, (0.1, 0.3, 0.6))])
def test_categories_are_drawn_by_a_power_of_their_hours(power: float, shares: tuple[float, ...]) -> None:
    frames = np.full(3000, 50)
    batching = _batching("catpow", upsampling_factor=power, scaling_factor=2.0)
    columns = columns_of(frames).append_column("language", pa.array(["a"] * 300 + ["b"] * 900 + ["c"] * 1800))
    corpus = build_corpus(columns, rows_per_tar=[3000], total_shards=1, rules=batching.rules)
    plan = plan_epoch(corpus, Sharding(), batching, epoch=0, seed=1)
    drawn = np.bincount(corpus.categories[plan.rows], minlength=3) / plan.rows.size
    assert plan.rows.size == 6000
    assert np.allclose(drawn, shares, atol=0.03)
    # An utterance comes again only when all others of its category have come.
    for code in range(3):
        times = np.bincount(plan.rows)[np.flatnonzero(corpus.categories == code)]
        assert times.max() - times.min() <= 1


@pytest.mark.parametrize("left", [1, 9])
@pytest.mark.parametrize("batch_type", TYPES)
def test_the_rest_of_an_epoch_is_dealt_anew(batch_type: str, left: int) -> None:
    case = Case(np.arange(20, 320), 3, 4, 4, seed=5, epoch=0)
    batching = _batching(batch_type)
    corpus = _corpus(case, batching.rules)
    before = lay_out_epoch(corpus, 4, 4, batching, epoch=2, seed=5)
    done = before.plan(0).steps - left
    rest = lay_out_rest(corpus, [Stage(4, 4, done)], 3, 3, batching, epoch=2, seed=5)
    delivered = []
    for layout, ranks, steps in ((before, 4, done), (rest, 3, None)):
        plans = [layout.plan(rank) for rank in range(ranks)]
        assert len({plan.steps for plan in plans}) == 1
        for plan in plans:
            taken = np.arange(plan.steps)[:steps]
            delivered += [row for step in taken if not plan.filler[step] for row in plan.batch(step).tolist()]
    whole = [before.plan(rank) for rank in range(4)]
    expected = [
        row for plan in whole for step in range(plan.steps) if not plan.filler[step] for row in plan.batch(step)
    ]
    assert Counter(delivered) == Counter(map(int, expected))


@pytest.mark.parametrize(
    ("batch_type", "settings", "says"),
    [
        ("sorted", {"batch_bins": 9}, "batch_bins=9 is not used by batch_type='sorted', but by 'bucket', 'length'"),
        (
            "numel",
            {"batch_size": 4, "batch_bins": 9},
            "batch_size=4 is not used by batch_type='numel'",
        ),
        ("numel", {}, "batch_type='numel' needs batch_bins="),
        ("unsorted", {"batch_size": 4, "sort_batch": "ascending"}, "sort_batch='ascending' is not used by"),
        (
            "bucket",
            {"batch_bins": 9, "drop_last": True},
            "drop_last=True is not used by batch_type='bucket'",
        ),
        ("sorted", {"batch_size": 4, "min_batch_size": 2}, "but by 'bucket', 'folded', 'length', 'numel', 'catpow'"),
        ("length", {"batch_bins": 9, "quadratic": 100}, "quadratic=100 is not used by batch_type='length'"),
        ("length", {"batch_bins": 9, "oversize": "drop"}, "oversize='drop' is not used by batch_type='length'"),
        ("length", {"batch_bins": 9, "windows": 2}, "windows=2 is not used by batch_type='length'"),
        ("length", {"batch_bins": 9, "equal_steps": "split"}, "choose 'pad'"),
        ("folded", {"batch_size": 9}, "needs fold_lengths="),
        ("folded", {"batch_size": 9, "fold_lengths": [1, 2]}, "has 2 entries, length_columns=('frames',) has 1"),
        ("sorted", {"batch_size": 9, "length_columns": ["frames", "tokens"]}, "looks at one length only"),
        ("length", {"batch_bins": 9, "length_columns": []}, "give names of columns"),
        ("length", {"batch_bins": 9, "sort_batch": "up"}, "choose 'ascending' or 'descending'"),
        ("length", {"batch_bins": 9, "drop_last": 1}, "drop_last=1 is no truth value"),
        ("catbel", {"batch_size": 9}, "name it, e.g. category='language'"),
        ("catbel", {"batch_size": 9, "category": "language", "shuffle": False}, "which draws at random"),
        ("catpow", {"batch_bins": 9, "category": "x", "scaling_factor": 0.5}, "scaling_factor=0.5 is out of range"),
        ("length", {"batch_bins": 9, "shuffle": False, "equal_steps": "drop"}, "the same utterances in every epoch"),
        ("by_hand", {"batch_size": 9}, "batch_type='by_hand' is unknown: choose one of 'bucket', 'unsorted'"),
    ],
)
def test_settings_that_a_type_does_not_use_are_refused(batch_type: str, settings: dict[str, Any], says: str) -> None:
    own = ("batch_size", "batch_bins", "quadratic", "oversize", "windows", "equal_steps", "shuffle")
    rules = {name: value for name, value in settings.items() if name not in own}
    rest = {name: value for name, value in settings.items() if name in own}
    with pytest.raises(ConfigError) as refused:
        make_batching(batch_type, rules, **rest)  # type: ignore[arg-type]
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ("tokens", "length_columns names 'tokens', which the sidecars do not have"),
        ("speaker", "a column of string: it must hold whole numbers"),
        ("gaps", "1 utterances have no gaps: leave them out with where='gaps is not None'"),
        ("below", "which has negative values"),
    ],
)
def test_length_columns_that_do_not_fit_are_refused(column: str, says: str) -> None:
    columns = columns_of(np.array([5, 6, 7]))
    columns = columns.append_column("speaker", pa.array(["a", "b", "a"]))
    columns = columns.append_column("gaps", pa.array([1, None, 3]))
    columns = columns.append_column("below", pa.array([1, -2, 3]))
    rules = EspnetRules("length", length_columns=("frames", column))
    with pytest.raises(ConfigError) as refused:
        build_corpus(columns, rows_per_tar=[3], total_shards=1, rules=rules)
    assert says in str(refused.value)


def test_columns_need_no_values_for_utterances_that_are_filtered_out() -> None:
    columns = columns_of(np.array([5, 6, 7])).append_column("gaps", pa.array([1, None, 3]))
    rules = EspnetRules("length", length_columns=("gaps",))
    filters = Filters(where="gaps is not None")
    corpus = build_corpus(columns, rows_per_tar=[3], total_shards=1, filters=filters, rules=rules)
    assert corpus.lengths.tolist() == [[1, 0, 3]]


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_type": "numel", "batch_bins": 2_000, "length_columns": ("frames", "text_chars"), "length_dims": (3, 1)},
        {"batch_type": "catbel", "batch_size": 4, "category": "speaker"},
        {"batch_type": "catpow", "batch_bins": 300, "category": "speaker"},
    ],
)
def test_processes_make_the_same_batches(flac: Packed, settings: dict[str, Any]) -> None:
    expected = [list(run(flac.loader(rank=rank, world_size=2, **settings), 0, 1)) for rank in range(2)]
    assert len(expected[0]) == len(expected[1])
    processes = flac.loader(rank=1, world_size=2, num_workers=2, multiprocessing_context="fork", **settings)
    assert list(run(processes, 0, 1)) == expected[1]
    plain = flac.loader(rank=1, world_size=2, **settings)
    data = DataLoader(plain.dataset, batch_size=None, num_workers=1, multiprocessing_context="forkserver")
    assert list(map(seen, data)) == [batch for batch in expected[1] if batch.epoch == 0]


def test_a_state_is_small_and_holds_for_the_same_rules_only(flac: Packed) -> None:
    settings: dict[str, Any] = {
        "batch_type": "numel",
        "batch_bins": 2_000,
        "length_columns": ("frames", "text_chars", "num_samples"),
        "length_dims": (80, 1, 1),
        "sort_batch": "descending",
        "sort_in_batch": "ascending",
        "padded": False,
        "where": "text_chars > 0 and speaker != 'nobody'",
    }
    loader = flac.loader(min_batch_size=2, **settings)
    next(iter(loader))
    text = json.dumps(loader.state_dict())
    assert len(text) < 1024
    flac.loader(min_batch_size=2, **settings).load_state_dict(json.loads(text))
    with pytest.raises(ConfigError, match="rules was"):
        flac.loader(min_batch_size=3, **settings).load_state_dict(json.loads(text))
