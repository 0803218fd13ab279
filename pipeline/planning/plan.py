"""The plan of an epoch: which utterances each step of a rank delivers (G7).

    lay_out_epoch    all ranks: length orders, batches, K, numbers
    lay_out_rest     the same for what is left of an epoch when the world size changes in its middle (G9)
    EpochLayout.plan one rank: its rows, step by step
    plan_epoch       lay_out_epoch, for the rank that asks

A plan is a function of (corpus, seed, epoch, rank, world_size, total_shards, filters, batching), and of nothing else;
after a change of world size, of the stages of the epoch so far and of where the rotation stood.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, ShardingError
from .bucket import LengthOrder, bucket_edges, length_order
from .corpus import Corpus
from .cut import charge_lengths, count_in_batches
from .elastic import Stage, deal_rest
from .espnet import batches_of_rank
from .hashing import Stream, stage_salt, stream_key
from .layout import EpochLayout as EpochLayout
from .layout import EpochPlan as EpochPlan
from .layout import Window
from .order import order_steps
from .rotation import Rotation
from .settings import Batching, Sharding, parse_int, parse_seed
from .steps import Cut, cut_equally, match_steps
from .summary import add_up, longest_of_batches, summarise_rank
from .windows import check_windows, order_windows


def plan_epoch(
    corpus: Corpus,
    sharding: Sharding,
    batching: Batching,
    *,
    epoch: int,
    seed: int = 0,
    rotation: Rotation | None = None,
) -> EpochPlan:
    """Return the plan of one rank for one epoch.

    Args:
        corpus: the dataset, with filters and logical shards.
        sharding: who reads.
        batching: how utterances become batches.
        epoch: number of the epoch, from 0.
        seed: of the run; the same on all ranks.
        rotation: where the rotation stands after a change of world size; None for the start of a run.

    Raises:
        ConfigError: an utterance is longer than batch_bins and oversize is "error", or a number is out of range.
        ShardingError: corpus and sharding do not fit together, or a rank has too few utterances.
    """
    layout = lay_out_epoch(
        corpus, sharding.world_size, sharding.total_shards, batching, epoch=epoch, seed=seed, rotation=rotation
    )
    return layout.plan(sharding.rank)


def windows_of_rank(
    corpus: Corpus, sharding: Sharding, batching: Batching, *, epoch: int, seed: int, rotation: Rotation | None = None
) -> list[NDArray[np.int64]]:
    """Return the ordinals of each window of one rank, ascending, window after window; without making batches."""
    shards = _logical_shards(rotation, epoch, sharding.world_size, sharding.total_shards)
    rows = corpus.rows_of_rank(shards, sharding.rank, seed=seed, epoch=batching.hashed_epoch(epoch))
    windows = batching.windows or 1
    parts = corpus.split_windows(_without_oversize(rows, corpus, batching), windows)
    if not batching.shuffle:
        return parts
    return [parts[number] for number in order_windows(windows, seed=seed, epoch=epoch).tolist()]


def lay_out_epoch(
    corpus: Corpus,
    world_size: int,
    total_shards: int,
    batching: Batching,
    *,
    epoch: int,
    seed: int = 0,
    rotation: Rotation | None = None,
) -> EpochLayout:
    """Return one epoch of all ranks; arguments and errors as for `plan_epoch`."""
    seed = parse_seed(seed)
    epoch = parse_int("epoch", epoch, 0)
    if total_shards != corpus.total_shards:
        raise ShardingError(
            f"total_shards={total_shards}, but the corpus was cut into {corpus.total_shards} logical shards: "
            "build it with the same total_shards"
        )
    over_budget = count_oversize(corpus, batching)
    shards = _logical_shards(rotation, epoch, world_size, total_shards)
    dealing = _Dealing(epoch, seed, batching)
    coming = corpus.epoch_rows(shards, seed=seed, epoch=dealing.hashed_epoch)
    rows = [_without_oversize(of_rank, corpus, batching) for of_rank in coming]
    filtered = dict(corpus.filtered)
    if batching.oversize == "drop":
        filtered["kept"] -= over_budget
        filtered["over_budget"] = over_budget
    return _lay_out(corpus, rows, shards, total_shards, batching, filtered, dealing)


def _logical_shards(rotation: Rotation | None, epoch: int, world_size: int, total_shards: int) -> list[int]:
    now = rotation or Rotation()
    return [now.index(epoch, rank, world_size, total_shards) for rank in range(world_size)]


def lay_out_rest(
    corpus: Corpus,
    stages: Sequence[Stage],
    world_size: int,
    total_shards: int,
    batching: Batching,
    *,
    epoch: int,
    seed: int = 0,
    rotation: Rotation | None = None,
) -> EpochLayout:
    """Return what is left of an epoch, dealt anew to other ranks (G9).

    Args:
        corpus: the dataset, cut into the logical shards of the first stage.
        stages: world sizes that the epoch was begun with, and the steps each of them made; at least one.
        world_size: number of ranks now.
        total_shards: number of logical shards now.
        batching: how utterances become batches, now as before.
        epoch: number of the epoch.
        seed: of the run.
        rotation: where the rotation stood for the first stage.

    Raises:
        ShardingError: the corpus is not cut into the logical shards of the first stage.
    """
    first = stages[0]
    layout = lay_out_epoch(
        corpus, first.world_size, first.total_shards, batching, epoch=epoch, seed=seed, rotation=rotation
    )
    following = [(stage.world_size, stage.total_shards) for stage in stages[1:]]
    for number, (stage, (ranks, shards)) in enumerate(
        zip(stages, [*following, (world_size, total_shards)], strict=True), start=1
    ):
        left = corpus.split_parts(layout.remaining(stage.steps))
        dealt = zip(*(deal_rest(of_part, corpus.frames, ranks) for of_part in left), strict=True)
        rows = [np.concatenate(of_rank) for of_rank in dealt]
        layout = _lay_out(
            corpus,
            rows,
            [None] * ranks,
            shards,
            batching,
            layout.filtered,
            _Dealing(epoch, seed, batching, number),
        )
    return layout


@dataclass(frozen=True)
class _Dealing:
    """What the hashes of one layout depend on."""

    epoch: int
    seed: int
    batching: Batching
    stage: int = 0
    window: int = 0
    group: int = 0

    @property
    def hashed_epoch(self) -> int:
        """The epoch as hashes know it: without shuffling, all are alike."""
        return self.batching.hashed_epoch(self.epoch)

    @property
    def salt(self) -> int:
        """What tells the hashes of this layout from those of other stages, windows and groups."""
        return self.stage | self.window << 32 | self.group << 48


def _lay_out(
    corpus: Corpus,
    rows: list[NDArray[np.int64]],
    shards: Sequence[int | None],
    total_shards: int,
    batching: Batching,
    filtered: dict[str, int],
    dealing: _Dealing,
) -> EpochLayout:
    """Return the layout of an epoch, or of its rest, in which each rank delivers these rows."""
    windows = batching.windows or 1
    if windows > 1:
        sizes = [max(part.size for part in corpus.split_parts(of_rank)) for of_rank in rows]
        if dealing.stage:  # what is left may be little
            windows = max(1, min(windows, *sizes))
        check_windows(sizes, windows)
    parts = [rows] if windows == 1 else zip(*(corpus.split_windows(of_rank, windows) for of_rank in rows), strict=True)
    laid_out = [
        _lay_out_window(corpus, list(of_window), shards, batching, replace(dealing, window=number))
        for number, of_window in enumerate(parts)
    ]
    order = np.arange(windows)
    if batching.shuffle:
        order = order_windows(windows, seed=dealing.seed, epoch=dealing.epoch, stage=dealing.stage)
    return EpochLayout(
        dealing.epoch,
        len(rows),
        total_shards,
        tuple(add_up(of_rank, batching) for of_rank in zip(*(window.ranks for window in laid_out), strict=True)),
        filtered,
        tuple(laid_out[number] for number in order.tolist()),
    )


def _lay_out_window(
    corpus: Corpus,
    rows: list[NDArray[np.int64]],
    shards: Sequence[int | None],
    batching: Batching,
    dealing: _Dealing,
) -> Window:
    groups = zip(*(corpus.split_groups(of_rank) for of_rank in rows), strict=True)
    window = f", window {dealing.window}" if batching.windows else ""
    cut_groups = [
        _cut_group(
            corpus,
            list(of_group),
            [f"logical shard {shard}{corpus.name_group(group)}{window}" for shard in shards],
            batching,
            replace(dealing, group=group),
        )
        for group, of_group in enumerate(groups)
    ]
    orders = [LengthOrder.join(of_rank) for of_rank in zip(*(orders for orders, _ in cut_groups), strict=True)]
    cuts = [Cut.join(of_rank) for of_rank in zip(*(cuts for _, cuts in cut_groups), strict=True)]
    lengths = [order.lengths for order in orders]
    longest = [longest_of_batches(of_rank, cut) for of_rank, cut in zip(lengths, cuts, strict=True)]
    numbers = zip(range(len(rows)), shards, lengths, cuts, longest, strict=True)
    return Window(
        tuple(summarise_rank(*of_rank, batching) for of_rank in numbers),
        tuple(order.rows for order in orders),
        tuple(cuts),
        tuple(longest),
        tuple(_order_steps(cuts, longest, batching, dealing)),
    )


def _cut_group(
    corpus: Corpus, rows: list[NDArray[np.int64]], shards: Sequence[str], batching: Batching, dealing: _Dealing
) -> tuple[list[LengthOrder], list[Cut]]:
    """Return order and batches of each rank, for utterances that are batched together."""
    epoch, seed, salt, rest = dealing.hashed_epoch, dealing.seed, dealing.salt, bool(dealing.stage)
    lent = _lend(rows, corpus.frames) if rest and batching.equal_steps in ("split", "pad") else []
    key = stream_key(Stream.UTTERANCES, seed, epoch, *stage_salt(salt))
    if batching.rules is None:
        edges = bucket_edges(int(corpus.frames.max()), batching.bucket_width)
        orders = [length_order(of_rank, corpus.frames, edges, key) for of_rank in rows]
        everything = [order.rows.size for order in orders]
        if batching.fewest > 1 and not rest:
            orders = [_without_small_rest(order, batching) for order in orders]
        lengths = [order.lengths for order in orders]
        cuts = cut_equally(lengths, shards, batching, seed=seed, epoch=epoch, salt=salt, rest=rest)
        left_out = [all_of_it - order.rows.size for all_of_it, order in zip(everything, orders, strict=True)]
        cuts = [cut.without(utterances) for cut, utterances in zip(cuts, left_out, strict=True)]
    else:
        made = [batches_of_rank(corpus, of_rank, batching, key, rest=rest) for of_rank in rows]
        orders = [LengthOrder(of_rank.rows, corpus.frames[of_rank.rows]) for of_rank in made]
        bounds = [of_rank.bounds for of_rank in made]
        cuts = match_steps(bounds, shards, batching, seed=seed, epoch=epoch, salt=salt, rest=rest)
        cuts = [cut.without(of_rank.left_out) for cut, of_rank in zip(cuts, made, strict=True)]
    for rank in lent:
        cuts[rank] = replace(cuts[rank], filler=np.ones_like(cuts[rank].filler))
    return orders, cuts


def _without_small_rest(order: LengthOrder, batching: Batching) -> LengthOrder:
    """Return an order without the last utterances, if they are too few for min_batch_size."""
    size = count_in_batches(charge_lengths(order.lengths, batching), batching)
    return LengthOrder(order.rows[:size], order.lengths[:size])


def _lend(rows: list[NDArray[np.int64]], frames: NDArray[np.int32]) -> list[int]:
    """Give ranks without utterances the shortest of another rank, to repeat as filler; return which ranks got it."""
    empty = [rank for rank, of_rank in enumerate(rows) if not of_rank.size]
    everything = np.concatenate(rows)
    if not everything.size:
        return []
    shortest = everything[[int(np.argmin(frames[everything]))]]
    for rank in empty:
        rows[rank] = shortest
    return empty


def count_oversize(corpus: Corpus, batching: Batching) -> int:
    """Return how many kept utterances do not fit the budget.

    Raises:
        ConfigError: there are some and oversize is "error", or all do not and it is "drop".
    """
    limit = batching.longest_frames
    if limit is None:
        return 0
    over = corpus.frames > limit
    over &= corpus.kept
    count = int(np.count_nonzero(corpus.once(over)))
    if count and batching.oversize == "error":
        ordinals = np.flatnonzero(over)
        longest = int(ordinals[np.argmax(corpus.frames[ordinals])])
        seconds = float(limit * corpus.frame_shift)
        enough = batching.fewest * batching.cost_of(int(corpus.frames[longest]))
        others = "oversize='drop' or 'alone'" if batching.fewest == 1 else "oversize='drop', or lower min_batch_size"
        raise ConfigError(
            f"{count} of {corpus.filtered['kept']} utterances are longer than batch_bins={batching.batch_bins} "
            f"allows{_in_batches_of(batching)} ({limit} frames, {seconds:g} s); the longest is "
            f"{corpus.describe(longest)}: set batch_bins to {enough} or more, max_seconds={seconds:g}, or {others}"
        )
    if count and count == corpus.filtered["kept"] and batching.oversize == "drop":
        raise ConfigError(
            f"all {count} utterances are longer than batch_bins={batching.batch_bins} allows{_in_batches_of(batching)} "
            f"({limit} frames, {float(limit * corpus.frame_shift):g} s), and oversize='drop' drops them: set a larger "
            "batch_bins"
        )
    return count


def _in_batches_of(batching: Batching) -> str:
    return "" if batching.min_batch_size is None else f" with min_batch_size={batching.min_batch_size}"


def _without_oversize(rows: NDArray[np.int64], corpus: Corpus, batching: Batching) -> NDArray[np.int64]:
    limit = batching.longest_frames
    if limit is None or batching.oversize != "drop":
        return rows
    return rows[corpus.frames[rows] <= limit]


def _order_steps(
    cuts: list[Cut], longest: list[NDArray[np.int32]], batching: Batching, dealing: _Dealing
) -> list[NDArray[np.int64]]:
    """Return the order of the steps of each rank: one and the same, unless ranks have their own numbers of steps."""
    costs: list[NDArray[np.int64] | None] = [None] * len(cuts)
    if batching.longest_first:
        own = [cut.sizes * batching.costs_of(of_rank) for cut, of_rank in zip(cuts, longest, strict=True)]
        if batching.equal_steps == "off":
            costs = list(own)
        else:
            costs = [np.maximum.reduce(own)] * len(cuts)
    if not batching.shuffle:
        return [np.arange(cut.taken.size) for cut in cuts]
    which = {"seed": dealing.seed, "epoch": dealing.epoch, "stage": dealing.salt}
    if batching.equal_steps == "off":
        pairs = zip(cuts, costs, strict=True)
        return [order_steps(cut.taken.size, **which, costs=cost) for cut, cost in pairs]
    return [order_steps(cuts[0].taken.size, **which, costs=costs[0])] * len(cuts)
