"""Ids: which of a listing are refused, because they can't be stored or because they are there twice."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from uttershard.pipeline.dataset.members import key_problem

from .listing import Listing, Refusal, printable

_SURELY_GOOD = r"^[\x21-\x7e]+$"
"""Printable ASCII without blanks: what nearly all ids are, tested in Arrow, so that Python sees only the others."""


def refuse_bad_ids(listing: Listing) -> Listing:
    """Refuse ids that are empty, hold control characters or come a second time; both places of a pair are named."""
    table = listing.utterances
    refused = list(listing.refused)
    kept = np.ones(table.num_rows, dtype=bool)
    for row in _doubtful_rows(table["key"]):
        key = table["key"][row].as_py()
        problem = key_problem(key)
        if problem is not None:
            kept[row] = False
            refused.append(Refusal(printable(key), table["origin"][row].as_py(), problem))
    for row, first in duplicate_rows(table["key"]):
        if kept[row]:
            kept[row] = False
            here, there = table["origin"][row].as_py(), table["origin"][first].as_py()
            refused.append(Refusal(table["key"][row].as_py(), here, f"the id is there twice: at {there} and at {here}"))
    utterances = table if kept.all() else table.filter(pa.array(kept))
    return Listing(utterances, refused, listing.root, listing.searched)


def duplicate_rows(keys: pa.ChunkedArray) -> list[tuple[int, int]]:
    """Return (row, row of the first with the same key) of each row whose key came before."""
    if pc.count_distinct(keys).as_py() == len(keys):
        return []
    counts = pa.table({"key": keys}).group_by("key").aggregate([("key", "count")])
    repeated = counts.filter(pc.greater(counts["key_count"], 1))["key"]
    rows = np.flatnonzero(pc.is_in(keys, repeated.combine_chunks()).to_numpy())
    first: dict[str, int] = {}
    pairs = []
    for row, key in zip(rows.tolist(), keys.take(pa.array(rows)).to_pylist(), strict=True):
        if first.setdefault(key, row) != row:
            pairs.append((row, first[key]))
    return pairs


def _doubtful_rows(keys: pa.ChunkedArray) -> list[int]:
    good = pc.match_substring_regex(keys, _SURELY_GOOD).to_numpy()
    return [int(row) for row in np.flatnonzero(~good)]
