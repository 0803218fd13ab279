"""Lightning's own checkpoints resume a ShardLoader in the middle of an epoch (G8), with the real package."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from packed import BINS, Packed, keys_of, make_dataset
from ranks import Ranks
from torch.utils.data import DataLoader
from uttershard.pipeline import Batch, ShardLoader
from uttershard.pipeline.errors import ConfigError
from uttershard.scripts.train_lightning import LoudnessModel, ShardDataModule, train

EPOCHS = 3


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return make_dataset(tmp_path_factory.mktemp("lightning"), utterances=44)


class StopHereError(Exception):
    """What ends a run in its middle."""


class Log(pl.Callback):
    """Writes which ids each step trained on; ends the run before a step, by an error or by a signal."""

    def __init__(self, path: Path, stop_before: int | None = None, *, kill: bool = False) -> None:
        self._path = path
        self._stop_before = stop_before
        self._kill = kill

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Batch, index: int) -> None:
        if trainer.global_step == self._stop_before:
            if self._kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise StopHereError
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{trainer.current_epoch}\t{batch.epoch}\t{'|'.join(batch.keys)}\n")

    def lines(self) -> list[str]:
        return self._path.read_text("utf-8").splitlines()


def _expected(packed: Packed) -> list[str]:
    lines = []
    loader = packed.loader()
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        lines += [f"{epoch}\t{epoch}\t{'|'.join(keys)}" for keys in keys_of(loader)]
    return lines


def _run(packed: Packed, run: Path, stop_before: int | None = None, **settings: Any) -> tuple[list[str], pl.Trainer]:
    log = Log(run.with_suffix(".log"), stop_before)
    settings = {"batch_bins": BINS, "save_every": 3} | settings
    trainer = train(str(packed.address), run, epochs=EPOCHS, callbacks=[log], **settings)
    return log.lines(), trainer


def _weights(trainer: pl.Trainer) -> list[bytes]:
    model = trainer.lightning_module
    return [parameter.detach().numpy().tobytes() for parameter in model.parameters()]


def test_an_undisturbed_run_gives_each_epoch_once(packed: Packed, tmp_path: Path) -> None:
    lines, trainer = _run(packed, tmp_path / "run")
    assert lines == _expected(packed)
    assert trainer.current_epoch == EPOCHS


@pytest.mark.parametrize("share", [0.2, 0.34, 0.5, 0.8])
def test_a_stopped_run_goes_on_with_the_same_batches_to_the_same_weights(
    packed: Packed, tmp_path: Path, share: float
) -> None:
    expected = _expected(packed)
    stop = round(share * len(expected))
    with pytest.raises(StopHereError):
        _run(packed, tmp_path / "run", stop_before=stop)
    (tmp_path / "run.log").unlink()
    lines, trainer = _run(packed, tmp_path / "run")
    assert lines == expected[stop - stop % 3 :]
    _, undisturbed = _run(packed, tmp_path / "whole")
    assert _weights(trainer) == _weights(undisturbed)


def test_a_checkpoint_of_the_last_step_of_an_epoch(packed: Packed, tmp_path: Path) -> None:
    steps = len(packed.loader())
    with pytest.raises(StopHereError):
        _run(packed, tmp_path / "run", stop_before=steps + 1, save_every=steps)
    (tmp_path / "run.log").unlink()
    lines, _ = _run(packed, tmp_path / "run", save_every=steps)
    assert lines == _expected(packed)[steps:]


def test_a_killed_process_goes_on(packed: Packed, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[3])\n"
        "from test_lightning import *\n"
        "run = Path(sys.argv[2])\n"
        "train(sys.argv[1], run, epochs=EPOCHS, save_every=3, batch_bins=BINS,\n"
        "      callbacks=[Log(run.with_suffix('.log'), 8, kill=True)])\n"
    )
    arguments = [str(packed.address), str(tmp_path / "run"), str(Path(__file__).parent)]
    ended = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    expected = _expected(packed)
    assert (tmp_path / "run.log").read_text("utf-8").splitlines() == expected[:8]
    (tmp_path / "run.log").unlink()
    lines, _ = _run(packed, tmp_path / "run")
    assert lines == expected[6:]


PROGRAM = """
import os, sys
from pathlib import Path
os.environ.update(TORCHELASTIC_RUN_ID="test", GROUP_RANK=os.environ["RANK"])
sys.path.insert(0, sys.argv[3])
from test_lightning import EPOCHS, Log, train
stop = int(sys.argv[4]) if len(sys.argv) > 4 else None
log = Log(Path(f"{sys.argv[2]}-{os.environ['RANK']}.log"), stop, kill=True)
nodes = int(os.environ["WORLD_SIZE"])
train(sys.argv[1], Path(sys.argv[2]), epochs=EPOCHS, save_every=3, num_nodes=nodes, callbacks=[log], batch_size=2)
"""


def _train_ranks(packed: Packed, run: Path, world_size: int, stop_before: int | None = None) -> list[list[list[str]]]:
    """Train with real processes (gloo), as torchrun starts them; return what each step of each rank logged."""
    stop = [] if stop_before is None else [str(stop_before)]
    arguments = ["-c", PROGRAM, str(packed.address), str(run), str(Path(__file__).parent), *stop]
    with Ranks(world_size, arguments) as ranks:
        codes = []
        for process in ranks.processes:
            _, errors = process.communicate(timeout=300)
            codes.append(process.returncode)
            assert stop or not process.returncode, errors
    # A rank whose neighbour was killed in a step fails in that step.
    assert not stop or -signal.SIGKILL in codes
    logs = [Path(f"{run}-{rank}.log") for rank in range(world_size)]
    lines = [[line.split("\t") for line in log.read_text("utf-8").splitlines()] for log in logs]
    for log in logs:
        log.unlink()
    return lines


def test_another_number_of_processes_goes_on_in_the_middle_of_an_epoch(packed: Packed, tmp_path: Path) -> None:
    before = _train_ranks(packed, tmp_path / "run", 2, stop_before=5)
    after = _train_ranks(packed, tmp_path / "run", 3)
    assert len({len(rank) for rank in after}) == 1
    for epoch in range(EPOCHS):
        # The checkpoint is of step 3; what came after it is lost with the weights.
        lines = [line for rank in before for line in rank[:3] if epoch == 0] + [line for rank in after for line in rank]
        trained = Counter(key for _, of, keys in lines if of == str(epoch) for key in keys.split("|"))
        assert trained == Counter(packed.sources.keys())
    assert all(line[0] == line[1] for rank in after for line in rank)


def test_a_trainer_that_would_take_one_number_of_steps_for_all_is_refused(packed: Packed, tmp_path: Path) -> None:
    trainer = pl.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, default_root_dir=tmp_path)
    with pytest.raises(ConfigError, match="reload_dataloaders_every_n_epochs=1"):
        trainer.fit(LoudnessModel(), datamodule=ShardDataModule(str(packed.address), batch_bins=BINS))


@pytest.mark.parametrize("use_distributed_sampler", [True, False])
def test_lightning_puts_no_sampler_of_its_own_on_it(packed: Packed, use_distributed_sampler: bool) -> None:
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, logger=False, strategy="ddp", use_distributed_sampler=use_distributed_sampler
    )
    loader = packed.loader()
    data = DataLoader(loader.dataset, batch_size=None)
    connector = trainer._data_connector
    for mine in (loader, data):
        prepared = connector._prepare_dataloader(mine, shuffle=False, mode=pl.trainer.states.RunningStage.TRAINING)
        assert prepared is mine


def test_batches_move_with_lightning(packed: Packed) -> None:
    batch = next(iter(ShardLoader(packed.address, batch_bins=BINS, rank=0, world_size=1)))
    moved = LoudnessModel().transfer_batch_to_device(batch, torch.device("cpu"), 0)
    assert isinstance(moved, Batch) and moved.keys == batch.keys
