"""Sizes of the audio files that a listing names: missing and empty files are refused before anything is read.

Local files only, by `stat`. The sizes go into the fingerprint, and into the estimate of how large the dataset will be;
the times of the last change are kept with an unfinished job, so that audio replaced between two of its runs is noticed.
"""

import os
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray
from uttershard.pipeline.dataset.digest import digest_bytes
from uttershard.pipeline.dataset.files import local_path

from .audio_rows import AudioRows
from .listing import PIPE, Listing, Refusal
from .locators import Place, parse_parts, parse_place

_CHUNK = 4096
_THREADS = 16
"""`stat` on a network file system is all waiting."""


def take_inventory(listing: Listing) -> Listing:
    """Sort a listing by key and add what is known of its audio files.

    size     int64  bytes; null for pipes and remote files
    changed  int64  when the file was last changed, in ns; 0 for those

    Sorted, since what follows (fingerprint, shuffle) must not depend on the order in which a corpus is listed.
    The listing itself is changed, and returned.
    """
    if not len(listing):
        for name in ("size", "changed"):
            listing.utterances = listing.utterances.append_column(name, pa.nulls(0, pa.int64()))
        return listing
    _sort(listing)
    files = AudioRows.of(listing.utterances["uri"])
    sizes, changes, reasons = _look_up(files)
    listing.changes = digest_bytes(changes.astype("<i8").tobytes())
    table = listing.utterances.append_column("size", sizes.take(pa.array(files.file_of_row)))
    table = table.append_column("changed", pa.array(changes[files.file_of_row]))
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


@dataclass(frozen=True)
class _Found:
    """One audio file."""

    size: int | None
    """Bytes of its encoded audio, where they are known and the file may be copied as it is."""
    changed: int = 0
    """Time of its last change, in ns; 0 for what is not local; of several files, a number that changes with each."""


def _look_up(files: AudioRows) -> tuple[pa.Array, NDArray[np.int64], dict[int, str]]:
    """Return size and time of the last change of each file, and why a file can't be used, by its number."""
    sizes: list[pa.Array] = []
    changes: list[NDArray[np.int64]] = []
    reasons: dict[int, str] = {}
    with ThreadPoolExecutor(_THREADS) as pool:
        # The pool runs ahead of this loop: what waits is two numbers a file, and no address.
        for found in pool.map(partial(_look_up_run, files), range(0, len(files), _CHUNK)):
            sizes.append(found[0])
            changes.append(found[1])
            reasons |= found[2]
    return pa.concat_arrays(sizes), np.concatenate(changes), reasons


def _look_up_run(files: AudioRows, start: int) -> tuple[pa.Array, NDArray[np.int64], dict[int, str]]:
    uris = files.addresses(np.arange(start, min(start + _CHUNK, len(files))))
    results = [_found_or_reason(uri) for uri in uris]
    return (
        pa.array([None if isinstance(found, str) else found.size for found in results], pa.int64()),
        np.array([0 if isinstance(found, str) else found.changed for found in results], np.int64),
        {number: found for number, found in enumerate(results, start) if isinstance(found, str)},
    )


def _found_or_reason(uri: str) -> _Found | str:
    if uri.startswith(PIPE):
        return _Found(None)
    parts = parse_parts(uri)
    found: list[_Found] = []
    for part in parts:
        each = _look_at(parse_place(part.uri))
        if isinstance(each, str):
            return each
        found.append(each)
    # Channels are picked or joined, so no file is copied as it is: its size says nothing.
    size = found[0].size if len(parts) == 1 and parts[0].channels is None else None
    return _Found(size, _joined_times([each.changed for each in found]))


def _joined_times(times: Sequence[int]) -> int:
    """Return one number for several files, another if any of them changes, be it to an older one."""
    if len(times) == 1:
        return times[0]
    return xxhash.xxh3_64_intdigest(repr(times).encode()) >> 1


def _look_at(place: Place) -> _Found | str:
    path = local_path(place.address)
    if place.kind == "zip":
        size = place.numbers[2]
    elif place.kind in ("range", "gzrange"):
        size = place.numbers[1]
    else:
        size = None
    if path is None:
        return _Found(size)
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
    return _Found(size if place.kind else found.st_size, found.st_mtime_ns)
