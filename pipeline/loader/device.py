"""Hand batches over on the trainer's device: the next one is copied and padded there while this one trains."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from ..errors import ConfigError
from ..reading.batch import Allocate, Batch, pad


def hand_over(batches: Iterator[Batch], device: torch.device, allocate: Allocate, *, pin: bool) -> Iterator[Batch]:
    """Yield each batch with padded float32 audio on `device`.

    Args:
        batches: Batches on the CPU, packed or padded.
        device: Where they go.
        allocate: Makes padded tensors for a CPU.
        pin: Whether to stage what goes to a GPU in pinned memory.
    """
    if device.type == "cpu":
        return (_padded_on_cpu(batch, allocate) for batch in batches)
    if device.type == "cuda":
        return _through_stream(batches, device, pin=pin)
    return (_padded_there(batch.to(device)) for batch in batches)


def parse_device(device: str | torch.device) -> torch.device:
    """Return the device that a setting names.

    Raises:
        ConfigError: There is no such device here.
    """
    try:
        parsed = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device={device!r} is no device of torch: give 'cpu', 'cuda' or 'cuda:1'") from error
    if parsed.type == "cuda" and (parsed.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device={str(device)!r}, but torch finds {torch.cuda.device_count()} GPUs here: give device='cpu', or "
            "look at CUDA_VISIBLE_DEVICES and at the driver"
        )
    return parsed


def pinned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Allocate in pinned memory; torch's host allocator uses a block again once the copies out of it are done."""
    return torch.empty(shape, dtype=dtype, pin_memory=True)


def _padded_on_cpu(batch: Batch, allocate: Allocate) -> Batch:
    if batch.packed is None:
        return batch
    return replace(batch, padded=pad(batch.packed, batch.audio_lengths, allocate), packed=None)


def _padded_there(batch: Batch) -> Batch:
    _ = batch.audio  # pads the packed samples where they are
    return batch


def _through_stream(batches: Iterator[Batch], device: torch.device, *, pin: bool) -> Iterator[Batch]:
    """Copy and pad on a stream of its own, one batch ahead of the trainer."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    waiting: tuple[Batch, torch.cuda.Event] | None = None
    for batch in batches:
        with torch.cuda.stream(stream):
            staged = batch.pin_memory() if pin else batch
            moved = _padded_there(staged.to(device, non_blocking=True))
            copied = stream.record_event()
        if waiting is not None:
            yield _arrived(*waiting, device)
        waiting = moved, copied
    if waiting is not None:
        yield _arrived(*waiting, device)


def _arrived(batch: Batch, copied: torch.cuda.Event, device: torch.device) -> Batch:
    current = torch.cuda.current_stream(device)
    current.wait_event(copied)
    for tensor in (batch.audio, batch.audio_lengths, batch.tokens, batch.token_lengths):
        if tensor is not None:
            tensor.record_stream(current)
    return batch
