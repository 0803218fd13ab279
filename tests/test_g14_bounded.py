"""G14 bounded: memory, buffers and open files do not grow with epochs; a batch in the trainer's hands never changes."""

from __future__ import annotations

import gc
import pickle
import resource
import tracemalloc
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from alone import alone
from packed import Packed, keys_of, run, seen
from torch.utils.data import DataLoader
from uttershard.pipeline import Batch
from uttershard.pipeline.reading.buffers import BufferPool
from uttershard.pipeline.storage import local
from uttershard.pipeline.storage.local import LocalTars

FORKED: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True}
HANDS: tuple[dict[str, Any], ...] = ({"threads": 2}, FORKED)
MIB = 1 << 20


@pytest.mark.parametrize("hands", HANDS, ids=str)
def test_batches_that_are_held_never_change(flac: Packed, hands: dict[str, Any]) -> None:
    """Twenty batches are kept while others are decoded into whatever memory is free."""
    fresh = list(run(flac.loader(threads=1), *range(6)))
    loader = flac.loader(**hands)
    held: list[Batch] = []
    for epoch in range(6):
        loader.set_epoch(epoch)
        held += loader
    assert len(held) > 20
    assert [seen(batch) for batch in held] == fresh


@pytest.mark.parametrize("persistent", [False, True])
def test_memory_that_workers_decode_into_is_used_again(flac: Packed, persistent: bool) -> None:
    """A CPU's batches lie where the worker left them: a slot for each that a worker has, two for the trainer."""
    loader = flac.loader(num_workers=2, multiprocessing_context="fork", persistent_workers=persistent)
    places = set()
    for epoch in range(4):
        loader.set_epoch(epoch)
        for batch in loader:
            places.add(batch.audio.data_ptr())
    assert len(places) <= 2 * 2 + 2


def test_a_trainer_that_keeps_batches_leaves_workers_their_memory(flac: Packed) -> None:
    loader = flac.loader(**FORKED)
    held: list[Batch] = []
    for epoch in range(3):
        loader.set_epoch(epoch)
        held += loader
    assert len(held) > 2 * 2 + 2
    assert loader._processes is not None
    assert loader._processes._feed.held <= 2
    held.clear()
    assert loader._processes._feed.slots.lent == 0


def test_what_a_trainer_makes_of_a_batch_keeps_its_memory(flac: Packed) -> None:
    """A view, a numpy array, a slice: as long as one is there, the buffer is not lent again."""
    loader = flac.loader(threads=2)
    kept: list[tuple[Any, bytes]] = []
    for epoch in range(4):
        loader.set_epoch(epoch)
        for number, batch in enumerate(loader):
            views: list[Any] = [
                batch.audio[0],
                batch.audio.numpy()[0],
                batch.audio.T[:, 0],
                memoryview(batch.audio[0].numpy()),
            ]
            view = views[number % len(views)]
            kept.append((view, np.asarray(view).tobytes()))
    for view, content in kept:
        assert np.asarray(view).tobytes() == content


def resident(process: psutil.Process) -> int:
    """Bytes that belong to a process alone."""
    return int(process.memory_full_info().uss)


def grown_bytes(flac: Packed, hands: dict[str, Any]) -> list[int]:
    loader = flac.loader(**hands)
    me = psutil.Process()
    before = set(me.children())

    def family() -> list[psutil.Process]:
        return [me, *(child for child in me.children() if child not in before)]

    keys_of(run(loader, *range(10)))
    gc.collect()
    processes = family()
    early = [resident(process) for process in processes]
    keys_of(run(loader, *range(10, 110)))
    gc.collect()
    assert family() == processes
    late = [resident(process) for process in processes]
    return [after - then for then, after in zip(early, late, strict=True)]


@pytest.mark.parametrize("hands", HANDS, ids=str)
def test_memory_is_flat_over_epochs(flac: Packed, hands: dict[str, Any]) -> None:
    # 100 epochs are 180 MB of float32 samples; what is left over is the allocator's play.
    assert max(alone(grown_bytes, flac, hands)) < 8 * MIB


