"""Shared memory runs out, as the 64 MB of a container do: an error says so, and no batch is waited for."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
import torch
from packed import Packed
from torch.utils.data import DataLoader
from uttershard.pipeline import UtteranceDataset
from uttershard.pipeline.errors import ConfigError
from uttershard.pipeline.loader.shared import shared_empty


def _full(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each new segment fail, here and in processes that are forked."""
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", _full)


def test_a_dataloader_of_ones_own_hears_of_it(flac: Packed, full: None) -> None:
    data = DataLoader(
        flac.loader().dataset, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=120
    )
    with pytest.raises(ConfigError, match=r"(?s)no shared memory for .*shm-size"):
        list(data)


def test_workers_of_a_loader_whose_batches_are_kept(flac: Packed, full: None) -> None:
    """Batches beyond the slab need segments of their own."""
    loader = flac.loader(batch_size=1, num_workers=2, multiprocessing_context="fork")
    batches, kept = iter(loader), []
    with pytest.raises(ConfigError, match=r"no shared memory for .*keep fewer batches"):
        while True:
            kept.append(next(batches))


def test_an_index_that_does_not_fit(flac: Packed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "share_memory_", _full)
    for make in (lambda: flac.loader().dataset, lambda: UtteranceDataset(flac.address)):
        with pytest.raises(ConfigError, match="no shared memory for"):
            make()


def test_a_tensor_without_samples() -> None:
    assert shared_empty((0, 0), torch.float32).shape == (0, 0)
