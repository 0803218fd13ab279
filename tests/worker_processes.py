"""Processes that decode for this one."""

import contextlib
from collections.abc import Iterable

import psutil

_SECONDS = 120


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """Decoder processes that live; multiprocessing's own helpers stay for the life of a process."""
    found = []
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # which a zombie is, too
            if not any(helper in " ".join(child.cmdline()) for helper in ("resource_tracker", "forkserver")):
                found.append(child)
    return found


def still_alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return those that have not ended, nor end in a while: one that was told to may take its time."""
    return list(psutil.wait_procs(list(processes), timeout=_SECONDS)[1])
