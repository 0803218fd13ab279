"""Jobs of a batch system: submissions that fail are noted, and jobs that are gone are submitted again.

dask-jobqueue replaces a job of one worker that is lost. It never misses one of several workers, whose names are not the
job's, nor one that ends before its worker came: on a node in bad order, or by somebody's hand.
"""

import subprocess
import tempfile
import time
from collections.abc import Collection
from typing import IO, Any, ClassVar

from distributed import Status

from ..progress import Progress

_LOOK_SECONDS = 5.0
_ASK_SECONDS = 30.0
"""How often the queue is asked about jobs whose workers have not come: they may wait in it for days."""

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
        queue: Says which jobs have ended; None where the batch system can't be asked.
    """

    def __init__(self, cluster: Any, progress: Progress, queue: "SlurmQueue | None" = None) -> None:
        self._cluster = cluster
        self._progress = progress
        self._queue = queue
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
        if self._queue is not None:
            early = self._queue.ended() & waiting
            if early:
                jobs_that = f"jobs that ended before their workers came: {', '.join(sorted(early))}"
                self._progress.note(f"{jobs_that}. Others are submitted; the output of these says why")
            gone |= early
            if waiting - early and now - self._asked >= _ASK_SECONDS:
                self._asked = now
                self._queue.ask(waiting - early)
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


class SlurmQueue:
    """Asks SLURM which jobs have ended; nobody waits for the answer, since its controller may take minutes."""

    def __init__(self) -> None:
        self._asked: tuple[subprocess.Popen[bytes], IO[bytes]] | None = None

    def ask(self, jobs: Collection[str]) -> None:
        """Ask about some jobs, by their ids; an earlier question that is not answered yet is given up."""
        self.close()
        command = ["squeue", "--noheader", "--states=all", "--format=%i %T", f"--jobs={','.join(sorted(jobs))}"]
        answer = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=answer, stderr=subprocess.DEVNULL)
        except OSError:
            answer.close()
            return  # a machine that is out of processes or memory: ask again later
        self._asked = process, answer

    def ended(self) -> set[str]:
        """Return the jobs that have ended, if there is an answer that was not looked at; SLURM may not know all."""
        if self._asked is None or self._asked[0].poll() is None:
            return set()
        _, answer = self._asked
        answer.seek(0)
        states = (line.split() for line in answer.read().decode().splitlines())
        ended = {state[0] for state in states if len(state) == 2 and state[1] in _ENDED}
        self.close()
        return ended

    def close(self) -> None:
        """Give up what was asked."""
        if self._asked is not None:
            process, answer = self._asked
            self._asked = None
            process.kill()
            process.wait()
            answer.close()
