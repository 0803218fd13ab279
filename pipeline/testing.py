"""Tests for a pipeline of your own: does it resume exactly, at every step, and with another world size?

from uttershard.pipeline.testing import check_resume

def test_my_pipeline_resumes():
    check_resume(lambda: ShardLoader("shards/train", batch_bins=6000, map_utterance=augment))
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch

from .loader.shard_loader import ShardLoader
from .reading.batch import Batch

LARGEST_STATE_BYTES = 1024
"""What a state may take as JSON."""

_NOT_CONTENT = ("packed", "padded", "decode_seconds", "storage")
"""Fields of a Batch in which equal ones may differ: where its samples are, and what it took to get them."""


class Resumable(Protocol):
    """What is iterated and has a state: a ShardLoader, a StatefulDataLoader over `loader.dataset`, your own."""

    def __iter__(self) -> Iterator[Any]: ...

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state: Any) -> None: ...


def check_resume(
    make_loader: Callable[[], Resumable],
    *,
    epochs: int = 1,
    every: int = 1,
    as_json: bool = True,
) -> int:
    """Save the state after each step, resume each in a new loader, and compare all that follows bit for bit.

    Args:
        make_loader: Makes a loader, the same each time. Where it has `set_epoch`, that is called as a trainer does.
        epochs: How many epochs to run; what follows a resume is compared to the end of the last.
        every: Resume only every so many steps, as each one decodes the rest of the run.
        as_json: Whether the state must be JSON of at most 1 KB, as that of ShardLoader is.

    Returns:
        How many states were resumed.

    Raises:
        AssertionError: A batch came out different; the message says where, and what of it.
    """
    loader = make_loader()
    expected: list[list[Any]] = []
    states: list[tuple[int, int, Any]] = []
    for epoch in range(epochs):
        expected.append([])
        for batch in _begin(loader, epoch):
            expected[epoch].append(fingerprint(batch))
            states.append((epoch, len(expected[epoch]), _carry(loader.state_dict(), as_json)))
    if not states:
        raise AssertionError("the loader gives no batches, so nothing was tested")
    tested = states[::every]
    for epoch, steps, state in tested:
        resumed = make_loader()
        resumed.load_state_dict(state)
        rest = [expected[epoch][steps:], *expected[epoch + 1 :]]
        for number, wanted in enumerate(rest, start=epoch):
            where = f"resumed after {steps} steps of epoch {epoch}: epoch {number}"
            _compare(where, wanted, [fingerprint(batch) for batch in _begin(resumed, number)])
    return len(tested)


def check_elastic_resume(
    make_loader: Callable[[int, int], ShardLoader],
    world_sizes: Sequence[int],
    steps: Sequence[int],
    *,
    epoch: int = 0,
) -> list[list[int]]:
    """Take an epoch through several world sizes and see that each of its utterances comes exactly once.

    Args:
        make_loader: Called with (rank, world_size); makes the loader of that rank.
        world_sizes: One after the other; the last one finishes the epoch.
        steps: How many steps each world size but the last makes, at most to the end of the epoch.
        epoch: Which epoch.

    Returns:
        The batches that each rank was given, for each world size.

    Raises:
        AssertionError: An utterance is lost or repeated, steps or states are not equal on all ranks, or more
            than the policy "drop" reports is left out.
    """
    wanted: Counter[str] = Counter()
    for rank in range(world_sizes[0]):
        wanted += _keys(_begin(make_loader(rank, world_sizes[0]), epoch))
    given: Counter[str] = Counter()
    state: Any = None
    taken: list[list[int]] = []
    for world_size, limit in zip(world_sizes, [*steps, None], strict=True):
        loaders = [make_loader(rank, world_size) for rank in range(world_size)]
        lengths = []
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
            begun = _begin(loader, epoch)
            # Not one more: to ask for the batch after the last one is to begin the next epoch.
            batches = list(islice(begun, loader.plan.steps if limit is None else min(limit, loader.plan.steps)))
            lengths.append(len(batches))
            given += _keys(batches)
        states = [_carry(loader.state_dict(), True) for loader in loaders]
        if len(set(lengths)) > 1 or any(other != states[0] for other in states):
            raise AssertionError(f"{world_size} ranks: they made {lengths} steps and saved the states {states}")
        state = states[0]
        taken.append(lengths)
    if given != wanted:
        raise AssertionError(
            f"epoch {epoch} over the world sizes {list(world_sizes)} after {list(steps)} steps: "
            f"lost {dict(wanted - given)}, repeated {dict(given - wanted)}"
        )
    return taken


def fingerprint(value: Any) -> Any:
    """Return what makes a batch equal to another, tensors and arrays as a digest of their bytes."""
    if isinstance(value, Batch):
        names = [field.name for field in fields(value) if field.name not in _NOT_CONTENT]
        return {"audio": fingerprint(value.audio)} | {name: fingerprint(getattr(value, name)) for name in names}
    if isinstance(value, torch.Tensor):
        return fingerprint(value.detach().cpu().contiguous().numpy())
    if isinstance(value, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:16]
        return f"{value.dtype}{list(value.shape)} {digest}"
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: fingerprint(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: fingerprint(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [fingerprint(item) for item in value]
    return value


def _begin(loader: Any, epoch: int) -> Iterator[Any]:
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(epoch)
    return iter(loader)


def _carry(state: Any, as_json: bool) -> Any:
    """Take a state through a checkpoint."""
    if not as_json:
        return state
    text = json.dumps(state)
    if len(text) > LARGEST_STATE_BYTES:
        raise AssertionError(f"the state takes {len(text)} bytes, at most {LARGEST_STATE_BYTES} are promised: {text}")
    return json.loads(text)


def _keys(batches: Iterator[Batch] | list[Batch]) -> Counter[str]:
    return Counter(key for batch in batches if not batch.filler for key in batch.keys)


def _compare(where: str, wanted: list[Any], found: list[Any]) -> None:
    if len(found) != len(wanted):
        raise AssertionError(f"{where}: {len(found)} batches, expected {len(wanted)}")
    for step, (right, other) in enumerate(zip(wanted, found, strict=True)):
        if right == other:
            continue
        if isinstance(right, dict) and isinstance(other, dict):
            names = [name for name in right if right[name] != other.get(name)]
            right, other = {name: right[name] for name in names}, {name: other.get(name) for name in names}
        raise AssertionError(f"{where}: batch {step} after the resume is {other}, expected {right}")
