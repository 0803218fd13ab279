"""How batches are made and handed over; none of it changes what is in them."""

import inspect
import multiprocessing
import os
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from ..errors import ConfigError

MAX_DEFAULT_THREADS = 8


def check_names(owner: type, given: Iterable[str], more: Iterable[str] = ()) -> None:
    """Refuse arguments of a class that it does not have.

    Args:
        owner: The class.
        given: Names of arguments that its signature does not list.
        more: Names that it takes besides.

    Raises:
        TypeError: As Python does, with the name that may be meant.
    """
    for name in given:
        if name not in more:
            close = get_close_matches(name, [*inspect.signature(owner).parameters, *more], n=1)
            meant = f": did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"{owner.__name__} got an unexpected keyword argument {name!r}{meant}")


@dataclass(frozen=True)
class Workers:
    """Where decoding runs. Names and meanings are those of torch's DataLoader, `threads` is ours.

    Attributes:
        num_workers: Decoder processes; 0 decodes in threads of the training process.
        threads: Decoder threads with `num_workers=0`; None for the cores this rank may use, 8 at most. Decoders
            release the GIL, so threads are the faster choice unless Python code runs on every utterance.
        prefetch_factor: Batches that each worker or thread prepares ahead.
        persistent_workers: Keep processes from epoch to epoch.
        multiprocessing_context: "fork", "forkserver" or "spawn"; None for Python's default.
        timeout: Seconds to wait for a batch before the loader gives up with an error; every wait has a limit.
        pin_memory: Stage batches in pinned memory; None where the device is a GPU.
    """

    num_workers: int = 0
    threads: int | None = None
    prefetch_factor: int = 2
    persistent_workers: bool = False
    multiprocessing_context: str | None = None
    timeout: float = 300.0
    pin_memory: bool | None = None

    def __post_init__(self) -> None:
        _whole("num_workers", self.num_workers, 0)
        _whole("prefetch_factor", self.prefetch_factor, 1)
        if self.threads is not None:
            _whole("threads", self.threads, 1)
        if self.num_workers and self.threads is not None:
            raise ConfigError(
                f"num_workers={self.num_workers} and threads={self.threads}: decode in processes or threads, not both"
            )
        if not self.num_workers:
            for name in ("persistent_workers", "multiprocessing_context"):
                if getattr(self, name):
                    raise ConfigError(f"{name}={getattr(self, name)!r} has no effect with num_workers=0: leave it out")
        if self.multiprocessing_context not in (None, "fork", "forkserver", "spawn"):
            raise ConfigError(
                f"multiprocessing_context={self.multiprocessing_context!r}: choose fork, forkserver or spawn"
            )
        if not isinstance(self.timeout, int | float) or not self.timeout > 0:
            raise ConfigError(f"timeout={self.timeout!r}: must be above 0 seconds, since every wait has a limit")
        if self.pin_memory and not torch.accelerator.is_available():
            raise ConfigError("pin_memory=True needs a GPU, and torch finds none here: leave it out")

    @property
    def decode_threads(self) -> int:
        """Threads that decode when there are no worker processes."""
        if self.threads is not None:
            return self.threads
        ranks_here = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        return max(1, min(MAX_DEFAULT_THREADS, len(os.sched_getaffinity(0)) // ranks_here))

    def pin(self, device: torch.device) -> bool:
        """Whether batches for this device are staged in (or, for a CPU, handed over in) pinned memory."""
        return device.type == "cuda" if self.pin_memory is None else self.pin_memory


def check_picklable(workers: Workers, **functions: Any) -> None:
    """Refuse functions that can't be sent to the worker processes, which Python would do in a long traceback.

    Raises:
        ConfigError: One can't be pickled, and the processes are not forked; the message names it.
    """
    method = workers.multiprocessing_context or multiprocessing.get_start_method()
    if not workers.num_workers or method == "fork":
        return
    for name, function in functions.items():
        try:
            ForkingPickler.dumps(function)
        except Exception as error:
            raise ConfigError(
                f"{name}={function!r} can't be sent to worker processes that are started by {method} ({error}): define "
                "it at the top of a module (no lambda, no function within a function), decode in threads "
                "(num_workers=0), or use multiprocessing_context='fork'"
            ) from error


def _whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} must be a whole number of {least} or more, not {value!r}")
