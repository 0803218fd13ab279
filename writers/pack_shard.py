"""One task: pack one shard. Tar, then sidecar, then the done record; each appears whole or not at all.

A task may be run again after its worker was lost, also while the lost worker still writes: both write the same bytes
under names of their own, so it does not matter whose rename comes last.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from uttershard.pipeline.dataset.digest import FileDigest, digest_bytes
from uttershard.pipeline.dataset.manifest import ShardEntry, shard_names
from uttershard.pipeline.dataset.members import member_name
from uttershard.pipeline.dataset.sidecar import SidecarInfo, encode_sidecar
from uttershard.pipeline.errors import DataError
from uttershard.pipeline.reading.codecs import AudioError

from .audio import fetch
from .audio_files import raise_if_it_may_come_back, with_address
from .commit import atomic_write, write_atomically
from .describe import SidecarRows, describe, encode_members
from .job import FinishedShard, JobFolder
from .listing import Refusal
from .plan import read_shard
from .settings import PackSettings
from .tar_writer import ShardTar

_ROWS = 512
"""Rows of the plan that are Python objects at a time."""
_READ_BYTES = 1 << 22


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


def pack_shard(task: ShardTask) -> FinishedShard:
    """Pack a shard, or find that it is there already, by size and digest.

    Raises:
        DataError: An utterance is refused, and the settings say to stop at the first.
        NoSpaceError: The target is full.
    """
    folder = JobFolder(Path(task.target))
    finished = folder.read_done(task.shard)
    again = task.retry_refused and finished is not None and finished.refused
    if finished is not None and not again and _is_intact(folder.target, finished.entry):
        return finished
    tar_name, sidecar_name = shard_names(task.shard)
    rows, refused = SidecarRows(task.columns), list[Refusal]()
    with atomic_write(folder.target / tar_name, folder.scratch) as stream:
        tar = ShardTar(stream)
        for utterance in _utterances(read_shard(folder.plan, task.shard)):
            reason = _pack_utterance(utterance, tar, rows, task)
            if reason is None:
                continue
            if task.settings.on_error == "raise":
                raise DataError(f"{utterance['key']} ({utterance['origin']}): {reason}")
            refused.append(Refusal(utterance["key"], utterance["origin"], reason))
        tar_digest = tar.close()
    info = SidecarInfo(tar.nbytes, tar_digest, task.fingerprint)
    sidecar = encode_sidecar(rows.table(), info)
    write_atomically(folder.target / sidecar_name, folder.scratch, sidecar)
    finished = FinishedShard(_entry(task.shard, info, sidecar, rows), tuple(refused))
    folder.write_done(task.shard, finished)
    return finished


def _pack_utterance(utterance: dict[str, Any], tar: ShardTar, rows: SidecarRows, task: ShardTask) -> str | None:
    """Pack one utterance, or return why it is refused."""
    try:
        audio = fetch(utterance["uri"], utterance["start"], utterance["end"], task.settings)
    except (AudioError, OSError) as error:
        raise_if_it_may_come_back(error, utterance["uri"])
        return with_address(str(error), utterance["uri"])
    members = encode_members(utterance["key"], audio.info, audio.data, utterance["text"], utterance["metadata"])
    description = describe(members, task.columns, audio.info)
    rows.add(description, tar.add(member_name(utterance["key"]), members))
    return None


def _utterances(table: pa.Table) -> Iterator[dict[str, Any]]:
    for start in range(0, table.num_rows, _ROWS):
        yield from table.slice(start, _ROWS).to_pylist()


def _entry(shard: int, info: SidecarInfo, sidecar: bytes, rows: SidecarRows) -> ShardEntry:
    tar_name, sidecar_name = shard_names(shard)
    seconds = rows.seconds()
    return ShardEntry(
        tar=tar_name,
        sidecar=sidecar_name,
        tar_bytes=info.tar_bytes,
        tar_digest=info.tar_digest,
        sidecar_bytes=len(sidecar),
        sidecar_digest=digest_bytes(sidecar),
        utterances=len(seconds),
        samples=rows.samples(),
        seconds=sum(seconds),
        shortest_seconds=min(seconds, default=0.0),
        longest_seconds=max(seconds, default=0.0),
    )


def _is_intact(target: Path, entry: ShardEntry) -> bool:
    files = ((entry.tar, entry.tar_bytes, entry.tar_digest), (entry.sidecar, entry.sidecar_bytes, entry.sidecar_digest))
    return all(_matches(target / name, nbytes, digest) for name, nbytes, digest in files)


def _matches(path: Path, nbytes: int, expected: str) -> bool:
    if not path.is_file() or path.stat().st_size != nbytes:
        return False
    digest = FileDigest()
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
    return digest.text() == expected
