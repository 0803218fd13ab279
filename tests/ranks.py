"""Real processes of one training run, started as torchrun starts them, and what each of them trained on.

Run as a program, this is one of them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from free_ports import free_ports
from uttershard.pipeline import Batch
from uttershard.scripts.train_ctc import Recipe, train

PATIENCE_SECONDS = 400


@dataclass(frozen=True)
class Step:
    """What a rank trained on in one step."""

    epoch: int
    step: int
    keys: tuple[str, ...]
    loss: float


class Ranks:
    """Processes that train together.

    Args:
        world_size: How many.
        arguments: What to run with Python in each of them.
    """

    def __init__(self, world_size: int, arguments: list[str]) -> None:
        (port,) = free_ports(1)
        self.processes = [
            subprocess.Popen(
                [sys.executable, *arguments],
                # One GPU a node, as far as a rank can tell, and one thread, so that sums have one order.
                env=os.environ
                | {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
                | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world_size)
        ]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def wait_for_steps(self, steps: int) -> None:
        """Return when the first rank has printed so many lines about steps."""
        output = self.processes[0].stdout
        assert output is not None
        for line in output:
            steps -= line.startswith("step ")
            if not steps:
                return
        raise AssertionError(f"the run ended {steps} steps too early: {self.end()}")

    def kill(self) -> None:
        """Kill all of them at once, as a machine that goes down does."""
        for process in self.processes:
            process.kill()
        self.end()

    def end(self) -> list[tuple[int, str, str]]:
        """Wait for all of them; return exit status, output and errors of each."""
        ended = []
        for process in self.processes:
            # Closed already where it was ended before.
            streams = process.communicate(timeout=PATIENCE_SECONDS) if process.returncode is None else ("", "")
            ended.append((process.returncode, *streams))
        return ended


def start_training(
    world_size: int,
    dataset: Path,
    folder: Path,
    *,
    fail: tuple[int, int] | None = None,
    hold: int | None = None,
    **settings: Any,
) -> Ranks:
    """Start a run, or go on with it.

    Args:
        world_size: How many ranks.
        dataset: What they train on.
        folder: Of the run.
        fail: A rank and the step after which it raises.
        hold: The step after which all wait to be killed.
        **settings: Of the loader.
    """
    folder.mkdir(exist_ok=True)
    for log in folder.glob("rank-*.jsonl"):
        log.unlink()
    what = json.dumps(
        {"dataset": str(dataset), "folder": str(folder), "fail": fail, "hold": hold, "settings": settings}
    )
    return Ranks(world_size, [__file__, what])


def finish_training(world_size: int, dataset: Path, folder: Path, **settings: Any) -> list[list[Step]]:
    """Run, or go on, to the end; return what each rank trained on."""
    with start_training(world_size, dataset, folder, **settings) as ranks:
        ended = ranks.end()
    assert [status for status, *_ in ended] == [0] * world_size, ended
    return trained_on(folder, world_size)


def trained_on(folder: Path, world_size: int) -> list[list[Step]]:
    """Return the steps that each rank has written down since it was started."""
    logs = [(folder / f"rank-{rank}.jsonl").read_text("utf-8").splitlines() for rank in range(world_size)]
    return [
        [Step(epoch, step, tuple(keys), loss) for epoch, step, keys, loss in map(json.loads, lines)] for lines in logs
    ]


def main(what: dict[str, Any]) -> None:
    """Train in this process, writing down each step."""
    rank, folder = int(os.environ["RANK"]), Path(what["folder"])
    steps = 0

    def after_step(batch: Batch, loss: float) -> None:
        nonlocal steps
        steps += 1
        file.write(json.dumps([batch.epoch, batch.step, batch.keys, loss]) + "\n")
        file.flush()
        if what["fail"] == [rank, steps]:
            raise RuntimeError("a bug of the trainer")
        if steps == what["hold"]:
            signal.pause()

    settings = {"batch_bins": 600, "max_seconds": 3.0, "num_workers": 0} | what["settings"]
    recipe = Recipe(epochs=settings.pop("epochs", 2), save_every=2, log_every=1)
    with (folder / f"rank-{rank}.jsonl").open("w", encoding="utf-8") as file:
        train(what["dataset"], folder, recipe, resume=True, after_step=after_step, **settings)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
