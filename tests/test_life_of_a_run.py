"""A training run on real processes: it learns, ends its epochs together, and goes on after whatever stops it."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from itertools import chain, islice
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from ranks import Ranks, Step, finish_training, start_training, trained_on
from uttershard.pipeline import ShardLoader
from uttershard.pipeline.testing import fingerprint
from uttershard.scripts import train_ctc
from uttershard.writers import pack
from worker_processes import still_alive

EPOCHS = 2


@pytest.fixture(scope="module")
def shards(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo corpus, packed as scripts/demo does."""
    target = tmp_path_factory.mktemp("demo") / "train"
    pack(demo / "manifest.jsonl", target, shards=8, columns=("speaker", "language"), workers=1)
    return target


@pytest.fixture(scope="module")
def undisturbed(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[list[list[Step]], Path]]:
    """What two and four ranks train on without disturbance, and the folder of their run."""
    runs = {}
    for world_size in (2, 4):
        folder = tmp_path_factory.mktemp(f"undisturbed-{world_size}")
        runs[world_size] = finish_training(world_size, shards, folder), folder
    return runs


def checkpoint(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(folder / train_ctc.CHECKPOINT, weights_only=True)
    return content


def loader_of(shards: Path, rank: int, world_size: int) -> ShardLoader:
    """The loader that a rank of these runs has."""
    return ShardLoader(shards, batch_bins=600, max_seconds=3.0, rank=rank, world_size=world_size, sample_rate=16_000)


def every_key(shards: Path) -> Counter[str]:
    return Counter(key for batch in loader_of(shards, 0, 1) for key in batch.keys)


def keys_of_epoch(ranks: list[list[Step]], epoch: int) -> Counter[str]:
    return Counter(key for steps in ranks for step in steps if step.epoch == epoch for key in step.keys)


def mean_loss(ranks: list[list[Step]], epoch: int) -> float:
    losses = [step.loss for steps in ranks for step in steps if step.epoch == epoch]
    return sum(losses) / len(losses)


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_learn_and_end_each_epoch_together(
    shards: Path, undisturbed: dict[int, tuple[list[list[Step]], Path]], world_size: int
) -> None:
    ranks, _ = undisturbed[world_size]
    positions = [[(step.epoch, step.step) for step in steps] for steps in ranks]
    assert positions[0]
    assert all(position == positions[0] for position in positions)
    for epoch in range(EPOCHS):
        assert keys_of_epoch(ranks, epoch) == every_key(shards)
    assert mean_loss(ranks, EPOCHS - 1) < 0.9 * mean_loss(ranks, 0)


def run_killed(world_size: int, shards: Path, folder: Path, steps: int) -> None:
    """Train for some steps, then kill -9 all ranks, wherever they are: a step or two later at most."""
    with start_training(world_size, shards, folder, hold=steps + 2) as ranks:
        ranks.wait_for_steps(steps)
        ranks.kill()
    assert {process.returncode for process in ranks.processes} == {-signal.SIGKILL}


@pytest.mark.parametrize(("world_size", "kills"), [(2, 2), (4, 1)])
def test_a_killed_run_ends_with_the_weights_of_an_undisturbed_one(
    shards: Path,
    undisturbed: dict[int, tuple[list[list[Step]], Path]],
    tmp_path: Path,
    world_size: int,
    kills: int,
) -> None:
    expected, reference = undisturbed[world_size]
    total = len(expected[0])
    chance = random.Random(world_size)
    for _ in range(kills):
        # Short enough that the run has not ended when the last kill reaches it.
        run_killed(world_size, shards, tmp_path, chance.randrange(2, total // 3))
        assert 0 < checkpoint(tmp_path)["steps"] < total
    ranks = finish_training(world_size, shards, tmp_path)
    for steps, wanted in zip(ranks, expected, strict=True):
        assert [(step.epoch, step.step, step.keys) for step in steps] == [
            (step.epoch, step.step, step.keys) for step in wanted[total - len(steps) :]
        ]
    ended, wanted_end = checkpoint(tmp_path), checkpoint(reference)
    assert ended["loader"] == wanted_end["loader"]
    assert ended["steps"] == wanted_end["steps"] == total
    assert fingerprint(ended["model"]) == fingerprint(wanted_end["model"])
    assert fingerprint(ended["optimizer"]["state"]) == fingerprint(wanted_end["optimizer"]["state"])


def test_a_run_goes_on_with_other_numbers_of_processes(shards: Path, tmp_path: Path) -> None:
    """Two ranks, killed; three, killed in the same epoch; then one to the end."""
    given: Counter[str] = Counter()
    state: dict[str, Any] | None = None
    for world_size, steps in ((2, 5), (3, 3)):
        run_killed(world_size, shards, tmp_path, steps)
        saved = checkpoint(tmp_path)["loader"]
        assert saved["world_size"] == world_size and saved["epoch"] == 0 and saved["step"]
        # From the plan: a rank may be killed before it has written down what the checkpoint of the first one knows of.
        for rank, written in enumerate(trained_on(tmp_path, world_size)):
            loader = loader_of(shards, rank, world_size)
            if state is not None:
                loader.load_state_dict(state)
            keys = [tuple(batch.keys) for batch in islice(loader, saved["step"])]
            shorter = min(len(keys), len(written))
            assert keys[:shorter] == [step.keys for step in written[:shorter]]
            given.update(chain(*keys))
        state = saved
    ranks = finish_training(1, shards, tmp_path)
    assert given + keys_of_epoch(ranks, 0) == every_key(shards)
    assert keys_of_epoch(ranks, 1) == every_key(shards)


def test_a_rank_that_fails_ends_the_others(shards: Path, tmp_path: Path) -> None:
    with start_training(2, shards, tmp_path, fail=(1, 3)) as ranks:
        (status, _, errors), (failed, _, cause) = ranks.end()
    assert failed == 1
    assert "RuntimeError: a bug of the trainer" in cause
    assert status != 0
    assert "RuntimeError" in errors


def torchrun(*arguments: object, processes: int = 2) -> subprocess.Popen[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return subprocess.Popen(
        [*launcher, train_ctc.__file__, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_torchrun_trains_and_resumes_the_script(shards: Path, tmp_path: Path) -> None:
    common = (shards, "--folder", tmp_path / "run", "--batch-bins", 1500, "--max-seconds", 3, "--log-every", 1)
    process = torchrun(*common, "--epochs", 1)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    (first,) = re.findall(r"^epoch 0: \d+ steps, loss (\S+), waited", output, re.MULTILINE)
    process = torchrun(*common, "--epochs", 2, "--resume", "--num-workers", 1)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert re.search(r"^going on after step \d+, in epoch 1$", output, re.MULTILINE)
    (second,) = re.findall(r"^epoch 1: \d+ steps, loss (\S+), waited", output, re.MULTILINE)
    assert float(second) < float(first)


def test_control_c_ends_torchrun_and_all_below(shards: Path, tmp_path: Path) -> None:
    process = torchrun(shards, "--folder", tmp_path, "--epochs", 99, "--log-every", 1, "--num-workers", 1)
    assert process.stdout is not None
    process.stdout.readline()
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 4
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode != 0
    assert not still_alive(family)


def test_alone_and_not_over_another_run(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    arguments = [str(shards), "--folder", str(tmp_path), "--epochs", "1", "--batch-bins", "1500", "--max-seconds", "2"]
    assert train_ctc.main(arguments) == 0
    assert "epoch 0:" in capsys.readouterr().out
    assert train_ctc.main(arguments) == 1
    assert "go on with it by --resume" in capsys.readouterr().err
    assert train_ctc.main([*arguments, "--resume"]) == 0
    assert train_ctc.main([*arguments, "--resume", "--seed", "1"]) == 1
    assert "seed was 0, is 1" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [train_ctc.CHECKPOINT]


WORLD = """
import json, os, sys, tempfile
import torch.distributed as dist
from uttershard.pipeline.errors import ShardingError
from uttershard.pipeline.loader.world import find_world

rank, said = int(os.environ["RANK"]), {}
said["environment"] = find_world(None, None)
dist.init_process_group("gloo")
said["group"] = find_world(None, None)
os.environ.update(RANK="7", WORLD_SIZE="8")
said["group before environment"] = find_world(None, None)
del os.environ["RANK"], os.environ["WORLD_SIZE"]
said["group without environment"] = find_world(None, None)
said["arguments"] = find_world(0, 1)
said["local rank"] = os.environ["LOCAL_RANK"]
try:
    find_world(0, 3)
except ShardingError as error:
    said["refused"] = str(error)
dist.barrier()
dist.destroy_process_group()
said["no group"] = find_world(None, None)
print(json.dumps(said))
"""


def test_rank_and_world_size_come_from_the_process_group() -> None:
    """One GPU a node: each process is local rank 0 of 1, and one of two nevertheless."""
    with Ranks(2, ["-c", WORLD]) as ranks:
        ended = ranks.end()
    for rank, (status, output, errors) in enumerate(ended):
        assert status == 0, errors
        said = json.loads(output)
        for name in ("environment", "group", "group before environment", "group without environment"):
            assert said[name] == [rank, 2], name
        assert said["local rank"] == "0"
        assert said["arguments"] == [0, 1]
        assert "world_size=3, but 2 processes are running" in said["refused"]
        assert said["no group"] == [0, 1]
