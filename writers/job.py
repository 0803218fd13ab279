"""The job folder `<target>/.uttershard/` of a local target: the lock, records of what is done, unfinished files.

What a pack job keeps in it is in `records.py`; `index` and `stats` keep records of their own.
"""

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from .commit import storage_errors
from .lock import hold_lock
from .targets.base import JOB_FOLDER


@dataclass(frozen=True)
class JobFolder:
    """The files of a job, by the dataset's folder."""

    target: Path

    @property
    def path(self) -> Path:
        """The folder itself."""
        return self.target / JOB_FOLDER

    @property
    def scratch(self) -> Path:
        """Folder for unfinished files."""
        return self.path / "tmp"

    @property
    def is_of_pack(self) -> bool:
        """Whether an unfinished pack job is in it."""
        return (self.path / "job.json").exists()

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


def lock(folder: JobFolder) -> contextlib.AbstractContextManager[None]:
    """Hold the job alone (see `lock.hold_lock`)."""
    return hold_lock(folder.path / "lock")
