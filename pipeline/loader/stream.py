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
_TAG_BITS = 32
_TAG = (1 << _TAG_BITS) - 1


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
        # Shared with the workers, persistent or not: the epoch set last, and which iteration since each worker began.
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
        iteration = self._begin(worker, 0 if info is None else (info.seed - info.id) & _TAG)
        plan = self._epochs.plan(int(self._epoch[0]) + iteration)
        for spec in self._epochs.specs(plan, range(worker, plan.steps, workers)):
            self._decoder.storage.will_need(spec.spans)
            yield self._decoder.packed(spec, _fresh)

    def _begin(self, worker: int, tag: int) -> int:
        """Return which iteration since `set_epoch` this is, from 0; the same in all of its workers.

        A worker can't count by itself: one that is stopped before its first step never knew of that iteration. But
        DataLoader draws a number (`tag`) for each start of its workers, so a worker whose siblings have begun joins
        them, and the first one comes after all that was.
        """
        entries = self._begun.numpy().copy()
        counts, tags = entries >> _TAG_BITS, entries & _TAG
        siblings = counts[(tags == tag) & (counts > 0)]
        if counts[worker] and tags[worker] == tag:  # the next epoch of a persistent worker
            count = int(counts[worker]) + 1
        else:
            count = int(siblings.max() if siblings.size else counts.max() + 1)
        # One store of eight bytes: siblings see both numbers or neither.
        self._begun[worker] = count << _TAG_BITS | tag
        return count - 1


def _fresh(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)
