"""Mixing: several datasets in one stream, with exact shares, resumable and elastic like one dataset."""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packed import BINS, Packed, keys_of, make_dataset
from planning_cases import corpus_of
from torch.utils.data import DataLoader
from uttershard.pipeline import Mix, Part, ShardLoader, ShardSet
from uttershard.pipeline.errors import ConfigError, ShardingError
from uttershard.pipeline.planning.corpus import Corpus
from uttershard.pipeline.planning.elastic import Stage
from uttershard.pipeline.planning.layout import EpochLayout
from uttershard.pipeline.planning.mixing import MixedCorpus, mix_corpora, repeats_by_temperature, repeats_by_weight
from uttershard.pipeline.planning.plan import lay_out_epoch, lay_out_rest
from uttershard.pipeline.planning.settings import Batching, Filters
from uttershard.pipeline.testing import check_elastic_resume, check_resume
from uttershard.scripts.cli import main

REPEATS = st.fractions(Fraction(1, 20), Fraction(4), max_denominator=40)


def _corpora(sizes: list[int], total_shards: int, seed: int, filters: Filters | None = None) -> list[Corpus]:
    random = np.random.default_rng(seed)
    return [
        corpus_of(random.integers(1, 900, size, endpoint=True), tars=3, total_shards=total_shards, filters=filters)
        for size in sizes
    ]


def _mix(corpora: list[Corpus], repeats: list[Fraction], *, separate: bool = False) -> MixedCorpus:
    names = [f"set{number}" for number in range(len(corpora))]
    return mix_corpora(list(zip(names, corpora, repeats, strict=True)), separate=separate)


def _copies(layout: EpochLayout, steps: int | None = None) -> list[int]:
    """Return the ordinals that all ranks deliver, fillers apart."""
    delivered = []
    for rank in range(layout.world_size):
        plan = layout.plan(rank)
        for step in range(plan.steps if steps is None else min(steps, plan.steps)):
            if not plan.filler[step]:
                delivered += plan.batch(step).tolist()
    return delivered


@given(
    sizes=st.lists(st.integers(30, 90), min_size=1, max_size=3),
    repeats=st.lists(REPEATS, min_size=3, max_size=3),
    world_size=st.integers(1, 3),
    shards_per_rank=st.integers(1, 2),
    epoch=st.integers(0, 50),
    seed=st.integers(0, 2**32),
)
def test_each_utterance_comes_as_often_as_its_factor_says(
    sizes: list[int], repeats: list[Fraction], world_size: int, shards_per_rank: int, epoch: int, seed: int
) -> None:
    total = world_size * shards_per_rank
    corpora = _corpora(sizes, total, seed, Filters(max_seconds=8))
    mix = _mix(corpora, repeats[: len(sizes)])
    batching = Batching(batch_bins=9_000, equal_steps="off")
    real: list[int] = []
    for following in range(shards_per_rank):
        layout = lay_out_epoch(mix, world_size, total, batching, epoch=epoch + following, seed=seed)
        copies = _copies(layout)
        assert len(set(copies)) == len(copies)
        real += mix.real_rows(np.array(copies, np.int64)).tolist()
    counts = np.bincount(np.array(real, np.int64), minlength=sum(sizes))
    first = 0
    for corpus, repeat in zip(corpora, repeats, strict=False):
        own = counts[first : first + corpus.frames.size]
        assert (own[~corpus.kept] == 0).all()
        least = repeat.numerator // repeat.denominator
        assert set(own[corpus.kept].tolist()) <= {least, least + 1}
        # Within one utterance in each epoch.
        frames, kept = corpus.frames.astype(np.int64), corpus.kept
        error = abs(int((own * frames).sum()) - int(frames[kept].sum()) * repeat)
        assert error <= shards_per_rank * int(frames[kept].max())
        first += corpus.frames.size


@given(weights=st.lists(st.integers(1, 9), min_size=2, max_size=4), seed=st.integers(0, 2**32), epoch=st.integers(0, 9))
def test_weights_are_shares_of_the_hours_within_one_utterance(weights: list[int], seed: int, epoch: int) -> None:
    corpora = _corpora([60 + 40 * number for number in range(len(weights))], 2, seed)
    repeats = repeats_by_weight(corpora, [Fraction(weight) for weight in weights])
    mix = _mix(corpora, repeats)
    copies = np.array(_copies(lay_out_epoch(mix, 2, 2, Batching(batch_bins=9_000), epoch=epoch, seed=seed)))
    total = sum(int(corpus.frames.sum()) for corpus in corpora)
    audio = np.bincount(mix.parts_of(copies), mix.frames[copies], minlength=len(weights))
    for own, weight in zip(audio.tolist(), weights, strict=True):
        assert abs(own - total * weight / sum(weights)) <= 901


