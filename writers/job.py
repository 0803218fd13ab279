"""The job folder `<target>/.uttershard/`: what an unfinished pack job knows, so that any later run goes on with it.

    lock           held by the process that drives the job; its host and pid are inside (see lock.py)
    job.json       fingerprint, number of shards, column types, counts
    plan.parquet   one row group a shard, its utterances in the order of packing
    refused.jsonl  what was refused before packing
    done/000017.json  the manifest's entry of a finished shard, and what was refused while packing it
    tmp/           unfinished files

The folder is removed after `dataset.json` has been written: then the dataset needs nothing but itself.
"""

import contextlib
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from uttershard.pipeline.dataset.manifest import ShardEntry
from uttershard.pipeline.errors import DataError

from .commit import storage_errors, write_atomically
from .listing import Refusal
from .lock import hold_lock

JOB_FOLDER = ".uttershard"


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


@dataclass(frozen=True)
class FinishedShard:
    """What a done record holds."""

    entry: ShardEntry
    refused: tuple[Refusal, ...]


@dataclass(frozen=True)
class JobFolder:
    """The files of a job, by the dataset's folder."""

    target: Path

    @property
    def path(self) -> Path:
        """The folder itself."""
        return self.target / JOB_FOLDER

    @property
    def plan(self) -> Path:
        """The plan."""
        return self.path / "plan.parquet"

    @property
    def scratch(self) -> Path:
        """Folder for unfinished files."""
        return self.path / "tmp"

    def create(self) -> None:
        """Make the folder and its parts."""
        with storage_errors(self.path):
            self.scratch.mkdir(parents=True, exist_ok=True)
            (self.path / "done").mkdir(exist_ok=True)

    def clear_scratch(self) -> None:
        """Remove what killed processes left unfinished."""
        with storage_errors(self.scratch):
            for path in self.scratch.glob("*"):
                path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Remove all that is known of a job, `job.json` first; the lock stays."""
        (self.path / "job.json").unlink(missing_ok=True)
        for record in (self.path / "done").glob("*.json"):
            record.unlink()

    def remove(self) -> None:
        """Remove the folder; a worker of a killed run may still be leaving it, which is no error."""
        shutil.rmtree(self.path, ignore_errors=True)

    def read_state(self) -> JobState | None:
        """Return what `job.json` says, or None if the job never got that far."""
        try:
            data = (self.path / "job.json").read_bytes()
        except FileNotFoundError:
            return None
        try:
            return JobState(**json.loads(data))
        except (ValueError, TypeError) as error:
            raise DataError(f"{self.path / 'job.json'}: damaged ({error}); pack again with overwrite") from error

    def write_state(self, state: JobState) -> None:
        """Write `job.json`; from here on the job can be resumed."""
        write_atomically(self.path / "job.json", self.scratch, _json(asdict(state)))

    def write_refused(self, refused: list[Refusal]) -> None:
        """Keep what was refused before packing."""
        lines = "".join(f"{refusal.as_json()}\n" for refusal in refused)
        write_atomically(self.path / "refused.jsonl", self.scratch, lines.encode("utf-8"))

    def read_refused(self) -> list[Refusal]:
        """Return what was refused before packing."""
        text = (self.path / "refused.jsonl").read_text("utf-8")
        return [Refusal(**json.loads(line)) for line in text.split("\n") if line]

    def write_done(self, shard: int, finished: FinishedShard) -> None:
        """Record a shard whose files are in place."""
        body = {"entry": asdict(finished.entry), "refused": [refusal._asdict() for refusal in finished.refused]}
        write_atomically(self._done(shard), self.scratch, _json(body))

    def read_done(self, shard: int) -> FinishedShard | None:
        """Return the record of a shard, or None if there is none."""
        try:
            body = json.loads(self._done(shard).read_bytes())
        except FileNotFoundError:
            return None
        return FinishedShard(ShardEntry(**body["entry"]), tuple(Refusal(**entry) for entry in body["refused"]))

    def count_refused(self) -> int:
        """Return how many utterances all finished shards have refused."""
        records = (self.path / "done").glob("*.json")
        return sum(len(json.loads(record.read_bytes())["refused"]) for record in records)

    def _done(self, shard: int) -> Path:
        return self.path / "done" / f"{shard:06d}.json"


def lock(folder: JobFolder) -> contextlib.AbstractContextManager[None]:
    """Hold the job alone (see `lock.hold_lock`)."""
    return hold_lock(folder.path / "lock")


def _json(body: dict[str, Any]) -> bytes:
    return (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode("utf-8")
