"""G9 elastic resume: with another world size the rest of the epoch is dealt anew, and nothing is lost or repeated."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from planning_cases import corpus_of, speech_like
from uttershard.pipeline.errors import ShardingError
from uttershard.pipeline.planning.corpus import Corpus
from uttershard.pipeline.planning.elastic import Course, Stage, deal_rest
from uttershard.pipeline.planning.plan import EpochLayout, lay_out_epoch, lay_out_rest
from uttershard.pipeline.planning.rotation import Rotation
from uttershard.pipeline.planning.settings import Batching, EqualSteps

WORLDS = st.integers(1, 7)
BATCHINGS = st.sampled_from(
    [
        {"batch_bins": 6_000},
        {"batch_bins": 1_500, "max_batch_size": 3},
        {"batch_bins": 9_000, "longest_first": True, "quadratic": 4_000},
        {"batch_size": 1},
        {"batch_size": 7},
    ]
)


def _deliveries(layout: EpochLayout, steps: int | None = None) -> list[int]:
    """Return the ordinals that all ranks deliver in the first steps, fillers apart."""
    delivered = []
    for rank in range(layout.world_size):
        plan = layout.plan(rank)
        for step in range(plan.steps if steps is None else min(steps, plan.steps)):
            if not plan.filler[step]:
                delivered += plan.batch(step).tolist()
    return delivered


def _corpus(utterances: int, seed: int, total_shards: int) -> Corpus:
    frames = np.random.default_rng(seed).integers(1, 1_500, utterances, endpoint=True)
    return corpus_of(frames, tars=3, total_shards=total_shards)


class _Epoch:
    """An epoch that goes through several world sizes, each for a share of its steps, the last to the end."""

    def __init__(self, worlds: list[int], shares: list[float], batching: Batching, utterances: int, seed: int) -> None:
        self.corpus = _corpus(utterances, seed, worlds[0])
        self.layouts = [lay_out_epoch(self.corpus, worlds[0], worlds[0], batching, epoch=3, seed=seed)]
        self.stages: list[Stage] = []
        for ranks, share, following in zip(worlds, shares, worlds[1:], strict=False):
            steps = round(share * max(rank.steps for rank in self.layouts[-1].ranks))
            self.stages.append(Stage(ranks, ranks, steps))
            self.layouts.append(
                lay_out_rest(self.corpus, self.stages, following, following, batching, epoch=3, seed=seed)
            )

    def delivered(self) -> list[int]:
        steps = [stage.steps for stage in self.stages]
        parts = [_deliveries(layout, taken) for layout, taken in zip(self.layouts, [*steps, None], strict=True)]
        return sorted(itertools.chain(*parts))


@given(
    worlds=st.lists(WORLDS, min_size=2, max_size=4),
    shares=st.lists(st.floats(0, 1), min_size=3, max_size=3),
    sizes=BATCHINGS,
    policy=st.sampled_from(["split", "pad", "off"]),
    utterances=st.integers(100, 300),
    seed=st.integers(0, 2**32),
)
def test_each_utterance_of_the_epoch_exactly_once(
    worlds: list[int], shares: list[float], sizes: dict[str, int], policy: EqualSteps, utterances: int, seed: int
) -> None:
    batching = Batching(**sizes, equal_steps=policy)
    try:
        epoch = _Epoch(worlds, shares, batching, utterances, seed)
    except ShardingError as error:
        # Only a whole epoch may be refused (its ranks are too unequal for the policy), never the rest of one.
        assert "logical shard" in str(error)
        with pytest.raises(ShardingError):
            lay_out_epoch(_corpus(utterances, seed, worlds[0]), worlds[0], worlds[0], batching, epoch=3, seed=seed)
        return
    assert epoch.delivered() == list(range(utterances))
    if policy != "off":
        for layout in epoch.layouts:
            assert len({rank.steps for rank in layout.ranks}) == 1
            assert len({layout.plan(rank).steps for rank in range(layout.world_size)}) == 1


@given(
    worlds=st.lists(WORLDS, min_size=2, max_size=3),
    shares=st.lists(st.floats(0, 1), min_size=2, max_size=2),
    sizes=BATCHINGS,
    seed=st.integers(0, 2**32),
)
def test_drop_repeats_nothing_and_reports_what_it_leaves_out(
    worlds: list[int], shares: list[float], sizes: dict[str, int], seed: int
) -> None:
    epoch = _Epoch(worlds, shares, Batching(**sizes, equal_steps="drop"), 150, seed)
    delivered = epoch.delivered()
    assert len(set(delivered)) == len(delivered)
    left_out = sum(rank.dropped_utterances for layout in epoch.layouts for rank in layout.ranks)
    assert len(delivered) + left_out == 150
    for layout in epoch.layouts:
        assert len({rank.steps for rank in layout.ranks}) == 1


@given(worlds=st.lists(WORLDS, min_size=2, max_size=3), shares=st.lists(st.floats(0, 1), min_size=2, max_size=2))
def test_the_budget_holds_in_every_stage(worlds: list[int], shares: list[float]) -> None:
    epoch = _Epoch(worlds, shares, Batching(batch_bins=4_000), 300, seed=1)
    for layout in epoch.layouts:
        for rank in range(layout.world_size):
            plan = layout.plan(rank)
            assert (plan.longest * np.diff(plan.splits) <= 4_000).all()


@pytest.mark.parametrize("policy", ["split", "pad", "drop", "off"])
@pytest.mark.parametrize("left", [0, 1, 2, 5])
def test_a_rest_smaller_than_the_world_can_still_be_finished(policy: EqualSteps, left: int) -> None:
    corpus = corpus_of(np.full(20, 100), total_shards=1)
    batching = Batching(batch_size=1, equal_steps=policy)
    stages = [Stage(1, 1, 20 - left)]
    rest = lay_out_rest(corpus, stages, 4, 4, batching, epoch=0)
    before = _deliveries(lay_out_epoch(corpus, 1, 1, batching, epoch=0), 20 - left)
    after = _deliveries(rest)
    assert len(after) == len(set(after)) and not set(before) & set(after)
    steps = [rest.plan(rank).steps for rank in range(4)]
    if policy == "drop":
        assert len(before + after) + sum(rank.dropped_utterances for rank in rest.ranks) == 20
    else:
        assert sorted(before + after) == list(range(20))
    if policy != "off":
        assert len(set(steps)) == 1
    assert sum(rank.utterances for rank in rest.ranks) == len(after)


def test_what_is_left_is_dealt_evenly_and_lies_together() -> None:
    frames = speech_like(6_000)
    corpus = corpus_of(frames, tars=8, total_shards=8)
    rest = lay_out_rest(corpus, [Stage(8, 8, 4)], 5, 5, Batching(batch_bins=60_000), epoch=0)
    dealt = [np.sort(rest.plan(rank).rows) for rank in range(5)]
    assert all(dealt[rank][-1] < dealt[rank + 1][0] for rank in range(4))
    audio = [int(frames[rows].sum()) for rows in dealt]
    assert max(audio) - min(audio) <= 2 * frames.max()


@given(n=st.integers(0, 60), world_size=st.integers(1, 9), seed=st.integers(0, 2**32))
def test_dealing_is_a_partition_without_empty_parts(n: int, world_size: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    frames = random.integers(1, 3_000, 200).astype(np.int32)
    rows = np.sort(random.choice(200, n, replace=False))
    dealt = deal_rest(rows, frames, world_size)
    assert len(dealt) == world_size
    assert np.concatenate(dealt).tolist() == rows.tolist()
    if n >= world_size:
        assert all(part.size for part in dealt)


def test_stages_are_shuffled_differently() -> None:
    corpus = corpus_of(speech_like(400), total_shards=2)
    batching = Batching(batch_size=4)
    first = lay_out_rest(corpus, [Stage(2, 2, 0)], 2, 2, batching, epoch=0).plan(0)
    assert first.rows.tolist() != lay_out_epoch(corpus, 2, 2, batching, epoch=0).plan(0).rows.tolist()


def test_golden_rest() -> None:
    lengths: NDArray[np.int64] = 100 + np.arange(500) * 7919 % 1500
    corpus = corpus_of(lengths, tars=3, total_shards=6)
    stages = [Stage(3, 6, 2), Stage(2, 6, 1)]
    rest = lay_out_rest(
        corpus, stages, 6, 6, Batching(batch_bins=9_000), epoch=4, seed=11, rotation=Rotation(epoch=1, shards=5)
    )
    digest = hashlib.sha256()
    for rank in range(6):
        digest.update(rest.plan(rank).rows.astype("<i8").tobytes())
        digest.update(rest.plan(rank).splits.astype("<i8").tobytes())
    assert digest.hexdigest()[:16] == "fad6245202ff8dc1"


def test_rotation_from_the_start_is_the_formula() -> None:
    for epoch, rank in itertools.product(range(9), range(3)):
        assert Rotation().index(epoch, rank, 3, 12) == (epoch * 3 + rank) % 12


@given(
    worlds=st.lists(st.sampled_from([1, 2, 3, 4, 6, 12]), min_size=1, max_size=6),
    epochs=st.lists(st.integers(1, 5), min_size=6, max_size=6),
    cut=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_the_rotation_goes_on_from_what_was_consumed(worlds: list[int], epochs: list[int], cut: list[bool]) -> None:
    """Whatever the world sizes, the logical shards come in one unbroken round."""
    shards_read: list[int] = []
    course, epoch = Course(), 0
    for i, world_size in enumerate(worlds):
        for _ in range(epochs[i]):
            now = course.at(epoch, 12)
            if not now.stages:
                shards_read += [now.rotation.index(epoch, rank, world_size, 12) for rank in range(world_size)]
            epoch += 1
        if i + 1 < len(worlds):
            following = worlds[i + 1]
            if cut[i]:
                # The change comes in the middle of an epoch that this world size has begun.
                now = course.at(epoch, 12)
                shards_read += [now.rotation.index(epoch, rank, world_size, 12) for rank in range(world_size)]
                course = course.change_world(epoch, Stage(world_size, 12, 5), following, 12)
            else:
                course = course.change_world(epoch, Stage(world_size, 12, 0), following, 12)
    assert shards_read == [i % 12 for i in range(len(shards_read))]


def test_a_change_twice_before_any_step_leaves_no_stage() -> None:
    course = Course().change_world(5, Stage(4, 12, 0), 6, 12).change_world(5, Stage(6, 12, 0), 3, 12)
    assert course == Course(Rotation(5, 20 % 12))
    cut = Course().change_world(5, Stage(4, 12, 7), 6, 12)
    assert cut.change_world(5, Stage(6, 12, 0), 3, 12) == cut


def test_total_shards_may_follow_the_world_size_and_nothing_else() -> None:
    assert Course().change_world(2, Stage(4, 4, 0), 6, 6) == Course()
    assert Course().change_world(2, Stage(4, 4, 3), 6, 6).stages == (Stage(4, 4, 3),)
    for left, world_size, total_shards in ((Stage(4, 8, 3), 4, 16), (Stage(4, 8, 3), 16, 16), (Stage(4, 4, 0), 4, 8)):
        with pytest.raises(ShardingError, match=f"total_shards was {left.total_shards}, is {total_shards}"):
            Course().change_world(2, left, world_size, total_shards)
