"""Where tasks run: a Dask cluster on this machine, and a way to run many tasks on it with few of them in memory."""

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import dask
from distributed import Client, KilledWorker, LocalCluster, as_completed
from uttershard.pipeline.errors import StorageError, UttershardError

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

_IN_FLIGHT = 4
"""Tasks a worker has waiting: enough to keep it busy, few enough that a million tasks never sit in the scheduler."""


class Cluster:
    """Runs tasks on Dask workers."""

    def __init__(self, client: Client, workers: int, retries: int) -> None:
        self._client = client
        self._window = workers * _IN_FLIGHT
        self._retries = retries

    def run(self, function: Callable[[_Task], _Result], tasks: Iterable[_Task]) -> Iterator[tuple[int, _Result]]:
        """Run a function on each task and yield (number of the task, result) as they finish.

        A task whose worker died, or that met an error which may pass, is given to a worker again. An UttershardError is
        a verdict: it is raised here at once.
        """
        waiting = enumerate(tasks)
        numbers: dict[Any, int] = {}
        completed = as_completed()  # type: ignore[no-untyped-call]

        def submit_next() -> None:
            for number, task in waiting:
                future = self._client.submit(_guarded, function, task, pure=False, retries=self._retries)
                numbers[future] = number
                completed.add(future)  # type: ignore[no-untyped-call]
                return

        for _ in range(self._window):
            submit_next()
        try:
            for future in completed:
                number = numbers.pop(future)
                yield number, _result(future, number)
                submit_next()
        finally:
            self._client.cancel(list(numbers))  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def local_cluster(workers: int | None, retries: int) -> Iterator[Cluster]:
    """Start worker processes on this machine, reachable from it alone; they end with the block or this process."""
    count = workers or len(os.sched_getaffinity(0))
    settings = {
        # A task is given up when that many workers died over it.
        "distributed.scheduler.allowed-failures": retries,
        "distributed.worker.memory.terminate": False,
    }
    with (
        dask.config.set(settings),
        LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=count,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address=None,
            # Without a port of its own the scheduler warns about a second cluster on this machine.
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
            # Lost workers are replaced and their tasks given out again: nothing a person has to read about.
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,  # type: ignore[no-untyped-call]
    ):
        yield Cluster(client, count, retries)


def _guarded(function: Callable[[_Task], _Result], task: _Task) -> _Result | UttershardError:
    """Return errors that no retry mends, so that Dask does not retry them."""
    try:
        return function(task)
    except UttershardError as error:
        return error


def _result(future: Any, number: int) -> Any:
    try:
        result = future.result()
    except KilledWorker as error:
        raise StorageError(
            f"task {number} was given up: {error.allowed_failures + 1} workers died over it (out of memory?). "
            "What is finished is kept: run the same command again"
        ) from error
    except OSError as error:
        raise StorageError(
            f"task {number} failed after all retries ({type(error).__name__}: {error}). "
            "What is finished is kept: run the same command again"
        ) from error
    if isinstance(result, UttershardError):
        raise result
    return result