def test_temperature_makes_shares_more_equal() -> None:
    corpora = [corpus_of(np.full(size, 100)) for size in (800, 100)]
    assert repeats_by_temperature(corpora, 1) == pytest.approx([1, 1])
    one, other = repeats_by_temperature(corpora, 3)
    assert float(other * 100 / (one * 800)) == pytest.approx(0.5)
    assert float(one * 800 + other * 100) == pytest.approx(900)


def test_which_utterances_come_once_more_changes_with_the_epoch() -> None:
    mix = _mix(_corpora([200], 1, 0), [Fraction(3, 2)])
    batching = Batching(batch_bins=9_000)
    extra = [
        frozenset(row for row in _copies(lay_out_epoch(mix, 1, 1, batching, epoch=epoch)) if row >= 200)
        for epoch in range(6)
    ]
    assert len(set(extra)) == 6
    assert len(frozenset.union(*extra)) > 190


def test_copies_of_an_utterance_are_not_batched_together() -> None:
    mix = _mix([corpus_of(np.full(100, 100))], [Fraction(2)])
    layout = lay_out_epoch(mix, 1, 1, Batching(batch_size=10), epoch=0)
    plan = layout.plan(0)
    together = [10 - np.unique(mix.real_rows(plan.batch(step))).size for step in range(plan.steps)]
    assert sum(together) < 20


@given(
    worlds=st.lists(st.integers(1, 5), min_size=2, max_size=3),
    shares=st.lists(st.floats(0, 1), min_size=2, max_size=2),
    separate=st.booleans(),
    policy=st.sampled_from(["split", "pad"]),
    seed=st.integers(0, 2**32),
)
def test_a_mix_is_elastic(worlds: list[int], shares: list[float], separate: bool, policy: Any, seed: int) -> None:
    corpora = _corpora([150, 80], worlds[0], seed)
    mix = _mix(corpora, [Fraction(3, 2), Fraction(9, 4)], separate=separate)
    batching = Batching(batch_bins=12_000, equal_steps=policy)
    layout = lay_out_epoch(mix, worlds[0], worlds[0], batching, epoch=1, seed=seed)
    whole, delivered, stages = sorted(_copies(layout)), [], []
    for ranks, share, following in zip(worlds, shares, worlds[1:], strict=False):
        steps = round(share * layout.plan(0).steps)
        delivered += _copies(layout, steps)
        stages.append(Stage(ranks, ranks, steps))
        layout = lay_out_rest(mix, stages, following, following, batching, epoch=1, seed=seed)
        assert len({layout.plan(rank).steps for rank in range(following)}) == 1
    assert sorted(delivered + _copies(layout)) == whole


@given(seed=st.integers(0, 2**32), world_size=st.integers(1, 4))
def test_pure_batches_are_of_one_dataset_on_all_ranks_at_each_step(seed: int, world_size: int) -> None:
    mix = _mix(_corpora([150, 80, 60], world_size, seed), [Fraction(1), Fraction(2), Fraction(1, 2)], separate=True)
    layout = lay_out_epoch(mix, world_size, world_size, Batching(batch_bins=9_000), epoch=0, seed=seed)
    plans = [layout.plan(rank) for rank in range(world_size)]
    order = []
    for step in range(plans[0].steps):
        parts = {int(part) for plan in plans for part in mix.parts_of(plan.batch(step))}
        assert len(parts) == 1
        order += parts
    assert len(set(order)) == 3


def test_pure_batches_of_all_datasets_are_shuffled() -> None:
    mix = _mix(_corpora([300, 300], 1, 0), [Fraction(1)] * 2, separate=True)
    plan = lay_out_epoch(mix, 1, 1, Batching(batch_size=5), epoch=0).plan(0)
    order = [int(mix.parts_of(plan.batch(step))[0]) for step in range(plan.steps)]
    assert 30 < sum(one != other for one, other in itertools.pairwise(order)) < 90


def test_a_rank_without_utterances_of_a_dataset_is_named() -> None:
    mix = _mix(
        [corpus_of(np.full(40, 100), total_shards=4), corpus_of(np.full(2, 100), total_shards=4)],
        [Fraction(1)] * 2,
        separate=True,
    )
    with pytest.raises(ShardingError, match="logical shard 0 of dataset 'set1', which has 0 utterances"):
        lay_out_epoch(mix, 4, 4, Batching(batch_size=5), epoch=0)


