"""Starting a cluster, or connecting to one, and ending it with the job."""

import contextlib
import logging
import math
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from multiprocessing.resource_tracker import ensure_running
from typing import Any

import dask
from distributed import Client
from uttershard.pipeline.errors import ConfigError, StorageError

from ..progress import Progress
from .jobs import JobWatch, SlurmQueue, noting_failures
from .present import present_workers
from .settings import JOB_QUEUES, ClusterSettings, cluster_class
from .steady_clock import use_steady_clock
from .tasks import IN_FLIGHT, Cluster, lost_scheduler
from .workers import check_workers

_DEFAULT_JOB_MEMORY = "2GB"
_Replace = Callable[[], object] | None

_POLL_SECONDS = 0.2
_CLOSE_SECONDS = 60
_PRELOADED = [f"{__package__}.no_interrupts", f"{__package__}.steady_clock"]

_MALLOC = "distributed.nanny.pre-spawn-environ.MALLOC_"
_KEPT_BYTES = 32 << 20
"""Freed memory that a worker keeps. Dask's 64 KB mean fresh pages for every utterance: a tenth of encoding FLAC."""


@contextlib.contextmanager
def start_cluster(settings: ClusterSettings, retries: int, progress: Progress) -> Iterator[Cluster]:
    """Start workers, or find them; those that were started end with the block or with this process.

    Args:
        settings: Which cluster.
        retries: How often a task is given to another worker.
        progress: Told of retries, and by `note` where the dashboard is.

    Raises:
        ConfigError: The options do not fit, or workers lack a package.
        StorageError: The scheduler can't be reached, or no worker came.
    """
    use_steady_clock()
    defaults = {
        # A task is given up when that many workers died over it.
        "distributed.scheduler.allowed-failures": retries,
        "distributed.worker.memory.terminate": False,
        f"{_MALLOC}TRIM_THRESHOLD_": _KEPT_BYTES,
        f"{_MALLOC}MMAP_THRESHOLD_": _KEPT_BYTES,
        # Workers and scheduler look at themselves so often that it costs a packing core a twentieth of its time.
        "distributed.admin.tick.interval": "1s",
        "distributed.worker.profile.enabled": settings.dashboard,
        # A job that is gone is replaced after this; a local worker is first started again by its nanny.
        "distributed.deploy.lost-worker-timeout": "10s" if settings.env == "local" else "5s",
    }
    with (
        dask.config.set(defaults),
        _silent_client(),
        _launched(settings) as cluster,
        _connected(cluster, settings) as client,
        _replacement(cluster, settings, progress) as replace_lost,
    ):
        if settings.dashboard:
            progress.note(f"dashboard: {client.dashboard_link}")
        stock = None  # local workers are this very interpreter
        if settings.env != "local":
            _wait_for_worker(client, cluster, settings, progress, replace_lost)
            try:
                stock = check_workers(client)
            except OSError as error:
                raise lost_scheduler() from error
        yield Cluster(client, _window(settings), retries, progress, settings.patience_seconds, replace_lost, stock)


@contextlib.contextmanager
def _launched(settings: ClusterSettings) -> Iterator[Any]:
    if settings.is_address:
        yield settings.env
        return
    # Ctrl-C in a terminal reaches local workers, too, and it is this process that ends them, in order: from their first
    # moment on they hold it off, as they inherit from the thread that starts them.
    held = {signal.SIGINT} if settings.env == "local" else set()
    if held:
        ensure_running()  # else it is started with the first worker, and lets SIGINT through again
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        cluster = _launch(settings)
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # if it was pressed meanwhile, it is raised here
        yield cluster
    finally:
        _close(cluster, settings)


def _launch(settings: ClusterSettings) -> Any:
    start: Callable[[ClusterSettings], Any] = {"local": _local, "ssh": _ssh, "kubernetes": _kubernetes}.get(
        settings.env, _job_queue
    )
    try:
        return start(settings)
    except (TypeError, ValueError, ArithmeticError) as error:
        given = f" (options: {dict(settings.options)!r})" if settings.options else ""
        raise ConfigError(f"cluster {settings.env!r}: {error}{given}") from error
    except (OSError, RuntimeError) as error:
        raise StorageError(
            f"cluster {settings.env!r} could not be started: {_why(error)}. What is finished is kept: mend the cause, "
            "or, if a worker was killed as it started, just run the same command again"
        ) from error


def _close(cluster: Any, settings: ClusterSettings) -> None:
    try:
        # Not in this thread, where Ctrl-C would cancel it in the middle: jobs would stay in their queue.
        with ThreadPoolExecutor(1, "close-cluster") as thread:
            _wait_to_the_end(thread.submit(cluster.close, timeout=_CLOSE_SECONDS))
    except AssertionError as error:
        # Dask's nanny can't end a worker that it is just starting again: that one ends with this process.
        logging.getLogger(__name__).debug("closing %s: %s", settings.env, error)
    except TimeoutError:
        where = "its queue" if settings.env in JOB_QUEUES else "its processes"
        message = f"workers of {settings.env} are not gone after {_CLOSE_SECONDS} s: look into {where}"
        warnings.warn(message, stacklevel=2)


def _wait_to_the_end(closing: Future[None]) -> None:
    """Wait however often Ctrl-C is pressed: what is not closed here, Dask tries to as the process exits."""
    interrupt: KeyboardInterrupt | None = None
    while not closing.done():
        try:
            wait([closing])
        except KeyboardInterrupt as pressed:
            interrupt = pressed
    try:
        closing.result()
    finally:
        if interrupt is not None:
            raise interrupt


