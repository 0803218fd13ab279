"""Train a small CTC model from a packed dataset, on one process or many, and go on after anything that stops it.

    python scripts/train_ctc.py demo-shards/train --folder runs/ctc
    torchrun --nproc-per-node 2 scripts/train_ctc.py demo-shards/train --folder runs/ctc --resume

Rank and world size are nowhere in here but where the processes meet: the loader finds them, gives each rank its part of
an epoch and all of them the same number of steps. A checkpoint holds the model, the optimizer and what the loader says
it has handed out. A run that was killed goes on with the batch after the last one that the checkpoint knows of, also
with another number of processes: the rest of the epoch is dealt anew, and no utterance comes twice or not at all.

On a CPU, a run that is resumed with as many processes and threads ends with the weights of an undisturbed one, to the
bit. On a GPU it does not: the gradient of CTC is not deterministic there.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from uttershard.pipeline import Batch, LogMel, ShardLoader, UtteranceCmvn
from uttershard.pipeline.errors import ConfigError, UttershardError

CHECKPOINT = "checkpoint.pt"
SAMPLE_RATE = 16_000
MEL_BINS = 40
BLANK = 0
NUM_TARGETS = 257
"""The blank, and one for each byte."""

LONGEST_WAIT = timedelta(minutes=5)
"""For the other processes; torch's own is half an hour."""

AfterStep = Callable[[Batch, float], None]
"""Called with each batch and its loss once the model has learned from it."""


@dataclass(frozen=True)
class Recipe:
    """How to train.

    Attributes:
        epochs: Epochs in all, those before a resume included.
        learning_rate: Of Adam.
        seed: Of the first weights and of the order of the data.
        save_every: Steps from one checkpoint to the next; the end of an epoch has one besides.
        log_every: Steps from one line to the next.
    """

    epochs: int = 5
    learning_rate: float = 2e-3
    seed: int = 0
    save_every: int = 20
    log_every: int = 10

    def __post_init__(self) -> None:
        for name in ("epochs", "save_every", "log_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: must be 1 or more")


def text_to_bytes(text: str) -> list[int]:
    """Return the targets of a transcript: its UTF-8 bytes, so that any script works without a vocabulary.

    Example:
        >>> text_to_bytes("né")
        [111, 196, 170]
    """
    return [byte + 1 for byte in text.encode()]


class CtcModel(nn.Module):
    """A convolution that halves the frames, four that look further and further, and a score for each byte.

    What it gives for an utterance does not depend on how far the batch is padded.
    """

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.halve = nn.Conv1d(MEL_BINS, width, kernel_size=5, stride=2, padding=2)
        self.look_around = nn.ModuleList(
            nn.Conv1d(width, width, kernel_size=5, padding=2 * reach, dilation=reach) for reach in (1, 2, 4, 8)
        )
        self.score = nn.Linear(width, NUM_TARGETS)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return log probabilities, float32 [B, F', 257], and their lengths, int64 [B].

        Args:
            features: float32 [B, F, D], zero after the end of each utterance.
            lengths: int64 [B].
        """
        hidden = self.halve(features.transpose(1, 2)).relu()
        lengths = (lengths + 1) // 2
        # A bias would make something of the padding, which the next layer would see.
        inside = (torch.arange(hidden.shape[2], device=lengths.device) < lengths[:, None])[:, None]
        for convolution in self.look_around:
            hidden = hidden * inside
            hidden = hidden + convolution(hidden).relu()
        return self.score(hidden.transpose(1, 2)).log_softmax(-1), lengths


class Run:
    """A model in training: what it learns from, and the folder that it is kept in.

    Args:
        dataset: Address of a packed dataset.
        folder: For the checkpoint; the same for all processes.
        recipe: How to train.
        device: Of this process.
        settings: More arguments of ShardLoader.
    """

    def __init__(
        self, dataset: str | Path, folder: Path, recipe: Recipe, device: torch.device, **settings: Any
    ) -> None:
        self.recipe = recipe
        self.path = folder / CHECKPOINT
        self.device = device
        self.steps = 0
        self.loader = ShardLoader(
            dataset,
            device=device,
            seed=recipe.seed,
            sample_rate=SAMPLE_RATE,
            channels=1,
            tokenizer=text_to_bytes,
            token_pad=BLANK,
            **settings,
        )
        torch.manual_seed(recipe.seed)
        self.model = CtcModel().to(device)
        self._mel, self._cmvn = LogMel(MEL_BINS, SAMPLE_RATE).to(device), UtteranceCmvn()
        self._trained: nn.Module = self.model
        if dist.is_initialized():
            self._trained = DistributedDataParallel(self.model)
            # After its first step torch lays gradients out anew, and so adds those of three or more ranks up in another
            # order. Rehearsed, the first step of a resumed run is like that step of any other.
            scores, _ = self._trained(
                torch.zeros(1, 1, MEL_BINS, device=device), torch.ones(1, dtype=torch.int64, device=device)
            )
            scores.sum().backward()
        self._optimizer = torch.optim.Adam(self.model.parameters(), recipe.learning_rate)
        self.is_first = not dist.is_initialized() or dist.get_rank() == 0

    def epoch(self, epoch: int, after_step: AfterStep | None = None) -> str:
        """Train for an epoch, or for what is left of it; return a line about it."""
        self.loader.set_epoch(epoch)
        lost = torch.zeros((), device=self.device)
        steps = 0
        for batch in self.loader:
            loss = self.step(batch)
            lost += loss
            steps += 1
            self.steps += 1
            if self.steps % self.recipe.save_every == 0:
                self.save()
            if self.steps % self.recipe.log_every == 0:
                waited = self.loader.metrics()["epoch"]["wait_seconds"]
                self.say(f"step {self.steps}, epoch {epoch}: loss {loss.item():.3f}, waited {waited:.2f} s")
            if after_step is not None:
                after_step(batch, loss.item())
        self.save()
        if dist.is_initialized():
            dist.all_reduce(lost)
            lost /= dist.get_world_size()
        counts = self.loader.metrics()["epoch"]
        return (
            f"epoch {epoch}: {steps} steps, loss {lost.item() / max(1, steps):.3f}, waited "
            f"{counts['wait_seconds']:.2f} s of {counts['elapsed_seconds']:.2f} s"
        )

    def step(self, batch: Batch) -> Tensor:
        """Learn from one batch; return its loss for a byte of transcript."""
        if batch.tokens is None or batch.token_lengths is None:
            raise ConfigError("the loader gives no tokens: it needs tokenizer=text_to_bytes")
        features, lengths = self._cmvn(*self._mel(batch.audio, batch.audio_lengths))
        scores, lengths = self._trained(features, lengths)
        loss = nn.functional.ctc_loss(
            scores.transpose(0, 1),
            batch.tokens,
            lengths,
            batch.token_lengths,
            blank=BLANK,
            reduction="sum",
            # A transcript too long for its audio has an infinite loss; one bad transcript shall not end a run.
            zero_infinity=True,
        ) / batch.token_lengths.sum().clamp(min=1)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self._optimizer.step()
        return loss.detach()

    def save(self) -> None:
        """Write the checkpoint, whole or not at all; by the first rank, since a loader's state is the same on all."""
        if not self.is_first:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        with part.open("wb") as file:
            content = {
                "steps": self.steps,
                "model": self.model.state_dict(),
                "optimizer": self._optimizer.state_dict(),
                "loader": self.loader.state_dict(),
            }
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.path)

    def resume(self) -> None:
        """Go on where the checkpoint is, if there is one; a run may be killed before its first."""
        if not self.path.exists():
            self.say(f"no checkpoint in {self.path.parent} yet: starting at the beginning")
            return
        content = torch.load(self.path, map_location=self.device, weights_only=True)
        self.steps = content["steps"]
        self.model.load_state_dict(content["model"])
        self._optimizer.load_state_dict(content["optimizer"])
        self.loader.load_state_dict(content["loader"])
        self.say(f"going on after step {self.steps}, in epoch {self.loader.epoch}")

    def say(self, line: str) -> None:
        """Print a line, on the first rank."""
        if self.is_first:
            print(line, flush=True)