def test_golden_mix() -> None:
    corpora = [
        corpus_of(100 + np.arange(40) * 7919 % 500, tars=2, total_shards=2),
        corpus_of(np.arange(100, 120), total_shards=2),
    ]
    mix = _mix(corpora, [Fraction(5, 4), Fraction(1, 2)])
    plan = lay_out_epoch(mix, 2, 2, Batching(batch_bins=2_000), epoch=7, seed=3).plan(1)
    assert plan.splits.tolist() == [0, 5, 8, 12, 15, 24, 30, 32]
    assert plan.rows.tolist() == [
        74,
        34,
        68,
        28,
        22,
        26,
        20,
        39,
        33,
        73,
        27,
        21,
        25,
        38,
        32,
        24,
        98,
        97,
        96,
        95,
        94,
        93,
        91,
        37,
        35,
        75,
        29,
        23,
        36,
        30,
        31,
        71,
    ]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return make_dataset(tmp_path_factory.mktemp("clean"), utterances=40)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """The same ids as in the other one, so that only the dataset's name tells them apart."""
    return make_dataset(tmp_path_factory.mktemp("noisy"), utterances=24)


def _loader(mix: Mix, **settings: Any) -> ShardLoader:
    return ShardLoader(mix, **{"rank": 0, "world_size": 1, "batch_bins": BINS, **settings})


def _two(clean: Packed, noisy: Packed, **settings: Any) -> Mix:
    return Mix([Part(clean.address, "clean"), Part(noisy.address, "noisy", repeat=2.5)], **settings)


def _named(loader: ShardLoader) -> Counter[tuple[str, str]]:
    return Counter((meta["dataset"], key) for batch in loader for meta, key in zip(batch.meta, batch.keys, strict=True))


def test_audio_text_and_metadata_are_those_of_the_dataset(clean: Packed, noisy: Packed) -> None:
    seen = 0
    for batch in _loader(_two(clean, noisy)):
        for row, (key, meta) in enumerate(zip(batch.keys, batch.meta, strict=True)):
            source = (clean if meta["dataset"] == "clean" else noisy).sources[key]
            length = int(batch.audio_lengths[row])
            np.testing.assert_array_equal(batch.audio[row, :length].numpy(), source.samples())
            assert batch.text[row] == source.text
            assert meta == {**source.meta, "dataset": meta["dataset"]}
            seen += 1
    assert seen > 90


@pytest.mark.parametrize("workers", [{"threads": 2}, {"num_workers": 2}])
def test_counts_are_reported_exactly(clean: Packed, noisy: Packed, workers: dict[str, int]) -> None:
    loader = _loader(_two(clean, noisy), **workers)
    for epoch in range(2):
        loader.set_epoch(epoch)
        numbers = {part.name: part for part in loader.parts}
        steps, delivered = len(loader), _named(loader)
        assert loader.metrics()["steps"] >= steps
        assert numbers["clean"].repeat == 1 and numbers["noisy"].repeat == 2.5
        for name, packed in (("clean", clean), ("noisy", noisy)):
            own = Counter({key: count for (dataset, key), count in delivered.items() if dataset == name})
            assert set(own) == set(packed.sources)
            assert numbers[name].utterances == own.total()
            assert set(own.values()) == ({1} if name == "clean" else {2, 3})
        assert sum(part.share for part in numbers.values()) == pytest.approx(1)
        hours = ShardSet.open(clean.address).hours
        assert numbers["clean"].hours == pytest.approx(hours, rel=0.02)


def test_steps_are_those_that_len_says(clean: Packed, noisy: Packed) -> None:
    for pure in (False, True):
        loaders = [_loader(_two(clean, noisy, pure=pure), rank=rank, world_size=2) for rank in range(2)]
        assert len(loaders[0]) == len(loaders[1]) == len(keys_of(loaders[0])) == len(keys_of(loaders[1]))


def test_pure_batches(clean: Packed, noisy: Packed) -> None:
    def mixed(loader: ShardLoader) -> int:
        return sum(len({meta["dataset"] for meta in batch.meta}) > 1 for batch in loader)

    assert mixed(_loader(_two(clean, noisy, pure=True))) == 0
    assert mixed(_loader(_two(clean, noisy))) > 0


