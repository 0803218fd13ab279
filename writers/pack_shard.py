"""One task: pack one shard. Tar, then sidecar, then the done record; each appears whole or not at all.

A task may be run again after its worker was lost, also while the lost worker still writes: both write the same bytes
under names of their own, so it does not matter whose rename comes last.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
from uttershard.pipeline.dataset.files import StorageOptions
from uttershard.pipeline.dataset.manifest import shard_names
from uttershard.pipeline.dataset.members import member_name
from uttershard.pipeline.dataset.sidecar import SidecarInfo, encode_sidecar
from uttershard.pipeline.errors import DataError
from uttershard.pipeline.reading.codecs import AudioError

from .audio import PackedAudio
from .audio_files import raise_if_it_may_come_back, with_address
from .describe import SidecarRows, describe, encode_members, make_record
from .entry import make_entry
from .listing import Refusal
from .plan import read_shard
from .records import PLAN_NAME, FinishedShard, JobRecords
from .segments import ShardAudio
from .settings import PackSettings
from .tar_writer import ShardTar
from .targets.base import Stored, Target, Traffic
from .targets.opening import open_target

_ROWS = 512
"""Rows of the plan that are Python objects at a time."""


@dataclass(frozen=True)
class ShardTask:
    """All that a worker needs to know; the utterances it reads from the plan."""

    target: str
    shard: int
    columns: dict[str, str]
    fingerprint: str
    settings: PackSettings
    retry_refused: bool = False
    """Whether a finished shard that refused some utterances is packed again."""
    listed: Mapping[str, Stored] | None = None
    """What the job found of this shard in a store when it began; None where the task looks for itself."""
    storage_options: StorageOptions | None = field(default=None, repr=False)
    """Of the target; never shown, since they may hold credentials."""


@dataclass(frozen=True)
class PackedShard:
    """What a task returns."""

    finished: FinishedShard
    traffic: Traffic
    kept: bool
    """Whether an earlier run had finished it."""


def pack_shard(task: ShardTask) -> PackedShard:
    """Pack a shard, or find that it is there already, by size and digest.

    Raises:
        DataError: An utterance is refused, and the settings say to stop at the first.
        NoSpaceError: The target is full.
    """
    target = open_target(task.target, task.storage_options, task.settings.write_limits)
    found = _find_finished(target, task)
    return PackedShard(found or _pack(target, task), target.traffic, kept=found is not None)


def _find_finished(target: Target, task: ShardTask) -> FinishedShard | None:
    if task.listed is not None and not task.listed.keys() - {PLAN_NAME}:
        return None
    finished = JobRecords(target).read_done(task.shard)
    if finished is None or (task.retry_refused and finished.refused):
        return None
    return finished if _is_intact(target, finished, task.listed or {}) else None


def _pack(target: Target, task: ShardTask) -> FinishedShard:
    tar_name, sidecar_name = shard_names(task.shard)
    rows, refused = SidecarRows(task.columns), list[Refusal]()
    plan = read_shard(target, task.shard, (task.listed or {}).get(PLAN_NAME))
    audio = ShardAudio(plan, task.settings)
    with target.create(tar_name) as stream:
        tar = ShardTar(stream)
        for row, utterance in enumerate(_utterances(plan)):
            reason = _pack_utterance(partial(audio.fetch, row), utterance, tar, rows, task.columns)
            if reason is None:
                continue
            if task.settings.on_error == "raise":
                raise DataError(f"{utterance['key']} ({utterance['origin']}): {reason}")
            refused.append(Refusal(utterance["key"], utterance["origin"], reason))
        tar_digest = tar.close()
    info = SidecarInfo(tar.nbytes, tar_digest, task.fingerprint)
    table = rows.table()
    sidecar = encode_sidecar(table, info)
    target.put(sidecar_name, sidecar)
    tags = {name: tag for name in (tar_name, sidecar_name) if (tag := target.tag(name)) is not None}
    entry = make_entry(tar_name, sidecar_name, info, sidecar, table)
    finished = FinishedShard(entry, tuple(refused), tags, audio.reduced, rows.without_text())
    JobRecords(target).write_done(task.shard, finished)
    return finished


def _pack_utterance(
    fetch: Callable[[str, float | None, float | None], PackedAudio],
    utterance: dict[str, Any],
    tar: ShardTar,
    rows: SidecarRows,
    columns: dict[str, str],
) -> str | None:
    """Pack one utterance, or return why it is refused."""
    try:
        audio = fetch(utterance["uri"], utterance["start"], utterance["end"])
    except (AudioError, OSError) as error:
        raise_if_it_may_come_back(error, utterance["uri"])
        return with_address(str(error), utterance["uri"])
    key, text = utterance["key"], utterance["text"]
    record = make_record(key, utterance["metadata"])
    span = tar.add(member_name(key), encode_members(record, audio.info, audio.data, text))
    rows.add(describe(record, audio.info, len(text or ""), columns), span)
    return None


def _utterances(table: pa.Table) -> Iterator[dict[str, Any]]:
    for start in range(0, table.num_rows, _ROWS):
        yield from table.slice(start, _ROWS).to_pylist()


def _is_intact(target: Target, finished: FinishedShard, listed: Mapping[str, Stored]) -> bool:
    entry = finished.entry
    files = ((entry.tar, entry.tar_bytes, entry.tar_digest), (entry.sidecar, entry.sidecar_bytes, entry.sidecar_digest))
    return all(
        target.is_intact(name, nbytes, digest, finished.tags.get(name), listed.get(name))
        for name, nbytes, digest in files
    )
