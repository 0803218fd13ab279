"""Pooled buffers for batches: a fresh 38 MB tensor a batch costs 10,000 page faults, a used one none.

A buffer is lent as the storage of a tensor and comes back by itself when the last tensor on it is gone: the trainer may
hold a batch as long as it likes, and never sees it change.
"""

import math
import weakref
from collections import deque
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

Watch: TypeAlias = weakref.ref[NDArray[np.uint8]]

_GROWTH = 1.125
"""Buffers are made a little larger than asked for, so that the next, slightly longer batch fits too."""


class BufferPool:
    """Lends buffers; keeps at most `max_free` of them for later."""

    def __init__(self, max_free: int = 8) -> None:
        self._free: deque[NDArray[np.uint8]] = deque(maxlen=max_free)
        # Lent arrays by the id of the weak reference that watches each; a reference is its own callback's argument.
        self._lent: dict[int, tuple[Watch, NDArray[np.uint8]]] = {}
        # A buffer comes back wherever its batch is let go: in any thread, between any two instructions. What runs then
        # must be no Python code: Ctrl-C pressed within it would be printed as "ignored" and lost. deque.append is C.
        self._returned: deque[Watch] = deque()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised tensor on a pooled buffer.

        Args:
            shape: Its shape.
            dtype: torch.int16 or torch.float32.
        """
        self._collect()
        nbytes = math.prod(shape) * dtype.itemsize
        return self._lend(self._take(nbytes), nbytes).view(dtype).view(shape)

    def _lend(self, buffer: NDArray[np.uint8], nbytes: int) -> torch.Tensor:
        # torch keeps this very array alive as long as any tensor uses the memory; when it goes, so has the batch.
        lent = buffer[:nbytes].view()
        watch = weakref.ref(lent, self._returned.append)
        self._lent[id(watch)] = (watch, buffer)
        return torch.from_numpy(lent)

    def _take(self, nbytes: int) -> NDArray[np.uint8]:
        for _ in range(len(self._free)):
            try:
                buffer = self._free.pop()
            except IndexError:  # another thread took it
                break
            if len(buffer) >= nbytes:
                return buffer
            # Too small: let it go, so that the pool comes to hold buffers of the size that is needed.
        return np.empty(max(64, int(nbytes * _GROWTH)), np.uint8)

    def _collect(self) -> None:
        """Move what has come back to the free buffers."""
        while True:
            try:
                watch = self._returned.popleft()
            except IndexError:
                return
            # Absent if Ctrl-C came between its making and its entry: that buffer goes the way of all memory.
            entry = self._lent.pop(id(watch), None)
            if entry is not None:
                self._free.append(entry[1])


class SlotPool(BufferPool):
    """Lends the buffers it was given, and no others.

    Args:
        slots: uint8 [slots, bytes of each].
    """

    def __init__(self, slots: torch.Tensor) -> None:
        super().__init__(max_free=len(slots))
        self._free.extend(slots.numpy())
        self._begin, (self._count, self._slot_bytes) = slots.data_ptr(), slots.shape

    @property
    def lent(self) -> int:
        """How many slots are lent."""
        self._collect()
        return self._count - len(self._free)

    def take(self) -> torch.Tensor | None:
        """Return a slot as an uninitialised uint8 tensor; None if all are lent."""
        self._collect()
        return self._lend(self._free.pop(), self._slot_bytes) if self._free else None

    def number(self, lent: torch.Tensor) -> int:
        """Return which slot a tensor is on."""
        return (lent.data_ptr() - self._begin) // self._slot_bytes
