"""PlanDataset: the batches of a loader for a DataLoader of the user's own.

Each worker plans the epoch itself (a plan is a function, so all come to the same) and decodes the steps w, w + n,
w + 2n, …; DataLoader takes them from its workers in that very order. Batches travel packed, as int16, by torch's own
handover.
"""

from collections.abc import Iterator

import torch
from torch.utils.data import IterableDataset, get_worker_info

from ..errors import ConfigError
from ..reading.batch import Batch
from ..reading.decoder import BatchDecoder
from .epochs import Epochs
from .shared import share

MAX_WORKERS = 1024
"""Room for one counter a worker."""


class PlanDataset(IterableDataset[Batch]):
    """Whole batches of this rank's plan; use with `batch_size=None`.

    Example:
        >>> data = DataLoader(loader.dataset, batch_size=None, num_workers=4)  # doctest: +SKIP

    Audio is decoded in the workers and becomes float32 when `batch.audio` is first used, or on the device after
    `batch.to(device)`. Without `set_epoch` each iteration of the DataLoader is the next epoch.
    """

    def __init__(self, epochs: Epochs, decoder: BatchDecoder, epoch: int) -> None:
        self._epochs = epochs.shared()
        self._decoder = decoder
        # Shared with the workers, persistent or not: the epoch set last, and how many times each worker began since.
        self._epoch = share(torch.tensor([epoch]))
        self._begun = share(torch.zeros(MAX_WORKERS, dtype=torch.int64))

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is; reaches the workers, persistent ones too."""
        self._epoch[0] = epoch
        self._begun.zero_()

    def __len__(self) -> int:
        """Return the number of steps of the epoch set last."""
        return self._epochs.plan(int(self._epoch[0])).steps

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        if workers > MAX_WORKERS:
            raise ConfigError(f"num_workers={workers}: at most {MAX_WORKERS}")
        epoch = int(self._epoch[0] + self._begun[worker])
        self._begun[worker] += 1
        plan = self._epochs.plan(epoch)
        for spec in self._epochs.specs(plan, range(worker, plan.steps, workers)):
            self._decoder.storage.will_need(spec.spans)
            yield self._decoder.packed(spec, _fresh)


def _fresh(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)
