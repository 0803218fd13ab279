"""Jobs of a batch system: submissions that fail are noted, and jobs that are gone are submitted again.

dask-jobqueue replaces a job of one worker that is lost. It never misses one of several workers, whose names are not the
job's, nor one that ends before its worker came: on a node in bad order, or by somebody's hand.
"""

import subprocess
import time
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from distributed import Status

from ..progress import Progress

_LOOK_SECONDS = 5.0
_ASK_SECONDS = 30.0
"""How often the queue is asked about jobs whose workers have not come: they may wait in it for days."""

_ANSWER_SECONDS = 30.0
_ENDED = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT")
)


def noting_failures(job_class: Any) -> Any:
    """Return a class of jobs that notes submissions that failed: `adapt` repeats them for ever, without a word."""

    class NotingJob(job_class):  # type: ignore[misc]
        failures: ClassVar[list[str]] = []

        async def start(self) -> None:
            try:
                await super().start()
            except (RuntimeError, OSError) as error:
                self.failures.append(str(error))
                self.status = Status.failed  # closing the cluster asks for it
                raise

    NotingJob.__name__ = job_class.__name__  # dask-jobqueue's messages are made of it
    return NotingJob


class JobWatch:
    """Called now and then, it drops jobs that are gone from a cluster, which then submits them again.

    Args:
        cluster: Of dask-jobqueue, with `adapt`.
        progress: Told of jobs that ended before their workers came: in an environment without Dask, all of them do.
        ended: Says which of some jobs have ended, by their ids; None where the batch system can't be asked.
    """

    def __init__(
        self, cluster: Any, progress: Progress, ended: Callable[[Iterable[str]], set[str]] | None = None
    ) -> None:
        self._cluster = cluster
        self._progress = progress
        self._ended = ended
        self._looked = self._asked = time.monotonic()
        self._came: set[str] = set()
        self._missed: set[str] = set()

    def __call__(self) -> None:
        """Look for jobs that are gone, unless that was done just now."""
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        # Lists, since both change in Dask's thread meanwhile.
        there = {worker["name"] for worker in list(self._cluster.scheduler_info["workers"].values())}
        jobs = {job.job_id: name for name, job in list(self._cluster.workers.items()) if job.job_id is not None}
        absent = {job for job, name in jobs.items() if not there.intersection(self._workers_of(name))}
        self._came = (self._came & jobs.keys()) | (jobs.keys() - absent)
        waiting = absent - self._came
        # Twice in a row: a worker that died may be started again where it was.
        gone = absent & self._came & self._missed
        self._missed = absent & self._came
        if waiting and self._ended is not None and now - self._asked >= _ASK_SECONDS:
            self._asked = now
            early = self._ended(waiting)
            if early:
                jobs_that = f"jobs that ended before their workers came: {', '.join(sorted(early))}"
                self._progress.note(f"{jobs_that}. Others are submitted; the output of these says why")
            gone |= early
        if gone:
            self._cluster.loop.add_callback(_drop, self._cluster, {job: jobs[job] for job in gone})

    def _workers_of(self, name: str) -> list[str]:
        group = self._cluster.worker_spec.get(name, {}).get("group")
        return [name] if group is None else [f"{name}{suffix}" for suffix in group]


async def _drop(cluster: Any, gone: dict[str, str]) -> None:
    for job_id, name in gone.items():
        job = cluster.workers.get(name)
        if job is not None and job.job_id == job_id:
            del cluster.workers[name]
            await job.close()


def ended_in_slurm(jobs: Iterable[str]) -> set[str]:
    """Return which jobs SLURM says have ended; it remembers them for some minutes, and may not know all."""
    command = ["squeue", "--noheader", "--states=all", "--format=%i %T", f"--jobs={','.join(sorted(jobs))}"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return set()  # a controller that restarts: ask again later
    states = (line.split() for line in answer.stdout.splitlines())
    return {state[0] for state in states if len(state) == 2 and state[1] in _ENDED}
