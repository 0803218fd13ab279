"""What an unfinished pack job knows, in the job folder of its target, so that any later run goes on with it.

    lock              held by the process that drives the job; its host and pid are inside
    job.json          fingerprint, number of shards, column types, counts
    plan.parquet      one row group a shard, its utterances in the order of packing
    refused.jsonl     what was refused before packing
    done/000017.json  the manifest's entry of a finished shard, what was refused while packing it, and on a store the
                      ETags of its files
    probed/           before there is a plan: what is known of audio files (`probed`)
    tmp/              unfinished files, on a local disk

All of it is removed after `dataset.json` has been written: then the dataset needs nothing but itself.
"""

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from uttershard.pipeline.dataset.manifest import ShardEntry
from uttershard.pipeline.dataset.shardset import JOB_STATE_NAME
from uttershard.pipeline.errors import DataError

from .listing import Refusal
from .targets.base import JOB_FOLDER, Stored, Target

PLAN_NAME = f"{JOB_FOLDER}/plan.parquet"

_REFUSED_NAME = f"{JOB_FOLDER}/refused.jsonl"
_DONE = f"{JOB_FOLDER}/done/"
_READERS = 16


@dataclass(frozen=True)
class JobState:
    """What `job.json` holds."""

    fingerprint: dict[str, Any]
    shards: int
    columns: dict[str, str]
    utterances: int
    """How many are to be packed."""
    corpus: int
    """How many there were, with the refused ones."""
    seconds: float = 0.0
    """Audio that is to be packed, as far as it is known before packing."""
    changes: str = ""
    """`Listing.changes`."""


@dataclass(frozen=True)
class FinishedShard:
    """What a done record holds."""

    entry: ShardEntry
    refused: tuple[Refusal, ...]
    tags: Mapping[str, str] = field(default_factory=dict)
    """ETags by name, where the target has such a thing."""
    reduced: int = 0
    """Utterances that lost depth to the codec asked for."""
    without_text: int = 0
    """Utterances that have no transcript."""


@dataclass(frozen=True)
class JobRecords:
    """Reads and writes the records of a job."""

    target: Target

    def exists(self) -> bool:
        """Whether there is a job to go on with."""
        return self.target.size(JOB_STATE_NAME) is not None

    def read_state(self) -> JobState | None:
        """Return what `job.json` says, or None if the job never got that far."""
        data = self.target.read(JOB_STATE_NAME)
        if data is None:
            return None
        try:
            return JobState(**json.loads(data))
        except (ValueError, TypeError) as error:
            where = self.target.where(JOB_STATE_NAME)
            raise DataError(f"{where}: damaged ({error}); pack again with overwrite") from error

    def write_state(self, state: JobState) -> None:
        """Write `job.json`; from here on the job can be resumed."""
        self.target.put(JOB_STATE_NAME, _json(asdict(state)))

    def write_refused(self, refused: list[Refusal]) -> None:
        """Keep what was refused before packing."""
        lines = "".join(f"{refusal.as_json()}\n" for refusal in refused)
        self.target.put(_REFUSED_NAME, lines.encode("utf-8"))

    def read_refused(self) -> list[Refusal]:
        """Return what was refused before packing."""
        data = self.target.read(_REFUSED_NAME)
        if data is None:
            raise DataError(f"{self.target.where(_REFUSED_NAME)}: is missing; pack again with overwrite")
        try:
            return [Refusal(**json.loads(line)) for line in data.decode("utf-8").split("\n") if line]
        except (ValueError, TypeError) as error:
            where = self.target.where(_REFUSED_NAME)
            raise DataError(f"{where}: damaged ({error}); pack again with overwrite") from error

    def write_done(self, shard: int, finished: FinishedShard) -> None:
        """Record a shard whose files are in place."""
        refused = [refusal._asdict() for refusal in finished.refused]
        body: dict[str, Any] = {"entry": asdict(finished.entry), "refused": refused}
        if finished.tags:
            body["tags"] = dict(finished.tags)
        if finished.reduced:
            body["reduced"] = finished.reduced
        if finished.without_text:
            body["without_text"] = finished.without_text
        self.target.put(_done(shard), _json(body))

    def read_done(self, shard: int) -> FinishedShard | None:
        """Return the record of a shard, or None if there is none, or one that is damaged: the shard is made again."""
        data = self.target.read(_done(shard))
        if data is None:
            return None
        try:
            body = json.loads(data)
            refused = tuple(Refusal(**entry) for entry in body["refused"])
            counts = {name: body.get(name, 0) for name in ("reduced", "without_text")}
            return FinishedShard(ShardEntry(**body["entry"]), refused, body.get("tags", {}), **counts)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    def finished(self) -> dict[int, int]:
        """Return how many utterances each finished shard has refused, by the shard's number."""
        names = [name for name in self.target.names() if name.startswith(_DONE)]
        shards = [int(name.removeprefix(_DONE).removesuffix(".json")) for name in names]
        with ThreadPoolExecutor(_READERS) as pool:
            found = zip(shards, pool.map(self.read_done, shards), strict=True)
            return {shard: len(finished.refused) for shard, finished in found if finished is not None}


def known_of_shard(listing: Mapping[str, Stored], shard: int, names: tuple[str, str]) -> dict[str, Stored]:
    """Return the part of a listing that the task of a shard needs; nothing if the shard was never finished."""
    wanted = (*names, PLAN_NAME, _done(shard))
    known = {name: listing[name] for name in wanted if name in listing}
    return known if _done(shard) in known else {name: known[name] for name in (PLAN_NAME,) if name in known}


def _done(shard: int) -> str:
    return f"{_DONE}{shard:06d}.json"


def _json(body: dict[str, Any]) -> bytes:
    return (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode("utf-8")
