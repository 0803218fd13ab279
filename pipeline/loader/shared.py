"""Shared memory: columns of a dataset, of which worker processes have one copy between them, and batches of workers."""

from dataclasses import fields, replace
from math import prod
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from ..errors import ConfigError

Columns = TypeVar("Columns")
"""A frozen dataclass, some of whose fields are numpy arrays."""


def share(tensor: torch.Tensor) -> torch.Tensor:
    """Move a tensor's memory to where other processes can have it, and return it.

    Raises:
        ConfigError: There is not enough shared memory, or too many of its files are open.
    """
    try:
        tensor.share_memory_()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise _no_shared_memory(tensor.nbytes, error) from error
    return tensor


def shared_empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised tensor in shared memory.

    Made where a worker decodes, where an error reaches the trainer: torch would copy the batch there later, in a thread
    whose errors are printed and nothing else, and the trainer would wait for the batch for ever.

    Raises:
        ConfigError: There is not enough shared memory, or too many of its files are open.
    """
    nbytes = prod(shape) * dtype.itemsize
    if not nbytes:  # which can't be mapped
        return torch.empty(shape, dtype=dtype)
    try:
        storage = torch.UntypedStorage._new_shared(nbytes, device="cpu")  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise _no_shared_memory(nbytes, error) from error
    return torch.empty(0, dtype=dtype).set_(storage).view(shape)


def _no_shared_memory(nbytes: int, error: RuntimeError) -> ConfigError:
    return ConfigError(
        f"no shared memory for {nbytes / 1e6:.1f} MB ({error}): give the container more (docker run --shm-size), use "
        "threads (num_workers=0), fewer workers or smaller batches, or keep fewer batches at a time"
    )


class SharedColumns(Generic[Columns]):
    """A dataclass of arrays whose arrays lie in shared memory; pickling it sends handles, not bytes."""

    def __init__(self, columns: Any) -> None:
        arrays = {field.name: getattr(columns, field.name) for field in fields(columns)}
        self._tensors = {
            name: share(torch.from_numpy(np.array(array)))
            for name, array in arrays.items()
            if isinstance(array, np.ndarray)
        }
        self._rest = replace(columns, **dict.fromkeys(self._tensors))

    def view(self) -> Columns:
        """Return the dataclass, its arrays as views of the shared memory."""
        arrays = {name: tensor.numpy() for name, tensor in self._tensors.items()}
        shared: Columns = replace(self._rest, **arrays)
        return shared
