"""Batches of one rank by the rules of ESPnet2's samplers: the very batches that they give for the same lengths.

rows of a logical shard, in dataset order --make_batches--> rows in the order of the batches, and where each begins

The rules are those of espnet2.samplers in espnet 202511, quirks included: `length` and `numel` close a batch *after*
the utterance that exceeds batch_bins; `folded` is folded by the shortest utterance of a batch. What is random there
(`catbel`, `catpow`) follows the same rule with hashes for dice, so that it is the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import UttershardError
from .batch_types import FRAMES, EspnetRules
from .categories import draw_balanced, draw_by_power, shuffled
from .corpus import Corpus
from .settings import Batching


@dataclass(frozen=True, eq=False)
class Batches:
    """Batches of one rank: int64[m] ordinals, and int64[batches + 1], batch i holds `rows[bounds[i]:bounds[i + 1]]`."""

    rows: NDArray[np.int64]
    bounds: NDArray[np.int64]
    left_out: int = 0
    """Utterances that the rule leaves out."""


def batches_of_rank(
    corpus: Corpus, rows: NDArray[np.int64], batching: Batching, key: int, *, rest: bool = False
) -> Batches:
    """Return the batches of one rank under `batching.rules`.

    Args:
        corpus: the dataset, with the columns of the rules.
        rows: int64[n], what the rank reads, ascending.
        batching: the rules and their budget.
        key: of the hashes.
        rest: whether these are left over of an epoch, and what had to be drawn has been drawn.
    """
    rules, budget = batching.rules, batching.batch_bins or batching.batch_size
    if rules is None or budget is None:
        raise UttershardError(f"internal error: {batching} has no rules of ESPnet: please report these settings")
    real = corpus.real_rows(rows)
    names = rules.length_columns or ()
    lengths = np.empty((len(names), rows.size), np.int64)
    for number, name in enumerate(names):
        if name == FRAMES or corpus.lengths is None:
            lengths[number] = corpus.frames[rows]
        else:
            lengths[number] = corpus.lengths[number, real]
    categories = None if corpus.categories is None else corpus.categories[real]
    return make_batches(rows, lengths, categories, rules, budget, key, rest=rest)


def make_batches(
    rows: NDArray[np.int64],
    lengths: NDArray[np.int64],
    categories: NDArray[np.int32] | None,
    rules: EspnetRules,
    budget: int,
    key: int,
    *,
    rest: bool = False,
) -> Batches:
    """Return the batches of utterances; none of them is empty.

    Args:
        rows: int64[n], their ordinals, in dataset order.
        lengths: int64[C, n], of each of `rules.length_columns`; [0, n] for types that look at none.
        categories: int32[n], codes of `rules.category`; None without.
        rules: batch type and settings.
        budget: batch_size or batch_bins, whichever the type uses.
        key: of the hashes of the types that draw.
        rest: whether these are left over of an epoch, and what had to be drawn has been drawn.
    """
    if not rows.size:
        return Batches(rows, np.zeros(1, np.int64))
    drop_last, least = bool(rules.drop_last), rules.min_batch_size or 1
    match rules.batch_type:
        case "unsorted":
            bounds = split_evenly(rows.size, budget, drop_last=drop_last)
            return Batches(rows[: bounds[-1]], bounds, int(rows.size - bounds[-1]))
        case "sorted":
            return _sorted(rows, lengths[0], rules, budget)
        case "folded":
            return _folded(rows, lengths, categories, rules, budget)
        case "catbel" if rest:
            return Batches(rows[shuffled(rows.size, key)], split_evenly(rows.size, budget, drop_last=False))
        case "catbel" if categories is not None:
            positions, bounds = draw_balanced(categories, budget, key)
            return Batches(rows[positions], bounds, int(rows.size - positions.size))
        case "catpow" if rest:
            positions = shuffled(rows.size, key)
            costs = lengths[0][positions]
            bounds = close_when_over(costs, budget, 1, most=rules.max_batch_size, drop_last=False)
            return Batches(rows[positions], bounds)
        case "catpow" if categories is not None:
            positions = draw_by_power(
                categories, lengths[0], rules.upsampling_factor or 0.0, rules.scaling_factor or 1.0, key
            )
            costs = lengths[0][positions]
            bounds = close_when_over(costs, budget, least, most=rules.max_batch_size, drop_last=drop_last)
            positions = positions[: bounds[-1]]
            # A repetition is no utterance that was left out, and what was never drawn is.
            return Batches(rows[positions], bounds, int(rows.size - np.unique(positions).size))
    order = np.argsort(lengths[0], kind="stable")
    dims = np.array(rules.length_dims or (1,) * len(lengths), np.int64)
    costs = (lengths[:, order] * dims[:, None]).sum(axis=0)
    sizes = cut_by_bins(costs, budget, least, drop_last=drop_last, padded=bool(rules.padded))
    return _arranged(rows[order], _bounds(sizes), rules)


def split_evenly(count: int, batch_size: int, *, drop_last: bool) -> NDArray[np.int64]:
    """Return the bounds of batches of at least batch_size, as equal as can be; or of exactly that and no rest."""
    batches = max(count // batch_size, 1)
    if drop_last:
        return np.minimum(np.arange(batches + 1) * batch_size, count)
    return np.arange(batches + 1) * count // batches


def cut_by_bins(
    costs: NDArray[np.int64], batch_bins: int, least: int, *, drop_last: bool, padded: bool
) -> NDArray[np.int64]:
    """Return the utterances of each batch under `length` and `numel`.

    Args:
        costs: int64[n], lengths of each utterance, added up over the columns; sorted by the first column.
        batch_bins: a batch is closed by the utterance that brings it over this.
        least: fewest utterances of a batch.
        drop_last: leave out the rest, unless it is all there is.
        padded: each utterance counts as long as the last.
    """
    sizes: list[int] = []
    size = total = 0
    # One pass over plain integers: with several columns the costs do not ascend, and there is nothing to search by.
    for cost in costs.tolist():
        size += 1
        total += cost
        if size >= least and (size * cost if padded else total) > batch_bins:
            sizes.append(size)
            size = total = 0
    if size and (not drop_last or not sizes):
        sizes.append(size)
    return _spread_last(sizes, least, first=-1)


def close_when_over(
    costs: NDArray[np.int64], batch_bins: int, least: int, *, most: int | None, drop_last: bool
) -> NDArray[np.int64]:
    """Return the bounds of batches of utterances in a given order, each closed when it is over batch_bins, or full."""
    bounds = [0]
    size = total = 0
    for position, cost in enumerate(costs.tolist(), start=1):
        size += 1
        total += cost
        if (total > batch_bins and size >= least) or size == most:
            bounds.append(position)
            size = total = 0
    if size and not drop_last and size >= least:
        bounds.append(costs.size)
    return np.array(bounds, np.int64)


def fold_sizes(
    lengths: NDArray[np.int64],
    fold_lengths: tuple[int, ...],
    batch_size: int,
    least: int,
    *,
    drop_rest: bool,
) -> NDArray[np.int64]:
    """Return the utterances of each batch under `folded`.

    Args:
        lengths: int64[C, n], ascending in the first column.
        fold_lengths: for each column, the length from which a batch has half of batch_size.
        batch_size: utterances of a batch of short ones.
        least: fewest utterances of a batch.
        drop_rest: leave out the utterances that do not fill the last batch.
    """
    factors = (lengths // np.array(fold_lengths, np.int64)[:, None]).max(axis=0).tolist()
    sizes: list[int] = []
    start, count = 0, len(factors)
    while start < count:
        size = max(least, batch_size // (1 + factors[start]))
        if drop_rest and start + size > count:
            break
        sizes.append(min(size, count - start))
        start += sizes[-1]
    return _spread_last(sizes, least, first=-2)


def _spread_last(sizes: list[int], least: int, *, first: int) -> NDArray[np.int64]:
    """Spread a last batch that is too small over the others: one utterance each, backwards from the one at `first`.

    Where `folded` runs out of batches to go back to, ESPnet2 stops with an IndexError; here it goes round.
    """
    if len(sizes) > 1 and sizes[-1] < least:
        rest = sizes.pop()
        for i in range(rest):
            sizes[(first - i % len(sizes)) % len(sizes)] += 1
    return np.array(sizes, np.int64)


def _sorted(rows: NDArray[np.int64], lengths: NDArray[np.int64], rules: EspnetRules, batch_size: int) -> Batches:
    order = np.argsort(-lengths if rules.sort_in_batch == "descending" else lengths, kind="stable")
    bounds = split_evenly(rows.size, batch_size, drop_last=bool(rules.drop_last))
    taken, left_out = rows[order][: bounds[-1]], int(rows.size - bounds[-1])
    if rules.sort_in_batch != rules.sort_batch:
        taken, bounds = _backwards(*_each_backwards(taken, bounds))
    return Batches(taken, bounds, left_out)


def _folded(
    rows: NDArray[np.int64],
    lengths: NDArray[np.int64],
    categories: NDArray[np.int32] | None,
    rules: EspnetRules,
    batch_size: int,
) -> Batches:
    order = np.argsort(lengths[0], kind="stable")
    codes = np.zeros(rows.size, np.int32) if categories is None else categories[order]
    present, first = np.unique(codes, return_index=True)
    parts: list[Batches] = []
    # Category after category, in the order in which they appear when all is sorted by length.
    for code in present[np.argsort(first)]:
        chosen = order[codes == code]
        sizes = fold_sizes(
            lengths[:, chosen],
            rules.fold_lengths or (),
            batch_size,
            rules.min_batch_size or 1,
            # There, drop_last spares the first category, to leave at least one batch.
            drop_rest=bool(rules.drop_last) and bool(parts),
        )
        parts.append(_arranged(rows[chosen], _bounds(sizes), rules))
    starts = np.cumsum([0, *(part.bounds[-1] for part in parts)])
    bounds = [part.bounds[1:] + start for part, start in zip(parts, starts[:-1], strict=True)]
    return Batches(
        np.concatenate([part.rows for part in parts]),
        np.concatenate([np.zeros(1, np.int64), *bounds]),
        sum(part.left_out for part in parts),
    )


def _bounds(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))


def _arranged(ascending: NDArray[np.int64], bounds: NDArray[np.int64], rules: EspnetRules) -> Batches:
    """Return batches cut from rows of ascending length, in the order that the settings ask for."""
    rows = ascending[: bounds[-1]]
    left_out = int(ascending.size - rows.size)
    if (rules.sort_in_batch == "descending") != (rules.sort_batch == "descending"):
        rows, bounds = _each_backwards(rows, bounds)
    if rules.sort_batch == "descending":
        rows, bounds = _backwards(rows, bounds)
    return Batches(rows, bounds, left_out)


def _each_backwards(rows: NDArray[np.int64], bounds: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Turn the utterances inside each batch around."""
    mirrored = np.repeat(bounds[:-1] + bounds[1:] - 1, np.diff(bounds)) - np.arange(rows.size)
    return rows[mirrored], bounds


def _backwards(rows: NDArray[np.int64], bounds: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Turn all around: the order of the batches, and the utterances inside them."""
    return rows[::-1], bounds[-1] - bounds[::-1]
