"""Sizes of the audio files that a listing names: missing and empty files are refused before anything is read.

Local files only, by `stat`. The sizes go into the fingerprint, so that an audio file replaced between two runs of a
job is noticed, and into the estimate of how large the dataset will be.
"""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from uttershard.pipeline.dataset.files import local_path

from .listing import PIPE, SCHEMA, Listing, Refusal
from .locators import Place, parse_parts, parse_place

_CHUNK = 4096
_THREADS = 16
"""`stat` on a network file system is all waiting."""


def take_inventory(listing: Listing) -> Listing:
    """Add a column `size` (int64 bytes of the file; null for pipes and remote files) and sort by key.

    Sorted, since what follows (fingerprint, shuffle) must not depend on the order in which a corpus is listed.
    The table is taken over, and the listing that was given is empty afterwards: there is memory for one, not for two.
    """
    table = listing.utterances
    if not table.num_rows:
        return replace(listing, utterances=table.append_column("size", pa.nulls(0, pa.int64())))
    uris = table["uri"].combine_chunks().dictionary_encode()
    sizes, reasons = _look_up(uris.dictionary)
    file_of_row = uris.indices.to_numpy(zero_copy_only=False)
    refused = list(listing.refused)
    if reasons:
        bad = np.isin(file_of_row, list(reasons))
        for row in np.flatnonzero(bad).tolist():
            reason = reasons[int(file_of_row[row])]
            refused.append(Refusal(table["key"][row].as_py(), table["origin"][row].as_py(), reason))
    table = table.append_column("size", sizes.take(uris.indices))
    if reasons:
        table = table.filter(pa.array(~bad))
    order, names, columns = pc.sort_indices(table["key"]), table.column_names, table.columns
    listing.utterances = SCHEMA.empty_table()
    del table, uris
    for place, column in enumerate(columns):
        columns[place] = column.take(order).combine_chunks()
        del column
        pa.default_memory_pool().release_unused()  # else freed columns stay resident beside their sorted copies
    return replace(listing, utterances=pa.table(columns, names=names), refused=refused)


def _look_up(uris: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Return the size of each file, and why a file can't be used, by its index."""
    chunks = [uris.slice(start, _CHUNK) for start in range(0, len(uris), _CHUNK)]
    sizes: list[pa.Array] = []
    reasons: dict[int, str] = {}
    with ThreadPoolExecutor(_THREADS) as pool:
        for number, results in enumerate(pool.map(_look_up_chunk, chunks)):
            sizes.append(pa.array([size if isinstance(size, int) else None for size in results], pa.int64()))
            for index, reason in enumerate(results):
                if isinstance(reason, str):
                    reasons[number * _CHUNK + index] = reason
    return pa.chunked_array(sizes, pa.int64()).combine_chunks(), reasons


def _look_up_chunk(uris: pa.Array) -> list[int | str | None]:
    return [_size_or_reason(uri) for uri in uris.to_pylist()]


def _size_or_reason(uri: str) -> int | str | None:
    if uri.startswith(PIPE):
        return None
    parts = parse_parts(uri)
    sizes = [_size_of_part(parse_place(part.uri)) for part in parts]
    problem = next((size for size in sizes if isinstance(size, str)), None)
    if problem is not None:
        return problem
    # Channels are picked or joined, so no file is copied as it is: its size says nothing.
    return sizes[0] if len(parts) == 1 and parts[0].channels is None else None


def _size_of_part(place: Place) -> int | str | None:
    path = local_path(place.address)
    if place.kind == "zip":
        size = place.numbers[2]
    elif place.kind in ("range", "gzrange"):
        size = place.numbers[1]
    else:
        size = None
    if path is None:
        return size
    try:
        found = os.stat(path)  # noqa: PTH116 (a Path object for each file would double the cost)
    except OSError as error:
        return f"the audio file {path} can't be read ({error.strerror})"
    if not stat.S_ISREG(found.st_mode):
        return f"{path} is not a file"
    if place.kind == "range" and sum(place.numbers) > found.st_size:
        return f"{path} ends before byte {sum(place.numbers)}, where the audio does"
    if size == 0 or not found.st_size:
        return f"empty file: {path}"
    return size if place.kind else found.st_size
