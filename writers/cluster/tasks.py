"""Running many tasks on Dask workers with few of them in memory, and going on when workers and reads fail.

What a task can meet, and what is done:

    verdict      an AccessError, any other UttershardError but a StorageError: raised here at once, no retry changes it
    may pass     OSError, StorageError, a worker that died or lacks a module: given to another worker, after a while
    elsewhere    an ElsewhereError: given to another host, soon; raised here once there is none that it was not met on
    given up     it failed `retries` times more: noted, the other tasks are finished, then all of them are reported
"""

import contextlib
import heapq
import itertools
import queue
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from distributed import Client, KilledWorker, get_worker
from distributed.client import ClosedClientError
from uttershard.pipeline.errors import AccessError, StorageError, UttershardError

from ..commit import NoSpaceError
from ..progress import Done, Progress
from .present import present_workers
from .workers import Stock, problem_of

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

IN_FLIGHT = 4
"""Tasks a worker has waiting: enough to keep it busy, few enough that a million tasks never sit in the scheduler."""

PAUSES_SECONDS = (1.0, 5.0, 15.0, 60.0, 120.0)
"""Before each retry, the last one again and again: a file server that restarts is away for minutes."""

_POLL_SECONDS = 1.0
_TOLD_SECONDS = 15.0
"""Without any worker: then it is said what a job waits for."""
_TROUBLE_SECONDS = 60.0
_LOOK_SECONDS = 5.0
_FETCH_SECONDS = (10.0, 30.0, 90.0)
"""For the result of a task, the last one again and again: it may be large, and the network slow."""

_LOST = object()
"""In place of a result whose worker died before it was fetched: Dask makes it again, once there is a worker."""

_SHOWN = 5


class ElsewhereError(StorageError):
    """Something is not on this host: another may have it, and waiting does not bring it."""


class TasksFailedError(StorageError):
    """Some tasks were given up; all others are finished and kept."""

    def __init__(self, causes: dict[str, str]) -> None:
        shown = "; ".join(f"{name}: {cause}" for name, cause in itertools.islice(causes.items(), _SHOWN))
        more = f"; and {len(causes) - _SHOWN} more" if len(causes) > _SHOWN else ""
        super().__init__(
            f"{len(causes)} given up after all retries: {shown}{more}. All others are finished and kept: once the "
            "cause is mended, run the same command again, it does only what is missing"
        )
        self.causes = causes
        """Why, by the name of the task."""


@dataclass(frozen=True)
class _Trouble:
    """What a task returns when it met an error that may pass."""

    error: Exception
    worker: str | None
    """Address of the worker; None if the task never began."""
    deaths: int = 0
    """How many workers died while they held it; one of them may have died of another task."""


@dataclass
class _Attempt(Generic[_Task]):
    number: int
    task: _Task
    tries: int = 0
    failed_on: set[str] = field(default_factory=set)
    lacking: set[str] = field(default_factory=set)
    """Of these workers, those whose hosts lack something: room on a disk, or what an ElsewhereError names."""
    alone: bool = False
    """Whether it runs last and alone, since workers have died while they held it."""
    fetches: int = 0
    """How often its result did not come in time."""


