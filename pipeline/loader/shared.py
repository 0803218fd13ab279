"""Columns of a dataset in shared memory, so that worker processes have one copy of the index between them."""

from dataclasses import fields, replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch

Columns = TypeVar("Columns")
"""A frozen dataclass, some of whose fields are numpy arrays."""


def share(tensor: torch.Tensor) -> torch.Tensor:
    """Move a tensor's memory to where other processes can have it, and return it."""
    tensor.share_memory_()  # type: ignore[no-untyped-call]
    return tensor


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
