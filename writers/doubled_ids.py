"""Ids that are in several of the tars that are indexed: the first keeps it, the others are refused by name."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow as pa
from uttershard.pipeline.dataset.sidecar import SidecarInfo, decode_sidecar, encode_sidecar

from .entry import make_entry
from .ids import duplicate_rows
from .index_tar import IndexedTar, IndexTask, read_sidecar, write_sidecar
from .listing import Refusal, printable
from .targets.base import Target

_READERS = 16


def refuse_doubled(target: Target, tasks: Sequence[IndexTask], indexed: Sequence[IndexedTar]) -> list[IndexedTar]:
    """Take doubled ids out of the sidecars, and return what the tars are then."""
    names = [tar.found_as(task) for task, tar in zip(tasks, indexed, strict=True)]
    with ThreadPoolExecutor(_READERS) as pool:
        keys = list(pool.map(lambda name: _read(target, name, ["key"])[0]["key"], names))
    pairs = duplicate_rows(pa.chunked_array([chunk for column in keys for chunk in column.chunks], pa.string()))
    ends = np.cumsum([len(column) for column in keys])
    doubled: dict[int, dict[int, int]] = {}
    for row, first in pairs:
        number, holder = (int(np.searchsorted(ends, place, side="right")) for place in (row, first))
        doubled.setdefault(number, {})[row - int(ends[number]) + len(keys[number])] = holder
    return [
        tar if number not in doubled else _without(target, tasks[number], tar, doubled[number], indexed)
        for number, tar in enumerate(indexed)
    ]


def _without(
    target: Target, task: IndexTask, tar: IndexedTar, doubled: dict[int, int], indexed: Sequence[IndexedTar]
) -> IndexedTar:
    """Write a sidecar anew without some rows; `doubled` says which tar has the id of each first."""
    entry = tar.entry
    table, info = _read(target, tar.found_as(task), None)
    refused = [
        Refusal(
            key := table["key"][row].as_py(),
            printable(f"{entry.tar}:{key}"),
            f"the id is there twice: in {indexed[holder].entry.tar} and in {entry.tar}; with unique_ids (--unique-ids) "
            "the name of the tar goes before each id",
        )
        for row, holder in doubled.items()
    ]
    kept = np.ones(table.num_rows, dtype=bool)
    kept[list(doubled)] = False
    table = table.filter(pa.array(kept)).combine_chunks()
    data = encode_sidecar(table, info)
    return replace(
        tar,
        entry=make_entry(entry.tar, entry.sidecar, info, data, table),
        refused=(*tar.refused, *refused),
        is_new=write_sidecar(target, task, data),
    )


def _read(target: Target, name: str, columns: Sequence[str] | None) -> tuple[pa.Table, SidecarInfo]:
    return decode_sidecar(read_sidecar(target, name), columns, target.where(name))
