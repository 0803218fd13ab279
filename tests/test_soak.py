"""G13, G14: a hundred epochs, ended in every way a trainer ends them, leave nothing behind."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from packed import Packed
from torch.utils.data import DataLoader
from uttershard.pipeline import Batch, ShardLoader

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
    processes: set[psutil.Process]
    private_bytes: list[int]


def held(others: set[psutil.Process]) -> Held:
    """Count what this process and its workers hold; `others` are children that are none."""
    gc.collect()
    me = psutil.Process()
    workers = sorted(set(me.children(recursive=True)) - others, key=lambda process: process.pid)
    family = [me, *workers]
    # torch takes the name of a segment away at once, so that what is leaked shows as mapped only.
    maps = Path("/proc/self/maps").read_text("utf-8").splitlines()
    return Held(
        files=[process.num_fds() for process in family],
        shared_memory=sum("/dev/shm/" in line for line in maps),
        threads=threading.active_count(),
        processes=set(workers),
        private_bytes=[process.memory_full_info().uss for process in family],
    )


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


@pytest.fixture
def others() -> Iterator[set[psutil.Process]]:
    """Children from before; none is added by the test."""
    gc.collect()
    before = set(psutil.Process().children(recursive=True))
    yield before
    gc.collect()
    left = set(psutil.Process().children(recursive=True)) - before
    assert not [process for process in left if "resource_tracker" not in " ".join(process.cmdline())]


@pytest.mark.parametrize("hands", [{"threads": 2}, PERSISTENT], ids=["threads", "persistent"])
def test_a_hundred_epochs_of_one_loader(flac: Packed, others: set[psutil.Process], hands: dict[str, Any]) -> None:
    loader = flac.loader(**hands)

    def train(first: int, last: int) -> Held:
        for epoch in range(first, last):
            loader.set_epoch(epoch)
            WAYS[epoch % len(WAYS)](loader)
        loader.set_epoch(last)
        whole(loader)
        return held(others)

    early, late = train(0, 20), train(20, 120)
    assert len(early.processes) == hands.get("num_workers", 0)
    _assert_flat(early, late)


@pytest.mark.parametrize("hands", [{}, PERSISTENT], ids=["here", "persistent"])
def test_a_hundred_epochs_of_a_dataloader_of_ones_own(
    flac: Packed, others: set[psutil.Process], hands: dict[str, Any]
) -> None:
    loader = flac.loader()
    data: DataLoader[Batch] = DataLoader(loader.dataset, batch_size=None, **hands)

    def train(first: int, last: int) -> Held:
        for epoch in range(first, last):
            loader.set_epoch(epoch)
            WAYS[epoch % len(WAYS)](data)
        loader.set_epoch(last)
        whole(data)
        return held(others)

    early, late = train(0, 20), train(20, 120)
    assert len(early.processes) == hands.get("num_workers", 0)
    _assert_flat(early, late)


@pytest.mark.parametrize("hands", [{"threads": 2}, FORKED, PERSISTENT], ids=["threads", "forked", "persistent"])
def test_a_loader_for_each_epoch(flac: Packed, others: set[psutil.Process], hands: dict[str, Any]) -> None:
    """As in a search over settings, or where validation makes its loader anew."""

    def train(first: int, last: int) -> Held:
        for epoch in range(first, last):
            loader = flac.loader(**hands)
            loader.set_epoch(epoch)
            WAYS[epoch % len(WAYS)](loader)
            del loader
        return held(others)

    early, late = train(0, 10), train(10, 40)
    assert not early.processes
    _assert_flat(early, late)


def _assert_flat(early: Held, late: Held) -> None:
    assert late.processes == early.processes
    assert late.files == early.files
    assert late.shared_memory == early.shared_memory
    assert late.threads == early.threads
    grown = [after - before for before, after in zip(early.private_bytes, late.private_bytes, strict=True)]
    assert max(grown) < MOST_KEPT_BYTES
