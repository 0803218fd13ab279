"""A Dask scheduler and workers as processes of their own, so that each can be killed."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from distributed import Client
from free_ports import free_ports

_SECONDS = 120.0


class DaskProcesses:
    """A scheduler and the workers that were started for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (self.port,) = free_ports(1)
        self.scheduler: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []

    @property
    def address(self) -> str:
        """Where the scheduler is, also after it was killed and started again."""
        return f"tcp://127.0.0.1:{self.port}"

    def start_scheduler(self, environment: Mapping[str, str] | None = None) -> None:
        """Start it and wait until it answers."""
        options = ("--host", "127.0.0.1", "--port", str(self.port), "--no-dashboard", "--no-show")
        self.scheduler = self._start("dask_scheduler", *options, environment=environment)
        deadline = time.monotonic() + _SECONDS
        while not _answers(self.port):
            assert self.scheduler.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def start_worker(
        self, *, host: str = "127.0.0.1", environment: Mapping[str, str] | None = None, prefix: tuple[str, ...] = ()
    ) -> subprocess.Popen[bytes]:
        """Start a worker with one thread, without a nanny; `prefix` is a command that runs it."""
        options = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", host, "--death-timeout", "120")
        local = ("--local-directory", str(self.folder / "local"))
        worker = self._start("dask_worker", self.address, *options, *local, environment=environment, prefix=prefix)
        self.workers.append(worker)
        return worker

    def wait_for_workers(self) -> None:
        """Wait until the scheduler has all that were started."""
        with Client(self.address) as client:  # type: ignore[no-untyped-call]
            client.wait_for_workers(len(self.workers), timeout=_SECONDS)

    def stop(self) -> None:
        """Kill all that is left."""
        for process in [*self.workers, self.scheduler]:
            if process is not None:
                process.kill()
                process.wait()

    def log(self) -> str:
        """Return what they wrote."""
        return (self.folder / "dask.log").read_text()[-4000:]

    def _start(
        self, module: str, *options: str, environment: Mapping[str, str] | None = None, prefix: tuple[str, ...] = ()
    ) -> subprocess.Popen[bytes]:
        command = [*prefix, sys.executable, "-m", f"distributed.cli.{module}", *options]
        with (self.folder / "dask.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **(environment or {})})


@contextlib.contextmanager
def dask_processes(folder: Path, workers: int) -> Iterator[DaskProcesses]:
    """Start a scheduler and workers; all are killed in the end."""
    processes = DaskProcesses(folder)
    try:
        processes.start_scheduler()
        for _ in range(workers):
            processes.start_worker()
        yield processes
    finally:
        processes.stop()


def _answers(port: int) -> bool:
    with socket.socket() as each:
        each.settimeout(1)
        return each.connect_ex(("127.0.0.1", port)) == 0
