"""Decode batches in worker processes; samples come back in shared memory that is used again and again.

    trainer --Task (BatchSpec, free slot)--> worker: decodes into that slot --Parcel (no samples)--> trainer

A batch for a CPU is padded float32 already, and the trainer gets it where it lies; for another device it is packed, to
be copied and converted there. As in a BufferPool, a slot is free again when the last tensor on it is gone. Only the
trainer's side gives slots out, so the slab needs no locks.
"""

import copy
import math
import pickle
import shutil
import traceback
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, Sampler

from ..errors import ConfigError, UttershardError
from ..reading.batch import Batch
from ..reading.buffers import BufferPool, SlotPool
from ..reading.process import Decoder
from ..reading.spans import BatchSpec
from .metrics import timed
from .settings import Workers
from .shared import share, shared_empty

_SHARED_MEMORY = Path("/dev/shm")
_SLOTS_OF_TRAINER = 2
"""Besides those that workers fill: of the batch that has just come, and of the one before, which the trainer has."""
_FIELDS = ("keys", "text", "meta", "epoch", "step", "filler", "skipped", "decode_seconds", "storage")
_NUMBERS = ("audio_lengths", "tokens", "token_lengths")


@dataclass(frozen=True)
class _Task:
    """A batch to decode, and the slot of the slab for it; None if the trainer holds on to all of them."""

    spec: BatchSpec
    slot: int | None


@dataclass(frozen=True)
class _Parcel:
    """A decoded batch without its samples: they are in the task's slot, or in `samples` if they do not fit there."""

    fields: dict[str, Any]
    numbers: dict[str, NDArray[np.int64]]
    dtype: torch.dtype
    shape: tuple[int, ...]
    slot: int | None
    samples: torch.Tensor | None = None


@dataclass(frozen=True)
class _Failure:
    """An error in a worker, carried to the trainer as it is (torch would bury it in a traceback text)."""

    error: Exception


class WorkerPool:
    """Worker processes for one loader.

    Args:
        decoder: Copied into each worker.
        settings: How many, and how.
        slot_bytes: Size of the largest batch; a larger one still arrives, the slow way.
        padded: Whether batches are padded by the workers, for a CPU, or packed.

    Raises:
        ConfigError: There is not enough shared memory for the slab.
    """

    def __init__(self, decoder: Decoder, settings: Workers, slot_bytes: int, *, padded: bool) -> None:
        self._settings = settings
        self._storage = decoder.storage
        self._workers: list[BaseProcess] = []
        self._idle = True
        self._failed = False
        self.slot_bytes = slot_bytes
        slots = settings.num_workers * settings.prefetch_factor + _SLOTS_OF_TRAINER
        slab = _shared_slab(settings.num_workers, slots, slot_bytes)
        self._feed = _Feed(SlotPool(slab))
        self._copies = BufferPool()
        self._padded = padded
        self._loader: DataLoader[_Parcel | _Failure] = DataLoader(
            _SlabDataset(decoder, slab, padded=padded),
            sampler=self._feed,
            batch_size=None,
            collate_fn=_identity,
            num_workers=settings.num_workers,
            prefetch_factor=settings.prefetch_factor,
            persistent_workers=settings.persistent_workers,
            multiprocessing_context=settings.multiprocessing_context,
            timeout=settings.timeout,
        )

    @property
    def reusable(self) -> bool:
        """Whether it can decode another epoch: no process of the last one may still write to the slab."""
        if self._settings.persistent_workers:
            return not self._failed and all(map(_is_alive, self._workers))
        return self._idle

    def decode(self, specs: Generator[BatchSpec]) -> Generator[Batch]:
        """Yield the batch of each spec, in order."""
        self._idle = False
        try:
            for parcel in self._receive(specs):
                if isinstance(parcel, _Failure):
                    try:
                        raise parcel.error
                    finally:
                        # Else the error, whose traceback holds this frame, would keep itself, the pool and its workers.
                        del parcel
                yield self._unpack(parcel)
            self._idle = True
        except (Exception, KeyboardInterrupt):
            self._failed = True
            raise

    def _receive(self, specs: Generator[BatchSpec]) -> "Iterator[_Parcel | _Failure]":
        self._feed.specs = specs
        before = set(active_children())
        try:
            parcels = iter(self._loader)
            self._workers = [process for process in active_children() if process not in before] or self._workers
            yield from parcels
        except UttershardError:  # of the plan, which is made in here; some are RuntimeErrors
            raise
        except RuntimeError as error:  # torch has no type of its own for it
            # A worker that touches the missing part of a tar that was cut is killed by SIGBUS: say that, if it is so.
            self._storage.check_sizes()
            raise UttershardError(
                f"a worker process is gone or does not answer ({error}). Killed workers are most often out of "
                f"memory: try fewer than num_workers={self._settings.num_workers}, or a smaller prefetch_factor"
            ) from error
        finally:
            specs.close()  # the DataLoader keeps it, and it the loader: neither would end when it is dropped

    def _unpack(self, parcel: _Parcel) -> Batch:
        slot = None if parcel.slot is None else self._feed.in_flight.pop(parcel.slot)
        if parcel.samples is not None:
            audio = parcel.samples
        elif slot is not None:
            nbytes = math.prod(parcel.shape) * parcel.dtype.itemsize
            audio = slot[:nbytes].view(parcel.dtype).view(parcel.shape)
        else:
            raise UttershardError("a worker sent a batch without its audio")
        if parcel.samples is not None or self._feed.held > _SLOTS_OF_TRAINER:
            # The trainer keeps batches: give the slot back, for the next task, or the segment that torch made for this
            # batch alone, of which a process can have only so many.
            audio = self._copies.empty(parcel.shape, parcel.dtype).copy_(audio)
        tensors: dict[str, Any] = {name: torch.from_numpy(array) for name, array in parcel.numbers.items()}
        tensors["padded" if self._padded else "packed"] = audio
        return Batch(**parcel.fields, **tensors)