def train(
    dataset: str | Path,
    folder: Path,
    recipe: Recipe,
    *,
    resume: bool = False,
    after_step: AfterStep | None = None,
    **settings: Any,
) -> Run:
    """Train, together with the other processes if there are any.

    Args:
        dataset: Address of a packed dataset.
        folder: For the checkpoint.
        recipe: How to train.
        resume: Go on with the run in the folder; without it, a folder that holds one is refused.
        after_step: Called after each step, e.g. to log it.
        settings: More arguments of ShardLoader.

    Raises:
        ConfigError: There is a run in the folder and `resume` is not set; or a setting is refused.
    """
    if not resume and (folder / CHECKPOINT).exists():
        raise ConfigError(f"{folder} holds a run already: go on with it by --resume, or name another folder")
    with meet_others() as device:
        run = Run(dataset, folder, recipe, device, **settings)
        if resume:
            run.resume()
        for epoch in range(run.loader.epoch, recipe.epochs):
            run.say(run.epoch(epoch, after_step))
    return run


@contextmanager
def meet_others() -> Iterator[torch.device]:
    """Join the other processes, if torchrun (or what sets the same variables) started this one; yield its device."""
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    if "RANK" not in os.environ:
        yield device
        return
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=LONGEST_WAIT)
    try:
        yield device
    finally:
        dist.destroy_process_group()


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="address of a packed dataset")
    parser.add_argument("--folder", type=Path, required=True, help="for the checkpoint")
    parser.add_argument("--resume", action="store_true", help="go on with the run in that folder, if there is one yet")
    parser.add_argument("--epochs", type=int, default=Recipe.epochs, help="epochs in all (%(default)s)")
    parser.add_argument(
        "--batch-bins", type=int, default=3000, help="frames a batch of a rank may hold, padding included (%(default)s)"
    )
    parser.add_argument("--max-seconds", type=float, help="leave out longer utterances")
    parser.add_argument(
        "--num-workers", type=int, default=0, help="decode in so many processes for each rank; 0 (default) for threads"
    )
    parser.add_argument("--learning-rate", type=float, default=Recipe.learning_rate, help="of Adam (%(default)s)")
    parser.add_argument("--seed", type=int, default=Recipe.seed, help="of weights and order (%(default)s)")
    parser.add_argument(
        "--save-every", type=int, default=Recipe.save_every, help="steps between checkpoints (%(default)s)"
    )
    parser.add_argument("--log-every", type=int, default=Recipe.log_every, help="steps between lines (%(default)s)")
    arguments = parser.parse_args(argv)
    try:
        recipe = Recipe(
            arguments.epochs, arguments.learning_rate, arguments.seed, arguments.save_every, arguments.log_every
        )
        train(
            arguments.dataset,
            arguments.folder,
            recipe,
            resume=arguments.resume,
            batch_bins=arguments.batch_bins,
            max_seconds=arguments.max_seconds,
            num_workers=arguments.num_workers,
        )
    except UttershardError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
