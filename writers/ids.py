"""Ids: which of a listing are refused, because they can't be stored or because they are there twice."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray
from uttershard.pipeline.dataset.members import key_problem

from .listing import Listing, Refusal, printable

_RUN = 65_536
_SURELY_GOOD = r"^[\x21-\x7e]+$"
"""Printable ASCII without blanks: what nearly all ids are, tested in Arrow, so that Python sees only the others."""


def refuse_bad_ids(listing: Listing) -> Listing:
    """Refuse ids that are empty, hold control characters or come a second time; both places of a pair are named.

    The listing itself is changed, and returned.
    """
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
    del table
    if not kept.all():
        mask = pa.array(kept)
        listing.rebuild(lambda column: column.filter(mask))
    listing.refused = refused
    return listing


def duplicate_rows(keys: pa.ChunkedArray) -> list[tuple[int, int]]:
    """Return (row, row of the first with the same key) of each row whose key came before."""
    hashes = hash_strings(keys)
    ordered = np.sort(hashes)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(repeated):
        return []
    # Those that share a hash with another: nearly always because they are equal, which is looked at now.
    rows = np.flatnonzero(np.isin(hashes, repeated))
    first: dict[str, int] = {}
    pairs = []
    for row, key in zip(rows.tolist(), keys.take(pa.array(rows)).to_pylist(), strict=True):
        if first.setdefault(key, row) != row:
            pairs.append((row, first[key]))
    return pairs


def hash_strings(strings: pa.ChunkedArray) -> NDArray[np.uint64]:
    """Return 64 bits of each string: 8 bytes where a hash table of strings takes 130."""
    runs = (strings.slice(start, _RUN).to_pylist() for start in range(0, len(strings), _RUN))
    digests = (xxhash.xxh3_64_intdigest(each.encode("utf-8")) for run in runs for each in run)
    return np.fromiter(digests, np.uint64, len(strings))


def _doubtful_rows(keys: pa.ChunkedArray) -> list[int]:
    good = pc.match_substring_regex(keys, _SURELY_GOOD).to_numpy()
    return [int(row) for row in np.flatnonzero(~good)]
