"""Tasks that fail in known ways, importable on workers as `cluster_tasks`."""

import os
from pathlib import Path

from distributed import get_worker
from uttershard.pipeline.errors import DataError


def worker_of(_task: int) -> str:
    """Return the address of the worker that ran it."""
    return str(get_worker().address)


def pid_of(_task: int) -> int:
    """Return the process that ran it."""
    return os.getpid()


def fail_once_on_each(task: tuple[str, int]) -> str:
    """Fail on the first worker that tries each task, and leave a note of it; return the worker that had luck."""
    folder, number = task
    note = Path(folder) / str(number)
    if not note.exists():
        note.write_text(get_worker().address)
        raise OSError(5, "the file server is away")
    return str(get_worker().address)


def fail_third(task: int) -> int:
    """Fail for ever on the number 3."""
    if task == 3:
        raise OSError(5, "bad sector")
    return task


def die_on_third(task: int) -> int:
    """Kill the worker on the number 3."""
    if task == 3:
        os._exit(9)
    return task


def refuse_third(task: int) -> int:
    """Give a verdict on the number 3."""
    if task == 3:
        raise DataError("no shard 3")
    return task


def complain(task: int) -> int:
    """Write more to standard error than a pipe and the window of an SSH channel hold."""
    for _ in range(64):
        os.write(2, b"distributed.worker - WARNING - " + b"." * 65_000 + b"\n")
    return task
