"""Sizes of the audio files that a listing names: missing and empty files are refused before anything is read.

Local files only, by `stat`. The sizes go into the fingerprint, so that an audio file replaced between two runs of a
job is noticed, and into the estimate of how large the dataset will be.
"""

import os
import stat
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from uttershard.pipeline.dataset.files import local_path

from .audio_rows import AudioRows
from .listing import PIPE, Listing, Refusal
from .locators import Place, parse_parts, parse_place

_CHUNK = 4096
_THREADS = 16
"""`stat` on a network file system is all waiting."""


def take_inventory(listing: Listing) -> Listing:
    """Sort a listing by key and add a column `size` (int64 bytes of the file; null for pipes and remote files).

    Sorted, since what follows (fingerprint, shuffle) must not depend on the order in which a corpus is listed.
    The listing itself is changed, and returned.
    """
    if not len(listing):
        listing.utterances = listing.utterances.append_column("size", pa.nulls(0, pa.int64()))
        return listing
    _sort(listing)
    files = AudioRows.of(listing.utterances["uri"])
    sizes, reasons = _look_up(files)
    table = listing.utterances.append_column("size", sizes.take(pa.array(files.file_of_row)))
    listing.utterances = table
    if reasons:
        bad = np.isin(files.file_of_row, list(reasons))
        for row in np.flatnonzero(bad).tolist():
            reason = reasons[int(files.file_of_row[row])]
            listing.refused.append(Refusal(table["key"][row].as_py(), table["origin"][row].as_py(), reason))
        del table, files
        good = pa.array(~bad)
        listing.rebuild(lambda column: column.filter(good))
    return listing


def _sort(listing: Listing) -> None:
    order = pc.sort_indices(listing.utterances["key"])
    listing.rebuild(_in_one_piece, lambda column: column.take(order))


def _in_one_piece(column: pa.ChunkedArray) -> pa.Array:
    """Join the chunks, from which rows are taken quickly; with 64-bit offsets, for texts may come to more than 2 GB."""
    return (column.cast(pa.large_string()) if pa.types.is_string(column.type) else column).combine_chunks()


def _look_up(files: AudioRows) -> tuple[pa.Array, dict[int, str]]:
    """Return the size of each file, and why a file can't be used, by its number."""
    chunks = (
        files.addresses(np.arange(start, min(start + _CHUNK, len(files)))) for start in range(0, len(files), _CHUNK)
    )
    sizes: list[pa.Array] = []
    reasons: dict[int, str] = {}
    with ThreadPoolExecutor(_THREADS) as pool:
        for number, results in enumerate(pool.map(_look_up_chunk, chunks)):
            sizes.append(pa.array([size if isinstance(size, int) else None for size in results], pa.int64()))
            for index, reason in enumerate(results):
                if isinstance(reason, str):
                    reasons[number * _CHUNK + index] = reason
    return pa.chunked_array(sizes, pa.int64()).combine_chunks(), reasons


def _look_up_chunk(uris: list[str]) -> list[int | str | None]:
    return [_size_or_reason(uri) for uri in uris]


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