class Cluster:
    """Runs tasks on Dask workers.

    Args:
        client: Connected to the scheduler.
        window: Tasks in flight at a time; None: as many as give all workers their fill, also those that come later.
        retries: How often a task is tried again.
        progress: Told of each retry.
        patience_seconds: How long there may be no worker at all.
        replace_lost: Called now and then: starts workers in place of those that are gone, if nobody else does.
        stock: Packages that a worker must have to be given tasks, however late it came; None where none can lack any.
    """

    def __init__(
        self,
        client: Client,
        window: int | None,
        retries: int,
        progress: Progress,
        patience_seconds: float,
        replace_lost: Callable[[], object] | None = None,
        stock: Stock | None = None,
    ) -> None:
        self.client = client
        self._window = window
        self.retries = retries
        self.progress = progress
        self.patience_seconds = patience_seconds
        self._replace_lost = replace_lost
        self._stock = tuple((stock or {}).items())
        self._looked = time.monotonic()
        self._workers = 1
        self._hosts: set[str] = set()
        self._told = False
        self._told_trouble: float | None = None

    def run(
        self,
        function: Callable[[_Task], _Result],
        tasks: Iterable[_Task],
        name: Callable[[int], str] = "task {}".format,
    ) -> Iterator[tuple[int, _Result]]:
        """Run a function on each task and yield (number of the task, result) as they finish.

        Args:
            function: Importable on the workers.
            tasks: Small values that can be pickled; read as they are needed.
            name: Says what a task is called in messages.

        Raises:
            UttershardError: The verdict of a task, at once.
            TasksFailedError: After all others are done: some were given up.
            StorageError: The scheduler was lost, or there was no worker for too long.
        """
        yield from _Run(self, function, enumerate(tasks), name).results()

    def submit(self, function: Callable[..., Any], attempt: _Attempt[Any]) -> Any:
        """Give a task to Dask; one that failed goes to workers on which it has not, and lacked nothing.

        Raises:
            StorageError: The scheduler is gone.
        """
        elsewhere: list[str] | None = None
        if attempt.failed_on:
            there = present_workers(self.client) or ()
            others = [address for address in there if address not in attempt.failed_on]
            lacking = {_host(address) for address in attempt.lacking}
            elsewhere = [address for address in others if _host(address) not in lacking] or others or None
        try:
            return self.client.submit(
                _guarded,
                function,
                attempt.task,
                self._stock,
                pure=False,
                workers=elsewhere,
                allow_other_workers=elsewhere is not None,
            )
        except ClosedClientError as error:
            raise lost_scheduler() from error

    @property
    def window(self) -> int:
        """How many tasks may be in flight."""
        return self._window or self._workers * IN_FLIGHT

    def look(self) -> list[str]:
        """Look which workers are there, and keep in mind how many, and on which hosts; return their addresses."""
        there = present_workers(self.client) or []
        self._workers = len(there) or self._workers
        self._hosts.update(_host(address) for address in there)
        return there

    def look_after_workers(self) -> None:
        """Look, and start workers in place of those that are gone, unless that was done just now."""
        if time.monotonic() - self._looked > _LOOK_SECONDS:
            if self._replace_lost is not None:
                self._replace_lost()
            self.look()
            self._looked = time.monotonic()

    def is_alone(self, lacking: set[str]) -> bool:
        """Whether there are workers, and none was ever seen on other hosts than these are on.

        One that is away may just be being started again.
        """
        return bool(self.look()) and self._hosts <= {_host(address) for address in lacking}

    def tell_trouble(self, what: str) -> None:
        """Say what a task is tried again for: the first one at once, then one now and then."""
        now = time.monotonic()
        if self._told_trouble is None or now - self._told_trouble > _TROUBLE_SECONDS:
            self._told_trouble = now
            self.progress.note(what)

    def check_alive(self, since: float) -> float:
        """Return since when (monotonic) no worker is known to be there, or now if there is one.

        Raises:
            StorageError: Too long, or the scheduler is gone.
        """
        now = time.monotonic()
        if self.client.status in ("closed", "closing"):
            raise lost_scheduler()
        there = present_workers(self.client, at_most=1)
        if there:
            self._told = False
            return now
        silent = there is None
        if now - since > _TOLD_SECONDS and not self._told:
            self._told = True
            what = "the scheduler does not answer: waiting" if silent else "all workers are gone: waiting for others"
            self.progress.note(f"{what}, for {self.patience_seconds:.0f} s at most")
        if now - since > self.patience_seconds:
            what = "the scheduler has not answered" if silent else "there has been no worker"
            hint = "" if silent else "start workers and "
            raise StorageError(
                f"{what} for {now - since:.0f} s. What is finished is kept: {hint}run the same command again"
            )
        return since


