"""Draws that balance categories, after ESPnet2's `catbel` and `catpow`, with hashes for dice."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .hashing import hash_ordinals, mix

_PRECISION = 40
"""Bits of a probability: far more than any draw shows, far fewer than two mathematics libraries agree in."""


def shuffled(count: int, key: int) -> NDArray[np.int64]:
    """Return the numbers below `count` in the order of their hashes."""
    return np.argsort(hash_ordinals(key, np.arange(count, dtype=np.int64)), kind="stable").astype(np.int64)


def draw_balanced(
    categories: NDArray[np.int32], batch_size: int, key: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions that are drawn, batch after batch, and the bounds of the batches.

    Args:
        categories: int32[n], codes of n utterances.
        batch_size: utterances of every batch.
        key: of the hashes.
    """
    order = shuffled(categories.size, key)
    taken, batches = take_balanced(categories[order], batch_size, np.unique(categories).size)
    return order[taken], np.arange(batches + 1) * batch_size


def take_balanced(drawn: NDArray[np.int32], batch_size: int, present: int) -> tuple[NDArray[np.int64], int]:
    """Walk utterances in the order drawn; pass those by that would be too many of their category in the batch.

    What was passed by does not come again in this epoch, and an incomplete last batch is left out.

    Args:
        drawn: int32[n], their categories.
        batch_size: utterances of a batch.
        present: number of categories.

    Returns:
        int64[m], the places taken, and the number of batches.
    """
    most = 1 if present >= batch_size else batch_size // present + 1
    taken: list[int] = []
    in_batch: dict[int, int] = {}
    for place, category in enumerate(drawn.tolist()):
        have = in_batch.get(category, 0)
        if have >= most:
            continue
        in_batch[category] = have + 1
        taken.append(place)
        if len(taken) % batch_size == 0:
            in_batch.clear()
    batches = len(taken) // batch_size
    return np.array(taken[: batches * batch_size], np.int64), batches


def draw_by_power(
    categories: NDArray[np.int32], lengths: NDArray[np.int64], power: float, scaling: float, key: int
) -> NDArray[np.int64]:
    """Return the positions of the utterances drawn, in the order of the draws.

    A category is drawn with a probability that goes with its share of all frames to `power`; its utterances come in
    turn, in an order of the epoch, and again from the first where they do not suffice.

    Args:
        categories: int32[n], codes of n utterances.
        lengths: int64[n].
        power: 1 draws categories by their frames, 0 alike.
        scaling: frames drawn, as a multiple of all frames.
        key: of the hashes.
    """
    codes = np.unique(categories, return_inverse=True)[1]
    total = int(lengths.sum())
    draws = int(int(total * scaling) / (total / lengths.size)) if total else 0
    drawn = _draw_categories(np.bincount(codes, weights=lengths).astype(np.float64), power, draws, key)
    return take_in_turn(codes, hash_ordinals(mix(key), np.arange(codes.size)), drawn)


def take_in_turn(codes: NDArray[np.int64], hashes: NDArray[np.uint64], drawn: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return an utterance for each category drawn: the next of its own in the order of the hashes, going round.

    Args:
        codes: int64[n], category of each utterance, every category from 0 on having one.
        hashes: uint64[n].
        drawn: int64[m], categories.
    """
    own = np.lexsort((hashes, codes))
    sizes = np.bincount(codes)
    starts = np.cumsum(sizes) - sizes
    by_category = np.argsort(drawn, kind="stable")
    counts = np.bincount(drawn, minlength=sizes.size)
    turns = np.empty(drawn.size, np.int64)
    # How many draws of the same category came before each.
    turns[by_category] = np.arange(drawn.size) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(own[starts[drawn] + turns % sizes[drawn]])


def category_probabilities(frames: NDArray[np.float64], power: float) -> NDArray[np.float64]:
    """Return the probability of each category: its share of all frames, to the power, normalised."""
    shares: NDArray[np.float64] = (frames / frames.sum()) ** power
    return np.asarray(shares / shares.sum())


def _draw_categories(frames: NDArray[np.float64], power: float, draws: int, key: int) -> NDArray[np.int64]:
    if not draws:
        return np.zeros(0, np.int64)
    limits = np.rint(np.cumsum(category_probabilities(frames, power)) * 2.0**_PRECISION).astype(np.uint64)
    dice = hash_ordinals(key, np.arange(draws)) >> np.uint64(64 - _PRECISION)
    return np.minimum(np.searchsorted(limits, dice, side="right"), frames.size - 1).astype(np.int64)