@pytest.mark.parametrize("pure", [False, True])
def test_a_mix_resumes_at_every_step(clean: Packed, noisy: Packed, pure: bool) -> None:
    assert check_resume(lambda: _loader(_two(clean, noisy, pure=pure)), epochs=2, every=3) > 5


@pytest.mark.parametrize(("world_sizes", "steps"), [([2, 3], [2]), ([1, 3, 2], [3, 1])])
def test_a_mix_resumes_with_other_world_sizes(
    clean: Packed, noisy: Packed, world_sizes: list[int], steps: list[int]
) -> None:
    def make(rank: int, world_size: int) -> ShardLoader:
        return _loader(_two(clean, noisy), rank=rank, world_size=world_size)

    check_elastic_resume(make, world_sizes, steps, epoch=2)


def test_all_ranks_together_cover_the_mix_over_a_cycle(clean: Packed, noisy: Packed) -> None:
    mix = Mix([Part(clean.address, "clean", repeat=2), Part(noisy.address, "noisy")])
    delivered: Counter[tuple[str, str]] = Counter()
    for rank in range(2):
        loader = _loader(mix, rank=rank, world_size=2, total_shards=4)
        for epoch in range(2):
            loader.set_epoch(epoch)
            delivered += _named(loader)
    assert delivered == Counter(
        {("clean", key): 2 for key in clean.sources} | {("noisy", key): 1 for key in noisy.sources}
    )


def test_each_dataset_has_filters_of_its_own(clean: Packed, noisy: Packed) -> None:
    mix = Mix(
        [
            Part(clean.address, "clean", where="speaker == 's1'"),
            Part(noisy.address, "noisy", max_seconds=0.7, where=["speaker != 's2'"]),
        ]
    )
    loader = _loader(mix, min_seconds=0.3, max_seconds=1.1)
    delivered = _named(loader)
    seconds = {
        name: {key: source.samples().shape[-1] / 16_000 for key, source in packed.sources.items()}
        for name, packed in (("clean", clean), ("noisy", noisy))
    }
    for name, packed in (("clean", clean), ("noisy", noisy)):
        expected = {
            key
            for key, source in packed.sources.items()
            if 0.3 <= seconds[name][key] <= (1.1 if name == "clean" else 0.7)
            and (source.meta["speaker"] == "s1" if name == "clean" else source.meta["speaker"] != "s2")
        }
        assert {key for dataset, key in delivered if dataset == name} == expected
    counts = loader.filtered
    assert counts["kept"] == delivered.total()
    assert sum(counts.values()) == len(clean.sources) + len(noisy.sources)
    assert counts["clean: speaker == 's1'"] > 0 and counts["noisy: too_long"] > 0


def test_columns_that_only_one_has_are_empty_in_the_other(clean: Packed, tmp_path: Path) -> None:
    other = make_dataset(tmp_path, utterances=12, columns=("take",))
    mix = Mix([Part(clean.address, "clean"), Part(other.address, "other")])
    loader = _loader(mix, where="speaker == 's1' or take < 6")
    names = Counter(dataset for dataset, _ in _named(loader))
    assert names == {"clean": sum(s.meta["speaker"] == "s1" for s in clean.sources.values()), "other": 6}
    with pytest.raises(ConfigError, match="there is no column 'accent'"):
        _loader(mix, where="accent == 'x'")


