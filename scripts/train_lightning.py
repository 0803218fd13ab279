"""Train with Lightning: a LightningDataModule over a ShardLoader that resumes in the middle of an epoch.

    python -m uttershard.scripts.train_lightning shards/train --run runs/first --epochs 3
    python -m uttershard.scripts.train_lightning shards/train --run runs/first --epochs 3     # goes on where it stopped

The model is a stand-in that learns how loud an utterance is; the data module is what to take over.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from torch import nn
from uttershard.pipeline import Batch, ShardLoader
from uttershard.pipeline.errors import ConfigError, UttershardError


class ShardDataModule(pl.LightningDataModule):
    """Training batches of a packed dataset for a Lightning Trainer.

    Lightning shards DataLoaders on its own (`use_distributed_sampler`), by a sampler that knows nothing of the plan. It
    leaves a ShardLoader alone, whatever that is set to: ranks are dealt with here.

    Args:
        dataset: Address of the dataset.
        settings: Arguments of ShardLoader.
    """

    def __init__(self, dataset: str, **settings: Any) -> None:
        super().__init__()
        self._dataset = dataset
        self._settings = settings
        self._loader: ShardLoader | None = None
        self._saved: dict[str, Any] | None = None

    def train_dataloader(self) -> ShardLoader:
        """Return the loader; Lightning asks again before each epoch, since epochs may differ in their steps."""
        trainer = self.trainer
        if trainer is None or getattr(trainer, "reload_dataloaders_every_n_epochs", 0) != 1:
            raise ConfigError(
                "Lightning would take the number of steps of the first epoch for all of them: give the Trainer "
                "reload_dataloaders_every_n_epochs=1"
            )
        if self._loader is None:
            self._loader = ShardLoader(
                self._dataset,
                rank=trainer.global_rank,
                world_size=trainer.world_size,
                device=trainer.strategy.root_device,
                **self._settings,
            )
        if self._saved is not None:
            # Before Lightning asks for the number of steps, which may be another in the epoch of the checkpoint.
            self._loader.load_state_dict(self._saved)
            self._saved = None
        return self._loader

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loader, for the checkpoint."""
        return {} if self._loader is None else self._loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state of a checkpoint until there is a loader."""
        self._saved = state_dict or None


class LoudnessModel(pl.LightningModule):
    """Learns the logarithm of an utterance's mean square from the mean of its absolute samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        """Return the loss of one batch."""
        lengths = batch.audio_lengths
        level = (batch.audio.abs().sum(-1) / lengths + 1e-6).log()
        wanted = (batch.audio.square().sum(-1) / lengths + 1e-9).log()
        loss = nn.functional.mse_loss(self.layers(level[:, None])[:, 0], wanted)
        self.log("loss", loss, prog_bar=True, batch_size=len(batch))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def train(
    dataset: str,
    run: Path,
    *,
    epochs: int,
    save_every: int = 5,
    devices: int | str = "auto",
    num_nodes: int = 1,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> pl.Trainer:
    """Train, from the last checkpoint of the run if there is one.

    Args:
        dataset: Address of the dataset.
        run: Folder of the run; `last.ckpt` in it is where it goes on.
        epochs: Epochs in all.
        save_every: Steps from one checkpoint to the next.
        devices: Processes on each node; another number than before deals the rest of the epoch anew.
        num_nodes: Nodes.
        callbacks: More callbacks for the Trainer.
        settings: Arguments of ShardLoader.
    """
    pl.seed_everything(0, verbose=False)
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="auto",
        devices=devices,
        num_nodes=num_nodes,
        default_root_dir=run,
        logger=False,
        enable_model_summary=False,
        reload_dataloaders_every_n_epochs=1,
        callbacks=[
            *callbacks,
            ModelCheckpoint(run, every_n_train_steps=save_every, save_last=True, save_top_k=0),
        ],
    )
    last = run / "last.ckpt"
    trainer.fit(
        LoudnessModel(), datamodule=ShardDataModule(dataset, **settings), ckpt_path=str(last) if last.exists() else None
    )
    return trainer


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="address of a packed dataset")
    parser.add_argument("--run", type=Path, required=True, help="folder for checkpoints; a run in it is continued")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-bins", type=int, default=3000, help="frames a batch may hold, padding included")
    parser.add_argument("--save-every", type=int, default=5, help="steps from one checkpoint to the next")
    parser.add_argument("--devices", default="auto", help="processes on each node")
    parser.add_argument("--num-nodes", type=int, default=1)
    arguments = parser.parse_args(argv)
    logging.basicConfig(format="%(name)s: %(message)s")
    try:
        trainer = train(
            arguments.dataset,
            arguments.run,
            epochs=arguments.epochs,
            save_every=arguments.save_every,
            devices=arguments.devices,
            num_nodes=arguments.num_nodes,
            batch_bins=arguments.batch_bins,
        )
    except UttershardError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{trainer.current_epoch} epochs, {trainer.global_step} steps, loss {trainer.callback_metrics['loss']:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
