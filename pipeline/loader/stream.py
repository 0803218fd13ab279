"""PlanDataset: the batches of a loader for a DataLoader of the user's own.

Each worker plans the epoch itself (a plan is a function, so all come to the same) and decodes the steps w, w + n,
w + 2n, …; DataLoader takes them from its workers in that very order. Batches travel packed, as int16, by torch's own
handover.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from ..errors import ConfigError, ShardingError
from ..planning.plan import EpochPlan
from ..reading.batch import Batch
from ..reading.process import Decoder
from ..reading.spans import BatchSpec
from .ahead import look_ahead
from .epochs import Epochs
from .metrics import timed
from .shared import share, shared_empty
from .skips import SkipLog, never_empty
from .state import WORLD, Place, decode_state, encode_state
from .window_shards import WindowShards

MAX_WORKERS = 1024
"""Room for one counter a worker."""
_TAG_BITS, _TURN_BITS = 24, 19
_TAG, _TURN = (1 << _TAG_BITS) - 1, (1 << _TURN_BITS) - 1


class PlanDataset(IterableDataset[Batch]):
    """Whole batches of this rank's plan; use with `batch_size=None`.

    Example:
        >>> data = DataLoader(loader.dataset, batch_size=None, num_workers=4)  # doctest: +SKIP

    Audio is decoded in the workers and becomes float32 when `batch.audio` is first used, or on the device after
    `batch.to(device)`. Without `set_epoch` each iteration of the DataLoader is the next epoch. Its iterators have a
    state, so that torchdata's StatefulDataLoader resumes at the next batch without reading the ones before.
    `batch.skipped` says what `on_error="skip"` left out; here each worker counts its own against `max_skipped`.
    """

    def __init__(self, epochs: Epochs, decoder: Decoder, epoch: int, step: int = 0, *, skip_limit: int = 0) -> None:
        self._epochs = epochs.shared()
        self._skips = SkipLog(skip_limit)
        self._decoder = decoder
        # Shared with the workers, persistent or not: the epoch set last, how often one was set, and which iteration
        # since then each worker began.
        self._epoch = share(torch.tensor([epoch]))
        self._first_step = share(torch.tensor([step]))
        self._times_set = share(torch.tensor([0]))
        self._begun = share(torch.zeros(MAX_WORKERS, dtype=torch.int64))
        # Of this process: how often an epoch had been set when it was started, and how often it began by tag.
        self._set_before = 0
        self._turns: dict[int, int] = {}

    def set_epoch(self, epoch: int, step: int = 0) -> None:
        """Say which epoch the next iteration is, and its first step; reaches the workers, persistent ones too."""
        self._epoch[0] = epoch
        self._first_step[0] = step
        self._set_before += 1
        self._times_set[0] = self._set_before
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
        first = int(self._first_step[0]) if iteration == 0 else 0
        return _Steps(self, iteration, first + worker, workers)

    def plan(self, iteration: int) -> EpochPlan:
        """Return the plan of an iteration since `set_epoch`, from 0."""
        return self._epochs.plan(int(self._epoch[0]) + iteration)

    def specs(self, plan: EpochPlan, steps: range) -> Iterator[BatchSpec]:
        """Yield the specs of some steps, each with what comes after it."""
        specs, storage = self._epochs.specs(plan, steps), self._decoder.storage
        if not storage.lookahead_bytes:
            return specs
        shards = WindowShards(self._epochs, plan)
        return look_ahead(specs, lanes=1, lookahead_bytes=storage.lookahead_bytes, shards_from=shards.at)

    def decode(self, plan: EpochPlan, spec: BatchSpec) -> Batch:
        """Return one batch."""
        batch = timed(self._decoder.storage, self._decoder.packed, spec, _fresh)
        self._skips.add(batch)
        if not len(batch):
            batch = never_empty(batch, plan.steps, partial(self._decode_step, plan))
        return batch if get_worker_info() is None else batch.map_tensors(share)

    def _decode_step(self, plan: EpochPlan, step: int) -> Batch:
        spec = next(self._epochs.specs(plan, range(step, step + 1)))
        return timed(self._decoder.storage, self._decoder.packed, spec, _fresh)

    def encode_place(self, iteration: int, step: int) -> dict[str, Any]:
        """Return the state before a step of an iteration."""
        epoch = int(self._epoch[0]) + iteration
        return encode_state(self._epochs.describe(), Place(epoch, step, self._epochs.course))

    def restore_place(self, state: Mapping[str, Any], iteration: int) -> int:
        """Make an iteration the one that a state was saved in, and return its next step."""
        settings = self._epochs.describe()
        if any(state.get(name) != settings[name] for name in WORLD):
            parts = ", ".join(f"{name} was {state.get(name)!r}, is {settings[name]!r}" for name in WORLD)
            raise ShardingError(
                f"{parts}: the state of a DataLoader holds only with the ranks it was saved with. To go on with "
                "others, save and load the state of the ShardLoader"
            )
        place = decode_state(state, settings)
        self._epochs.course = place.course
        self._epoch[0] = place.epoch - iteration
        return place.step

    def _begin(self, worker: int, tag: int) -> int:
        """Return which iteration since `set_epoch` this is, from 0; the same in all of its workers.

        A worker can't count by itself: one that is stopped before its first step never knew of that iteration. But
        DataLoader draws a number (`tag`) for each start of its workers, and those that are kept are told of each
        iteration: whoever has had as many turns since that start is in the same one. The first worker of a start comes
        after all that was.
        """
        turn = self._turns.get(tag, 0)
        self._turns[tag] = turn + 1
        if not turn and self._set_before != int(self._times_set[0]):
            return 0  # So late that the trainer has left this iteration, and begins another: nobody takes its batches.
        entries = self._begun.numpy().copy()
        counts, turns, tags = entries >> (_TAG_BITS + _TURN_BITS), entries >> _TAG_BITS & _TURN, entries & _TAG
        started = np.flatnonzero((tags == tag) & (counts > 0))
        if started.size:
            count = int(counts[started[0]] - turns[started[0]]) + turn
        else:
            count = int(counts.max()) + 1
        # One store of eight bytes: siblings see all three numbers or none.
        self._begun[worker] = (count << _TURN_BITS | turn) << _TAG_BITS | tag
        return count - 1


class _Steps(Iterator[Batch]):
    """The batches of one worker in one iteration, with a state as torchdata wants it."""

    def __init__(self, dataset: PlanDataset, iteration: int, step: int, stride: int) -> None:
        self._dataset = dataset
        self._iteration = iteration
        self._step = step
        self._stride = stride
        self._specs: Iterator[BatchSpec] | None = None

    def __next__(self) -> Batch:
        plan = self._dataset.plan(self._iteration)
        if self._step >= plan.steps:
            raise StopIteration
        if self._specs is None:
            self._specs = self._dataset.specs(plan, range(self._step, plan.steps, self._stride))
        batch = self._dataset.decode(plan, next(self._specs))
        self._step += self._stride
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return which batch of this worker is next."""
        return self._dataset.encode_place(self._iteration, self._step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at the batch that was next."""
        self._step, self._specs = self._dataset.restore_place(state, self._iteration), None


def _refuse_to_collate(batches: Sequence[Batch], *, collate_fn_map: object = None) -> NoReturn:
    """Say what is wrong where a DataLoader would make a batch of batches (`batch_size` is 1 if it is not given)."""
    raise ConfigError(
        "what this DataLoader is given are whole batches already: say batch_size=None, as in "
        "DataLoader(loader.dataset, batch_size=None, num_workers=4)"
    )


default_collate_fn_map[Batch] = _refuse_to_collate


def _fresh(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype) if get_worker_info() is None else shared_empty(shape, dtype)
