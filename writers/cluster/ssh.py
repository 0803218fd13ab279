"""Workers on hosts that are reached by SSH. One whose process has ended is started again on its host: Dask leaves it.

Built from the parts of Dask's `SSHCluster`, but for its workers: nobody reads what those write, so that after two
megabytes of warnings they stand still, and nobody notices when they end.
"""

import asyncio
import itertools
import json
import logging
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import asyncssh
import dask
from distributed import SpecCluster
from distributed.deploy import ssh
from distributed.deploy.spec import ProcessInterface

from ..progress import Progress
from .settings import ClusterSettings

_LOOK_SECONDS = 5.0
_PAUSES_SECONDS = (0.0, 15.0, 60.0, 300.0)
"""Before a worker is started again, the last one again and again: its host may be down for good."""

_WELL_SECONDS = 600.0
"""A worker that ran so long is no longer one that ends whenever it is started."""

_START_SECONDS = 300.0
"""For importing Dask from a file server that a hundred hosts ask at the same time."""

_KEEPALIVE_SECONDS = 15
"""A host without power says nothing: after four times this, its connection counts as lost."""

_UP = b"worker at"
_KEPT_BYTES = 4096
_CHUNK_BYTES = 1 << 16


class SshWorker(ProcessInterface):
    """A worker process on a host, with its nanny; `start` may be called again when it has ended.

    Args:
        scheduler: Address.
        host: Name or address.
        name: What the scheduler knows the worker by.
        connect: Arguments of `asyncssh.connect`.
        python: Command of the interpreter there, as a shell takes it.
        options: Of Dask's `Nanny`.
    """

    def __init__(
        self, scheduler: str, host: str, name: str, connect: Mapping[str, Any], python: str, options: Mapping[str, Any]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.host = host
        self.name = name
        self.trouble: str | None = None
        """Why it could not be started again, the last time that was tried."""
        self._connect = {"keepalive_interval": _KEEPALIVE_SECONDS, **connect}
        spec = {name: {"cls": "distributed.Nanny", "opts": {**options, "name": name}}}
        arguments = shlex.join(["-m", "distributed.cli.dask_spec", scheduler, "--spec", json.dumps(spec)])
        self._command = f"{python} {arguments}"
        self._connection: Any = None
        self._process: Any = None
        self._reading: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None
        self._written = b""

    @property
    def has_ended(self) -> bool:
        """Whether it ran, and its process is over, or out of reach."""
        process = self._process
        if self._starting is not None or process is None:
            return False
        return process.returncode is not None or bool(process.is_closing())

    @property
    def last_words(self) -> str:
        """The last line it wrote."""
        lines = self._written.decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    async def start(self) -> None:
        """Start it and wait until it runs.

        Raises:
            OSError: The host can't be reached, or the worker does not start there.
        """
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self._start()
        except (OSError, asyncssh.Error) as error:
            self._hang_up()
            why = str(error) or f"no worker after {_START_SECONDS:.0f} s"
            raise OSError(f"{self.host}: {why}") from error
        await super().start()  # type: ignore[no-untyped-call]

    async def start_again(self) -> None:
        """Start it once more; `trouble` says why it did not."""
        self._starting = asyncio.ensure_future(self.start())
        await asyncio.wait([self._starting])
        if not self._starting.cancelled():
            error = self._starting.exception()
            self.trouble = None if error is None else str(error)
        self._starting = None

    async def close(self) -> None:
        """End it, also while it is being started again."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        self._hang_up()
        await super().close()  # type: ignore[no-untyped-call]

    async def _start(self) -> None:
        self._hang_up()
        self._written = b""
        self._connection = await asyncssh.connect(self.host, **self._connect)
        settings = dask.config.serialize(dask.config.global_config)
        self._process = await self._connection.create_process(
            f"env DASK_INTERNAL_INHERIT_CONFIG={settings} {self._command}", stdout=asyncssh.DEVNULL, encoding=None
        )
        up = asyncio.Event()
        self._reading = asyncio.ensure_future(self._read(self._process.stderr, up))
        waiting = asyncio.ensure_future(up.wait())
        try:
            await asyncio.wait((self._reading, waiting), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if not up.is_set():
            raise OSError(f"the worker ended as it started: {self.last_words or 'without a word'}")

    async def _read(self, stream: Any, up: asyncio.Event) -> None:
        """Read what it writes, or it would stand still."""
        try:
            while chunk := await stream.read(_CHUNK_BYTES):
                written = self._written + chunk
                if _UP in written:
                    up.set()
                self._written = written[-_KEPT_BYTES:]
        except (OSError, asyncssh.Error) as error:
            self._written += f"\n{error}".encode()

    def _hang_up(self) -> None:
        if self._process is not None and not self._process.is_closing():
            self._process.kill()
        if self._connection is not None:
            self._connection.close()


class _Scheduler(ssh.Scheduler):
    """Dask's, but what it writes is read."""

    async def start(self) -> None:
        await super().start()  # type: ignore[no-untyped-call]
        process: Any = self.proc
        await process.redirect(stdout=asyncssh.DEVNULL, stderr=asyncssh.DEVNULL)


def start_ssh(settings: ClusterSettings) -> SpecCluster:
    """Start a scheduler on the first host, and workers by turns on the others; on the first, too, if it is the only."""
    options = dict(settings.options)
    hosts = options["hosts"]
    worker_options = dict(options.get("worker_options") or {})
    on_each = worker_options.pop("n_workers", 1)
    numbers = range(1, len(hosts)) if len(hosts) > 1 else range(1)
    wanted = settings.n_workers or len(numbers) * on_each

    def of_host(name: str, number: int) -> Any:
        value = options.get(name)
        if isinstance(value, list) and len(value) != len(hosts):
            raise ValueError(f"{name} has {len(value)} entries for {len(hosts)} hosts")
        return value[number] if isinstance(value, list) else value

    def python(number: int) -> str:
        return of_host("remote_python", number) or shlex.quote(sys.executable)

    def worker(number: int, count: int) -> dict[str, Any]:
        return {
            "cls": SshWorker,
            "options": {
                "host": hosts[number],
                # Not the cluster's name for it: Dask would end one whose worker is away for some seconds.
                "name": f"ssh-{count}",
                "connect": of_host("connect_options", number) or {},
                "python": python(number),
                "options": worker_options,
            },
        }

    scheduler = {
        "cls": _Scheduler,
        "options": {
            "address": hosts[0],
            "connect_options": of_host("connect_options", 0) or {},
            "kwargs": options.get("scheduler_options") or {},
            "remote_python": python(0),
        },
    }
    by_turns = itertools.islice(itertools.cycle(numbers), wanted)
    workers = {count: worker(number, count) for count, number in enumerate(by_turns)}
    cluster: Callable[..., SpecCluster] = SpecCluster
    return cluster(workers, scheduler, name="SSHCluster", silence_logs=logging.CRITICAL)


@dataclass
class _Tries:
    """How often a worker was started again since it last was well."""

    count: int = 0
    last: float = 0.0


class SshWatch:
    """Called now and then, it starts workers over SSH again whose processes have ended.

    Args:
        cluster: Of `start_ssh`.
        progress: Told of a host that is down, or whose workers end again and again: once, until they are well.
        clock: Gives seconds.
    """

    def __init__(self, cluster: Any, progress: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._progress = progress
        self._clock = clock
        self._looked = clock()
        self._tries: dict[str, _Tries] = {}
        self._missed: set[str] = set()
        self._told: set[str] = set()

    def __call__(self) -> None:
        """Look for workers that are gone, unless that was done just now."""
        now = self._clock()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        # Lists, since both change in Dask's thread meanwhile.
        there = {worker["name"] for worker in list(self._cluster.scheduler_info["workers"].values())}
        workers = list(self._cluster.workers.values())
        # One whose connection was cut may be at work all the same.
        missed = {worker.name for worker in workers if worker.has_ended and worker.name not in there}
        for worker in workers:
            tries = self._tries.setdefault(worker.name, _Tries())
            if worker.name in missed & self._missed:
                self._start_again(worker, tries, now)
            elif not worker.has_ended and now - tries.last > _WELL_SECONDS:
                tries.count = 0
                self._told.discard(worker.host)
        self._missed = missed

    def _start_again(self, worker: SshWorker, tries: _Tries, now: float) -> None:
        if now - tries.last < _PAUSES_SECONDS[min(tries.count, len(_PAUSES_SECONDS) - 1)]:
            return
        tries.last = now
        tries.count += 1
        if tries.count == 2 and worker.host not in self._told:
            self._told.add(worker.host)
            why = worker.trouble or f"{worker.host}: its worker has ended again: {worker.last_words}"
            self._progress.note(f"workers are lost, and started again now and then: {why}")
        self._cluster.loop.add_callback(worker.start_again)