class _Run(Generic[_Task, _Result]):
    """One call of `Cluster.run`."""

    def __init__(
        self,
        cluster: Cluster,
        function: Callable[[_Task], _Result],
        tasks: Iterator[tuple[int, _Task]],
        name: Callable[[int], str],
    ) -> None:
        self._cluster = cluster
        self._function = function
        self._tasks = tasks
        self._name = name
        self._in_flight: dict[Any, _Attempt[_Task]] = {}
        self._delayed: list[tuple[float, int, _Attempt[_Task]]] = []
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._suspects: list[_Attempt[_Task]] = []
        self._given_up: dict[int, str] = {}

    def results(self) -> Iterator[tuple[int, _Result]]:
        alive = time.monotonic()
        try:
            self._cluster.look()
            self._fill()
            while self._in_flight or self._delayed or self._suspects:
                self._cluster.look_after_workers()
                try:
                    future = self._done.get(timeout=self._wait_seconds())
                except queue.Empty:
                    alive = self._cluster.check_alive(alive)
                else:
                    attempt = self._in_flight.pop(future)
                    result = _result(future, _FETCH_SECONDS[min(attempt.fetches, len(_FETCH_SECONDS) - 1)])
                    if result is _LOST:
                        attempt.fetches += 1
                        self._wait_for(future, attempt)
                        alive = self._cluster.check_alive(alive)
                    elif isinstance(result, _Trouble):
                        self._try_again(attempt, result)
                    else:
                        alive = time.monotonic()
                        yield attempt.number, result
                self._fill()
        finally:
            # A client that has lost its scheduler has cancelled them already.
            if self._in_flight and self._cluster.client.status == "running":
                with contextlib.suppress(ClosedClientError):
                    self._cluster.client.cancel(list(self._in_flight), force=True)  # type: ignore[no-untyped-call]
        if self._given_up:
            raise TasksFailedError({self._name(number): why for number, why in sorted(self._given_up.items())})

    def _wait_seconds(self) -> float:
        if not self._delayed:
            return _POLL_SECONDS
        return min(_POLL_SECONDS, max(0.0, self._delayed[0][0] - time.monotonic()))

    def _fill(self) -> None:
        """Submit retries that are due, then new tasks while there is room."""
        while self._delayed and self._delayed[0][0] <= time.monotonic():
            self._submit(heapq.heappop(self._delayed)[2])
        room = self._cluster.window - len(self._in_flight)
        # While everything fails, tasks pile up waiting: as many as that, and not the whole corpus.
        if room > 0 and len(self._delayed) < self._cluster.window * IN_FLIGHT:
            for number, task in itertools.islice(self._tasks, room):
                self._submit(_Attempt(number, task))
        if self._suspects and not self._in_flight and not self._delayed:
            self._submit(self._suspects.pop())

    def _submit(self, attempt: _Attempt[_Task]) -> None:
        self._wait_for(self._cluster.submit(self._function, attempt), attempt)

    def _wait_for(self, future: Any, attempt: _Attempt[_Task]) -> None:
        self._in_flight[future] = attempt
        future.add_done_callback(self._done.put)

    def _try_again(self, attempt: _Attempt[_Task], trouble: _Trouble) -> None:
        cluster = self._cluster
        if trouble.deaths and not attempt.alone:
            # Dask can't tell the task that killed a worker from those that waited on it: alone, it shows.
            attempt.alone = True
            self._suspects.append(attempt)
            cluster.progress.advance(Done(retries=1))
            return
        attempt.tries += max(1, trouble.deaths)
        if trouble.worker is not None:
            attempt.failed_on.add(trouble.worker)
            if isinstance(trouble.error, NoSpaceError | ElsewhereError):
                attempt.lacking.add(trouble.worker)
        exhausted = attempt.tries > cluster.retries
        if isinstance(trouble.error, NoSpaceError) and (exhausted or cluster.is_alone(attempt.lacking)):
            raise trouble.error  # nobody has room: going on would only fill it again
        if isinstance(trouble.error, ElsewhereError) and cluster.is_alone(attempt.lacking):
            raise trouble.error
        if exhausted:
            self._given_up[attempt.number] = _describe(trouble.error)
            return
        cluster.progress.advance(Done(retries=1))
        pauses = PAUSES_SECONDS[:1] if isinstance(trouble.error, ElsewhereError) else PAUSES_SECONDS
        pause = pauses[min(attempt.tries, len(pauses)) - 1]
        cluster.tell_trouble(f"{self._name(attempt.number)}: {_describe(trouble.error)}; tried again in {pause:.0f} s")
        heapq.heappush(self._delayed, (time.monotonic() + pause, attempt.number, attempt))


def _guarded(
    function: Callable[[_Task], _Result], task: _Task, stock: tuple[Any, ...]
) -> _Result | UttershardError | _Trouble:
    """Run on the worker; errors come back as values, so that it is decided in one place what is done about them."""
    worker = get_worker().address
    if stock and (problem := problem_of(worker, stock)):
        return _Trouble(StorageError(problem), worker)
    try:
        return function(task)
    except AccessError as error:
        return error
    except (OSError, ImportError, MemoryError) as error:
        return _Trouble(_portable(error), worker)
    except UttershardError as error:
        return error


def _portable(error: Exception) -> Exception:
    """Return an error that survives a pickle: those of client libraries often do not."""
    if isinstance(error, StorageError):
        return error
    return StorageError(f"{type(error).__name__}: {error}")


def _result(future: Any, seconds: float) -> Any:
    try:
        result = future.result(timeout=seconds)
    except TimeoutError:
        return _LOST
    except KilledWorker as error:
        deaths = error.allowed_failures + 1
        return _Trouble(StorageError(f"{deaths} workers died over it (out of memory?)"), None, deaths)
    except (OSError, ImportError, AttributeError) as error:
        # Not from the task, which returns its errors: it could not be sent, loaded or fetched.
        return _Trouble(_portable(error), None)
    except CancelledError:
        # By the client as it loses its scheduler. If it finds one again, this or another, the task is new to that.
        return _Trouble(StorageError("the scheduler was out of reach"), None)
    if isinstance(result, UttershardError):
        raise result
    return result


def lost_scheduler() -> StorageError:
    """Return what is raised when the client has given up looking for its scheduler."""
    return StorageError("the scheduler is gone. What is finished is kept: run the same command again")


def _describe(error: Exception) -> str:
    return str(error) or type(error).__name__


def _host(address: str) -> str:
    return address.rpartition("://")[2].rpartition(":")[0]