def test_other_rates_need_to_be_brought_together(clean: Packed, tmp_path: Path) -> None:
    other = make_dataset(tmp_path, utterances=12, rates=(8_000,))
    mix = Mix([Part(clean.address, "clean"), Part(other.address, "other")])
    with pytest.raises(ConfigError, match=r"sample_rate 16000 in 'clean'; 8000 in 'other': .*sample_rate="):
        _loader(mix)
    for batch in _loader(mix, sample_rate=8_000):
        for row, (key, meta) in enumerate(zip(batch.keys, batch.meta, strict=True)):
            samples = (clean if meta["dataset"] == "clean" else other).sources[key].samples().shape[-1]
            assert batch.audio_lengths[row] == (samples if meta["dataset"] == "other" else (samples + 1) // 2)


def test_a_dataset_may_be_added_between_epochs(clean: Packed, noisy: Packed) -> None:
    alone = Mix([Part(clean.address, "clean")])
    loader = _loader(alone)
    fresh = _loader(_two(clean, noisy))
    fresh.set_epoch(1)
    expected = keys_of(fresh)

    batches = iter(loader)
    for _ in range(3):
        next(batches)
    with pytest.raises(ConfigError, match=r"'noisy' is new in the mix.*in the middle of epoch 0"):
        _loader(_two(clean, noisy)).load_state_dict(loader.state_dict())
    for _ in range(len(loader) - 3):
        next(batches)
    at_the_last_step = loader.state_dict()
    assert next(batches, None) is None
    for state in (at_the_last_step, loader.state_dict()):
        resumed = _loader(_two(clean, noisy))
        resumed.load_state_dict(state)
        assert resumed.epoch == 1
        assert keys_of(resumed) == expected
    with pytest.raises(ConfigError, match="parts was"):
        loader.load_state_dict(fresh.state_dict())


def test_another_weight_or_filter_is_refused(clean: Packed, noisy: Packed) -> None:
    state = _loader(_two(clean, noisy)).state_dict()
    for other, named in (
        (Mix([Part(clean.address, "clean"), Part(noisy.address, "noisy", repeat=2)]), "mix was"),
        (_two(clean, noisy, pure=True), "mix was"),
        (Mix([Part(clean.address, "clean", max_seconds=1), Part(noisy.address, "noisy", repeat=2.5)]), "parts was"),
    ):
        with pytest.raises(ConfigError, match=named):
            _loader(other).load_state_dict(state)


def test_speeds_differ_between_copies(clean: Packed) -> None:
    mix = Mix([Part(clean.address, "clean", repeat=3)])
    lengths: dict[str, set[int]] = {}
    for batch in _loader(mix, speed=(0.8, 1.0, 1.25), batch_bins=2 * BINS):
        for key, length in zip(batch.keys, batch.audio_lengths.tolist(), strict=True):
            lengths.setdefault(key, set()).add(length)
    assert np.mean([len(own) for own in lengths.values()]) > 1.5


def test_a_mix_through_a_dataloader_of_ones_own(clean: Packed, noisy: Packed) -> None:
    loader = _loader(_two(clean, noisy))
    data: DataLoader[Any] = DataLoader(loader.dataset, batch_size=None, num_workers=2)
    assert keys_of(data) == keys_of(loader)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Mix([]), "at least one"),
        (lambda: Mix("a/train"), r"give a list of datasets, Mix\(\['a/train'"),
        (lambda: Mix([3]), r"Part\(3\): give the address of a dataset"),
        (lambda: Mix(["a/train", "b/train"]), "called 'train'"),
        (lambda: Mix([Part("a", weight=1), Part("b")]), "'a' has a weight and 'b' has none"),
        (lambda: Part("a", weight=1, repeat=2), "give one of them"),
        (lambda: Part("a", weight=0), "weight=0"),
        (lambda: Part("a", repeat=-1), "repeat=-1"),
        (lambda: Part("a", repeat="x"), "repeat='x'"),
        (lambda: Mix([Part("a", repeat=2), "b"], temperature=2), "temperature=2 and a weight or repeat of dataset 'a'"),
        (lambda: Mix(["a", "b"], temperature=0.5), "temperature=0.5 is out of range"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make()


def test_what_a_loader_can_not_mix_is_refused(clean: Packed, noisy: Packed) -> None:
    with pytest.raises(ConfigError, match="would come 100000 times"):
        _loader(Mix([Part(clean.address, "clean", repeat=100_000)]))
    with pytest.raises(ConfigError, match="dataset 'noisy': no utterance"):
        _loader(Mix([Part(clean.address, "clean"), Part(noisy.address, "noisy", min_seconds=100)]))


def test_the_plan_command_shows_the_mix_that_training_reads(
    clean: Packed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_dataset(tmp_path, utterances=12).address.rename(tmp_path / "other")

    def run(*arguments: Any) -> str:
        monkeypatch.setattr(sys, "argv", ["uttershard", "plan", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
            sys.exit(0)
        output = capsys.readouterr()
        return output.out if not ended.value.code else output.err

    settings = ("--weight", 3, "--weight", 1, "--batch-bins", BINS)
    found = json.loads(run(clean.address, other, *settings, "--json", "--batches"))
    loader = _loader(Mix([Part(clean.address, weight=3), Part(other, weight=1)]))
    assert found["datasets"] == [asdict(part) for part in loader.parts]
    assert [tuple(batch["keys"]) for batch in found["ranks"][0]["batches"]] == keys_of(loader)
    text = run(clean.address, other, *settings)
    assert "Datasets of the mix" in text and "other" in text
    assert "2 datasets and 1 times --weight" in run(clean.address, other, "--weight", 3)
    assert "--temperature is for a mix" in run(clean.address, "--temperature", 3)
