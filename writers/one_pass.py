"""Cutting many segments out of one recording while it is decoded once."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def cut_in_one_pass(
    blocks: Iterable[NDArray[Any]], ranges: Mapping[int, tuple[int, int]]
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Cut ranges of samples, which may overlap, out of consecutive blocks, in the order of their ends.

    No more blocks are held than the ranges that have begun reach back.

    Example:
        >>> blocks = [np.arange(0, 4), np.arange(4, 8)]
        >>> [(name, cut.tolist()) for name, cut in cut_in_one_pass(blocks, {7: (3, 6), 9: (0, 2)})]
        [(9, [0, 1]), (7, [3, 4, 5])]
    """
    pending = sorted(ranges.items(), key=lambda item: item[1][1])
    held: list[NDArray[Any]] = []
    start = end = 0
    for block in blocks:
        if not pending:
            return
        held.append(block)
        end += len(block)
        while pending and pending[0][1][1] <= end:
            name, (first, last) = pending.pop(0)
            yield name, _join(held, first - start, last - start)
        needed = min((first for _, (first, _) in pending), default=end)
        while held and start + len(held[0]) <= needed:
            start += len(held.pop(0))


def _join(held: list[NDArray[Any]], first: int, last: int) -> NDArray[Any]:
    pieces, position = [], 0
    for block in held:
        piece = block[max(0, first - position) : max(0, last - position)]
        position += len(block)
        if len(piece):
            pieces.append(piece)
    return np.concatenate(pieces)