class _Feed(Sampler[_Task]):
    """Gives the DataLoader the specs of the epoch that is being iterated, each with a slot."""

    def __init__(self, slots: SlotPool) -> None:
        self.specs: Iterable[BatchSpec] = ()
        self.slots = slots
        self.in_flight: dict[int, torch.Tensor] = {}
        """Slots that workers fill, by number."""

    @property
    def held(self) -> int:
        """Slots of batches that have come and are still there."""
        return self.slots.lent - len(self.in_flight)

    def __iter__(self) -> Iterator[_Task]:
        # This runs with the first task: whatever was left in flight by an iteration that was broken off has been
        # decoded by then, since a DataLoader that keeps its workers hears of each that it has come to the end.
        self.in_flight.clear()
        for spec in self.specs:
            slot = self.slots.take()
            if slot is None:
                yield _Task(spec, None)
                continue
            number = self.slots.number(slot)
            self.in_flight[number] = slot
            del slot  # or this generator would keep it
            yield _Task(spec, number)


class _SlabDataset(Dataset["_Parcel | _Failure"]):
    """Runs in a worker: decodes a batch into its slot of the slab."""

    def __init__(self, decoder: Decoder, slab: torch.Tensor, *, padded: bool) -> None:
        self._decoder = decoder
        self._slab = slab
        self._padded = padded

    def __getitem__(self, task: _Task) -> "_Parcel | _Failure":
        room = self._slab[0, :0] if task.slot is None else self._slab[task.slot]

        def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            nbytes = math.prod(shape) * dtype.itemsize
            if nbytes > len(room):
                return shared_empty(shape, dtype)
            return room[:nbytes].view(dtype).view(shape)

        decode = self._decoder.padded if self._padded else self._decoder.packed
        try:
            batch = timed(self._decoder.storage, decode, task.spec, allocate)
        except Exception as error:  # noqa: BLE001 - whatever it is, the trainer gets it
            return _Failure(_able_to_travel(error))
        return _parcel(batch, task.slot, room)


def _able_to_travel(error: Exception) -> Exception:
    """Give an error the traceback that pickling takes away, and make one that can't be pickled into one that can."""
    trace = "".join(traceback.format_exception(error))
    try:
        pickle.dumps(error)
        copy.deepcopy(error)  # made again from its arguments, as unpickling does
    except Exception:  # noqa: BLE001 - an error of somebody's own class may fail in any way
        return UttershardError(f"{type(error).__name__} in a worker process: {error}\n{trace}")
    error.add_note(f"In a worker process:\n{trace}")
    # Where tracebacks can be pickled (Dask sees to that), those of the trainer's own frames would hang on them.
    chain: list[BaseException | None] = [error]
    while chain:
        link = chain.pop()
        if link is not None and link.__traceback__ is not None:
            link.__traceback__ = None
            chain += [link.__cause__, link.__context__]
    return error


def _is_alive(process: BaseProcess) -> bool:
    return process.is_alive()


def _parcel(batch: Batch, slot: int | None, room: torch.Tensor) -> _Parcel:
    audio = batch.packed if batch.padded is None else batch.padded
    if audio is None:
        raise UttershardError("a worker's batch must have audio")
    inside = slot is not None and audio.untyped_storage().data_ptr() == room.untyped_storage().data_ptr()
    return _Parcel(
        fields={name: getattr(batch, name) for name in _FIELDS},
        # As arrays: torch would give each small tensor a shared-memory segment of its own.
        numbers={name: tensor.numpy() for name in _NUMBERS if (tensor := getattr(batch, name)) is not None},
        dtype=audio.dtype,
        shape=tuple(audio.shape),
        slot=slot,
        samples=None if inside else audio,
    )


def _shared_slab(workers: int, slots: int, slot_bytes: int) -> torch.Tensor:
    slot_bytes = -(-slot_bytes // 64) * 64
    needed = slots * slot_bytes
    if _SHARED_MEMORY.is_dir():
        free = shutil.disk_usage(_SHARED_MEMORY).free
        if needed > free:
            raise ConfigError(
                f"{workers} workers and {slots} batches of {slot_bytes / 1e6:.0f} MB need {needed / 1e6:.0f} MB of "
                f"shared memory, {_SHARED_MEMORY} has {free / 1e6:.0f} MB free: use threads (num_workers=0), fewer "
                "workers, a smaller batch_bins, or give the container more (docker run --shm-size)"
            )
    return share(torch.empty((slots, slot_bytes), dtype=torch.uint8))


def _identity(parcel: Any) -> Any:
    return parcel