def grown_objects(flac: Packed) -> int:
    loader = flac.loader(threads=2)
    keys_of(run(loader, *range(3)))
    gc.collect()
    tracemalloc.start()
    keys_of(run(loader, *range(3, 6)))
    gc.collect()
    early, _ = tracemalloc.get_traced_memory()
    keys_of(run(loader, *range(6, 30)))
    gc.collect()
    late, _ = tracemalloc.get_traced_memory()
    return late - early


def test_python_objects_are_flat_over_epochs(flac: Packed) -> None:
    # No more than a held buffer or two.
    assert alone(grown_objects, flac) < MIB


class _Counting(BufferPool):
    """Counts the buffers that are made."""

    made = 0

    def _take(self, nbytes: int) -> Any:
        free = len(self._free)
        buffer = super()._take(nbytes)
        self.made += free == len(self._free)
        return buffer


def test_buffers_are_used_again() -> None:
    pool = _Counting()
    for _ in range(50):
        tensor = pool.empty((3, 1000), torch.float32)
        tensor.fill_(1)
        del tensor
    assert pool.made == 1


def test_a_pool_keeps_no_more_than_it_may() -> None:
    pool = BufferPool(max_free=3)
    held = [pool.empty((100,), torch.int16) for _ in range(10)]
    held.clear()
    pool._collect()
    assert len(pool._free) == 3
    assert not pool._lent


def test_buffers_grow_to_what_is_needed() -> None:
    pool = _Counting()
    for length in (*range(1, 200), *range(200, 1, -1)):
        assert pool.empty((length,), torch.float32).shape == (length,)
    assert pool.made < 45  # a geometric series, not one a length
    pool._collect()
    assert len(pool._free) == 1


@pytest.mark.parametrize("shape", [(0,), (4, 0)])
def test_an_empty_tensor_is_no_special_case(shape: tuple[int, ...]) -> None:
    assert BufferPool().empty(shape, torch.float32).shape == shape


def test_the_index_is_not_copied_into_workers(flac: Packed) -> None:
    """What is sent to a worker does not grow with the utterances; a million of them need 50 MB of columns."""
    sent = bytes(ForkingPickler.dumps(flac.loader().dataset))
    assert len(sent) < 12_000
    assert not any(key.encode() in sent for key in flac.sources)


def test_workers_share_one_index(flac: Packed) -> None:
    loader = flac.loader()
    data: DataLoader[Batch] = DataLoader(loader.dataset, batch_size=None, **FORKED)
    assert keys_of(data) == keys_of(flac.loader())


def test_open_files_are_bounded(flac: Packed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset may have more tars than a process may have files."""
    monkeypatch.setattr(local, "most_maps", lambda: 2)
    # Its own files: tests before this one may have left loaders to the garbage collector.
    packed = flac.copy(tmp_path / "tars")
    loader = packed.loader(threads=2)
    me = psutil.Process()
    most = 0
    for batch in loader:
        opened = [Path(file.path) for file in me.open_files()]
        most = max(most, sum(path.suffix == ".tar" and path.parent == packed.address for path in opened))
        del batch
    assert most <= 4 * 2 + 2  # what two threads read from while the maps are exchanged
    assert keys_of(run(loader, 0)) == keys_of(flac.loader())


@pytest.mark.parametrize(
    ("soft", "most"), [(1024, 512), (resource.RLIM_INFINITY, local.MAX_MAPS), (10**9, local.MAX_MAPS), (1, 1)]
)
def test_maps_leave_files_for_the_trainer(monkeypatch: pytest.MonkeyPatch, soft: int, most: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert local.most_maps() == most


def test_storage_goes_to_a_worker_without_its_maps(flac: Packed) -> None:
    loader = flac.loader(threads=1)
    next(iter(loader))
    storage = loader._storage
    assert isinstance(storage, LocalTars)
    assert storage._maps
    assert not pickle.loads(pickle.dumps(storage))._maps  # noqa: S301 - just made
