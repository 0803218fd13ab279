"""G13, G14: a hundred epochs, ended in every way a trainer ends them, leave nothing behind."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from alone import alone
from packed import Packed
from torch.utils.data import DataLoader
from uttershard.pipeline import Batch, ShardLoader
from worker_processes import workers_of

Batches = ShardLoader | DataLoader[Batch]

MIB = 1 << 20
PERSISTENT: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True}
FORKED: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "fork"}
MOST_KEPT_BYTES = 8 * MIB
"""An allocator keeps this and that; a hundred epochs are 180 MB of samples."""


@dataclass(frozen=True)
class Held:
    """What a process and its workers hold."""

    files: list[int]
    shared_memory: int
    threads: int
    workers: list[int]
    private_bytes: list[int]


def held() -> Held:
    """Count what this process and its workers hold."""
    gc.collect()
    me = psutil.Process()
    workers = sorted(workers_of(me), key=lambda process: process.pid)
    family = [me, *workers]
    # torch takes the name of a segment away at once, so that what is leaked shows as mapped only.
    maps = Path("/proc/self/maps").read_text("utf-8").splitlines()
    return Held(
        files=[process.num_fds() for process in family],
        shared_memory=sum("/dev/shm/" in line for line in maps),
        threads=threading.active_count(),
        workers=[process.pid for process in workers],
        private_bytes=[process.memory_full_info().uss for process in family],
    )


Run = Callable[[Packed, dict[str, Any]], list[Held]]


class BugError(Exception):
    """Raised by the trainer."""


def whole(loader: Batches) -> None:
    for batch in loader:
        assert batch.audio.isfinite().all()


def stopped_early(loader: Batches) -> None:
    for batch in loader:
        if batch.step == 1:
            break


def failed(loader: Batches) -> None:
    def train() -> None:
        for batch in loader:
            if batch.step == 2:
                raise BugError

    with pytest.raises(BugError):
        train()


def interrupted(loader: Batches) -> None:
    def train() -> None:
        for _ in loader:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()


def not_begun(loader: Batches) -> None:
    iter(loader)


WAYS: tuple[Callable[[Batches], None], ...] = (whole, stopped_early, failed, interrupted, not_begun)


def run_to_the_end(run: Run, flac: Packed, hands: dict[str, Any]) -> list[Held]:
    """Return also what is held when all that it made has been dropped."""
    return [*run(flac, hands), held()]


def run_one_loader(flac: Packed, hands: dict[str, Any]) -> list[Held]:
    loader = flac.loader(**hands)

    def train(first: int, last: int) -> Held:
        for epoch in range(first, last):
            loader.set_epoch(epoch)
            WAYS[epoch % len(WAYS)](loader)
        loader.set_epoch(last)
        whole(loader)
        return held()

    return [train(0, 20), train(20, 120)]


@pytest.mark.parametrize("hands", [{"threads": 2}, PERSISTENT], ids=["threads", "persistent"])
def test_a_hundred_epochs_of_one_loader(flac: Packed, hands: dict[str, Any]) -> None:
    early, late, end = alone(run_to_the_end, run_one_loader, flac, hands)
    assert len(early.workers) == hands.get("num_workers", 0)
    _assert_flat(early, late)
    assert not end.workers


def run_a_dataloader(flac: Packed, hands: dict[str, Any]) -> list[Held]:
    loader = flac.loader()
    data: DataLoader[Batch] = DataLoader(loader.dataset, batch_size=None, **hands)

    def train(first: int, last: int) -> Held:
        for epoch in range(first, last):
            loader.set_epoch(epoch)
            WAYS[epoch % len(WAYS)](data)
        loader.set_epoch(last)
        whole(data)
        return held()

    return [train(0, 20), train(20, 120)]


@pytest.mark.parametrize("hands", [{}, PERSISTENT], ids=["here", "persistent"])
def test_a_hundred_epochs_of_a_dataloader_of_ones_own(flac: Packed, hands: dict[str, Any]) -> None:
    early, late, end = alone(run_to_the_end, run_a_dataloader, flac, hands)
    assert len(early.workers) == hands.get("num_workers", 0)
    _assert_flat(early, late)
    assert not end.workers


def run_many_loaders(flac: Packed, hands: dict[str, Any]) -> list[Held]:
    def train(first: int, last: int) -> Held:
        for epoch in range(first, last):
            loader = flac.loader(**hands)
            loader.set_epoch(epoch)
            WAYS[epoch % len(WAYS)](loader)
            del loader
        return held()

    return [train(0, 10), train(10, 40)]


@pytest.mark.parametrize("hands", [{"threads": 2}, FORKED, PERSISTENT], ids=["threads", "forked", "persistent"])
def test_a_loader_for_each_epoch(flac: Packed, hands: dict[str, Any]) -> None:
    """As in a search over settings, or where validation makes its loader anew."""
    early, late = alone(run_many_loaders, flac, hands)
    assert not early.workers
    _assert_flat(early, late)


def _assert_flat(early: Held, late: Held) -> None:
    assert late.workers == early.workers
    assert late.files == early.files
    assert late.shared_memory == early.shared_memory
    assert late.threads == early.threads
    grown = [after - before for before, after in zip(early.private_bytes, late.private_bytes, strict=True)]
    assert max(grown) < MOST_KEPT_BYTES
