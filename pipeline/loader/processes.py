"""Decode batches in worker processes; samples come back in shared memory that is used again and again.

    trainer --BatchSpec--> worker: decodes into slot n % slots of its slab --Parcel (no samples)--> trainer: copies out

The slab needs no locks. torch's DataLoader gives a worker task n only when it has received the worker's result
n - prefetch_factor, and hands that result out right after; the trainer's side copies it out of its slot before it asks
for the next. So with prefetch_factor + 1 slots, slot n % slots has been emptied when the worker writes to it.
"""

import copy
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
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from ..errors import ConfigError, UttershardError
from ..reading.batch import Batch
from ..reading.process import Decoder
from ..reading.spans import BatchSpec
from .metrics import timed
from .settings import Workers
from .shared import share

_SHARED_MEMORY = Path("/dev/shm")
_FIELDS = ("keys", "text", "meta", "epoch", "step", "filler", "skipped", "decode_seconds", "storage")
_NUMBERS = ("audio_lengths", "tokens", "token_lengths")


@dataclass(frozen=True)
class _Parcel:
    """A decoded batch without its samples: they are in a slot of the slab, or in `samples` if they do not fit there."""

    fields: dict[str, Any]
    numbers: dict[str, NDArray[np.int64]]
    dtype: torch.dtype
    shape: tuple[int, ...]
    worker: int
    slot: int
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
        slot_bytes: Size of the largest batch in packed form; a larger one still arrives, the slow way.

    Raises:
        ConfigError: There is not enough shared memory for the slab.
    """

    def __init__(self, decoder: Decoder, settings: Workers, slot_bytes: int) -> None:
        self._settings = settings
        self._storage = decoder.storage
        self._workers: list[BaseProcess] = []
        self._failed = False
        self.slot_bytes = slot_bytes
        self._feed = _Feed()
        self._slab = _shared_slab(settings.num_workers, settings.prefetch_factor + 1, slot_bytes)
        self._loader: DataLoader[_Parcel | _Failure] = DataLoader(
            _SlabDataset(decoder, self._slab),
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
        """Whether the processes are there for another epoch, all of them, with nothing left over from the last."""
        return self._settings.persistent_workers and not self._failed and all(map(_is_alive, self._workers))

    def decode(self, specs: Generator[BatchSpec]) -> Generator[Batch]:
        """Yield the batch of each spec, in order. Its packed samples are valid until the next one is asked for."""
        try:
            for parcel in self._receive(specs):
                if isinstance(parcel, _Failure):
                    raise parcel.error
                yield self._unpack(parcel)
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
        packed = parcel.samples
        if packed is None:
            nbytes = int(np.prod(parcel.shape)) * parcel.dtype.itemsize
            packed = self._slab[parcel.worker, parcel.slot, :nbytes].view(parcel.dtype).view(parcel.shape)
        tensors: dict[str, Any] = {name: torch.from_numpy(array) for name, array in parcel.numbers.items()}
        return Batch(**parcel.fields, **tensors, packed=packed)


class _Feed(Sampler[BatchSpec]):
    """Gives the DataLoader the specs of the epoch that is being iterated."""

    def __init__(self) -> None:
        self.specs: Iterable[BatchSpec] = ()

    def __iter__(self) -> Iterator[BatchSpec]:
        return iter(self.specs)


class _SlabDataset(Dataset["_Parcel | _Failure"]):
    """Runs in a worker: decodes the batch of a spec into the next slot of the worker's slab."""

    def __init__(self, decoder: Decoder, slab: torch.Tensor) -> None:
        self._decoder = decoder
        self._slab = slab
        self._tasks = 0

    def __getitem__(self, spec: BatchSpec) -> "_Parcel | _Failure":
        info = get_worker_info()
        if info is None:
            raise UttershardError("the slab dataset runs in DataLoader workers only")
        slot, self._tasks = self._tasks % self._slab.shape[1], self._tasks + 1
        room = self._slab[info.id, slot]

        def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            nbytes = int(np.prod(shape)) * dtype.itemsize
            if nbytes > len(room):
                return torch.empty(shape, dtype=dtype)
            return room[:nbytes].view(dtype).view(shape)

        try:
            batch = timed(self._decoder.storage, self._decoder.packed, spec, allocate)
        except Exception as error:  # noqa: BLE001 - whatever it is, the trainer gets it
            return _Failure(_able_to_travel(error))
        return _parcel(batch, info.id, slot, room)


def _able_to_travel(error: Exception) -> Exception:
    """Give an error the traceback that pickling takes away, and make one that can't be pickled into one that can."""
    trace = "".join(traceback.format_exception(error))
    try:
        pickle.dumps(error)
        copy.deepcopy(error)  # made again from its arguments, as unpickling does
    except Exception:  # noqa: BLE001 - an error of somebody's own class may fail in any way
        return UttershardError(f"{type(error).__name__} in a worker process: {error}\n{trace}")
    error.add_note(f"In a worker process:\n{trace}")
    return error


def _is_alive(process: BaseProcess) -> bool:
    return process.is_alive()


def _parcel(batch: Batch, worker: int, slot: int, room: torch.Tensor) -> _Parcel:
    packed = batch.packed
    if packed is None:
        raise UttershardError("a worker's batch must be packed")
    inside = packed.untyped_storage().data_ptr() == room.untyped_storage().data_ptr()
    return _Parcel(
        fields={name: getattr(batch, name) for name in _FIELDS},
        # As arrays: torch would give each small tensor a shared-memory segment of its own.
        numbers={name: tensor.numpy() for name in _NUMBERS if (tensor := getattr(batch, name)) is not None},
        dtype=packed.dtype,
        shape=tuple(packed.shape),
        worker=worker,
        slot=slot,
        samples=None if inside else packed,
    )


def _shared_slab(workers: int, slots: int, slot_bytes: int) -> torch.Tensor:
    slot_bytes = -(-slot_bytes // 64) * 64
    needed = workers * slots * slot_bytes
    if _SHARED_MEMORY.is_dir():
        free = shutil.disk_usage(_SHARED_MEMORY).free
        if needed > free:
            raise ConfigError(
                f"{workers} workers with {slots} batches of {slot_bytes / 1e6:.0f} MB each need {needed / 1e6:.0f} MB "
                f"of shared memory, {_SHARED_MEMORY} has {free / 1e6:.0f} MB free: use threads (num_workers=0), fewer "
                "workers, a smaller batch_bins, or give the container more (docker run --shm-size)"
            )
    return share(torch.empty((workers, slots, slot_bytes), dtype=torch.uint8))


def _identity(parcel: Any) -> Any:
    return parcel