def _why(error: BaseException) -> str:
    """Return the messages of an error and its causes: Dask's own says no more than that a worker did not start."""
    causes = [error]
    while (cause := causes[-1].__cause__) is not None and cause not in causes:
        causes.append(cause)
    return ": ".join(dict.fromkeys(str(each).rstrip(".") or type(each).__name__ for each in causes))


@contextlib.contextmanager
def _silent_client() -> Iterator[None]:
    """Keep Dask's client from logging that it lost the scheduler: it is told by an error, without thirty lines."""
    levels = {"distributed.client": logging.CRITICAL, "distributed.batched": logging.WARNING}
    before = {name: logging.getLogger(name).level for name in levels}
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


@contextlib.contextmanager
def _connected(cluster: Any, settings: ClusterSettings) -> Iterator[Client]:
    try:
        client = Client(cluster)  # type: ignore[no-untyped-call]
    except (TypeError, ValueError) as error:  # the first, if Dask is not configured for tls://
        raise ConfigError(f"cluster {settings.env!r}: no address of a scheduler ({error}): tcp://host:port") from error
    except (OSError, TimeoutError) as error:
        raise StorageError(f"no scheduler answers at {settings.env} ({error})") from error
    with contextlib.closing(client):  # which, unlike `with client`, may end in another thread than it began
        yield client


def _local(settings: ClusterSettings) -> Any:
    """Worker processes on this machine, reachable from it alone."""
    options = {
        "n_workers": settings.n_workers or len(os.sched_getaffinity(0)),
        "threads_per_worker": 1,
        "processes": True,
        # Threads of this process talk without a port, and leave its signals alone.
        **({"host": "127.0.0.1", "preload": _PRELOADED} if settings.options.get("processes", True) else {}),
        "dashboard_address": "127.0.0.1:0",
        "scheduler_kwargs": {"dashboard": settings.dashboard},
        # Lost workers are replaced and their tasks given out again: nothing a person has to read about.
        "silence_logs": logging.CRITICAL,
    }
    return cluster_class("local")(**{**options, **settings.options})


@contextlib.contextmanager
def _replacement(cluster: Any, settings: ClusterSettings, progress: Progress) -> Iterator[_Replace]:
    """Yield what brings a cluster back to its number of workers, where nobody else does."""
    if settings.env == "slurm":
        with contextlib.closing(SlurmQueue()) as queue:
            yield JobWatch(cluster, progress, queue)
    elif settings.env in JOB_QUEUES:
        yield JobWatch(cluster, progress)
    elif settings.env == "ssh":
        from .ssh import SshWatch

        yield SshWatch(cluster, progress)
    elif settings.env == "local":
        # A nanny starts its worker again when it dies, but gives up for good on one that dies as it starts.
        yield partial(cluster.scale, len(cluster.worker_spec))
    else:
        yield None


def _job_queue(settings: ClusterSettings) -> Any:
    """Jobs of a batch system; adaptive, since only then lost jobs are replaced."""
    options = dict(settings.options)
    options.setdefault("cores", 1)
    # Tasks hold the GIL for part of their time: a process a core.
    options.setdefault("processes", options["cores"])
    options.setdefault("memory", _DEFAULT_JOB_MEMORY)
    options.setdefault("silence_logs", "critical")
    scheduler = {"dashboard_address": ":0", "dashboard": settings.dashboard}
    options["scheduler_options"] = {**scheduler, **options.get("scheduler_options", {})}
    kind = cluster_class(settings.env)
    cluster = kind(job_cls=noting_failures(kind.job_cls), **options)
    most, least = _bounds(settings)
    a_job = int(options["processes"])
    cluster.adapt(minimum_jobs=math.ceil(least / a_job), maximum_jobs=math.ceil(most / a_job))
    return cluster


def _ssh(settings: ClusterSettings) -> Any:
    from .ssh import start_ssh  # imports asyncssh, which not everybody has

    return start_ssh(settings)


def _kubernetes(settings: ClusterSettings) -> Any:
    most, least = _bounds(settings)
    cluster = cluster_class("kubernetes")(n_workers=least, **settings.options)
    cluster.adapt(minimum=least, maximum=most)
    return cluster


def _bounds(settings: ClusterSettings) -> tuple[int, int]:
    """Return the most and the least workers."""
    most = settings.n_workers or 1
    return most, most if settings.min_workers is None else settings.min_workers


def _wait_for_worker(
    client: Client, cluster: Any, settings: ClusterSettings, progress: Progress, replace_lost: _Replace
) -> None:
    progress.note(f"waiting for workers of {settings.env}")
    failures: Sequence[str] = getattr(getattr(cluster, "job_cls", None), "failures", ())
    deadline = time.monotonic() + settings.patience_seconds
    while not present_workers(client, at_most=1):
        if client.status in ("closing", "closed"):
            raise lost_scheduler()
        if failures:
            raise StorageError(f"a job could not be submitted: {failures[0].strip()}")
        if time.monotonic() > deadline:
            hint = "look at its queue" if settings.env in JOB_QUEUES else "start some"
            raise StorageError(f"no worker of {settings.env} came in {settings.patience_seconds:.0f} s: {hint}")
        if replace_lost is not None:
            replace_lost()
        time.sleep(_POLL_SECONDS)


def _window(settings: ClusterSettings) -> int | None:
    if settings.is_address:
        # Nothing to start or stop: what can be honoured is how many of its workers are used at a time.
        return settings.n_workers
    return None if settings.n_workers is None else settings.n_workers * IN_FLIGHT
