"""G13 never hangs: an error, a killed worker, a stuck read or a trainer that leaves ends in an error or an exit."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from packed import Packed, Seen, keys_of, run, seen
from uttershard.pipeline import ShardLoader
from uttershard.pipeline.errors import ConfigError, DataError, StorageError, UttershardError
from uttershard.pipeline.loader.settings import Workers
from uttershard.pipeline.reading.buffers import BufferPool
from uttershard.pipeline.storage.base import Spans
from uttershard.pipeline.storage.local import LocalTars
from worker_processes import still_alive, workers_of

FORKED: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}
LIMIT_SECONDS = 120
HANDS: tuple[dict[str, Any], ...] = ({"threads": 2}, FORKED, {**FORKED, "persistent_workers": True})


def shared_memory() -> set[str]:
    """Segments of this process's tensors that still have a name."""
    return {path.name for path in Path("/dev/shm").glob(f"torch_{os.getpid()}_*")}


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """See that the test leaves no process, no shared memory and no open file."""
    gc.collect()
    me = psutil.Process()
    children, names, threads = set(workers_of(me)), shared_memory(), threading.active_count()
    yield
    gc.collect()
    assert not still_alive(set(workers_of(me)) - children)
    assert shared_memory() <= names
    assert not [file.path for file in me.open_files() if file.path.endswith((".tar", ".parquet"))]
    assert threading.active_count() <= threads


@pytest.fixture(scope="module")
def expected(flac: Packed) -> list[Seen]:
    return list(run(flac.loader(), 0, 1))


def read_that(monkeypatch: pytest.MonkeyPatch, act: Callable[[Spans], None]) -> None:
    """Let every read of spans do something first, in threads and in forked workers."""
    original = LocalTars.read

    def read(storage: LocalTars, spans: Spans) -> Any:
        act(spans)
        return original(storage, spans)

    monkeypatch.setattr(LocalTars, "read", read)


# Workers that die


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_worker_is_an_error_and_the_loader_lives_on(
    flac: Packed, expected: list[Seen], nothing_left: None, persistent: bool, victim: int
) -> None:
    loader = flac.loader(**FORKED, persistent_workers=persistent, prefetch_factor=1)
    before = set(workers_of(psutil.Process()))
    batches = iter(loader)
    received = [seen(next(batches))]
    workers = sorted(set(workers_of(psutil.Process())) - before, key=lambda process: process.pid)
    assert len(workers) == 2
    # torch raises its own error where the signal finds the trainer, ours comes out of the loader.
    with pytest.raises((UttershardError, RuntimeError), match=r"worker.*(killed by signal|exited unexpectedly)"):
        workers[victim].send_signal(signal.SIGKILL)
        for batch in batches:
            received.append(seen(batch))
    assert received == expected[: len(received)]
    state = loader.state_dict()
    assert state["step"] == len(received)
    loader.load_state_dict(state)
    assert [*received, *map(seen, loader)] == [batch for batch in expected if batch.epoch == 0]
    loader.set_epoch(1)
    assert [seen(batch) for batch in loader] == [batch for batch in expected if batch.epoch == 1]


def test_a_worker_killed_between_epochs_is_replaced(flac: Packed, expected: list[Seen], nothing_left: None) -> None:
    loader = flac.loader(**FORKED, persistent_workers=True)
    before = set(workers_of(psutil.Process()))
    first = [seen(batch) for batch in loader]
    workers = set(workers_of(psutil.Process())) - before
    try:
        for worker in workers:
            worker.kill()
        still_alive(workers)
    except RuntimeError:  # torch's, raised where the signal found us
        pass
    loader.set_epoch(1)
    assert first + [seen(batch) for batch in loader] == expected


def test_a_worker_that_exits_is_told_from_one_that_is_slow(
    flac: Packed, monkeypatch: pytest.MonkeyPatch, nothing_left: None
) -> None:
    read_that(monkeypatch, lambda spans: os._exit(3))
    with pytest.raises((UttershardError, RuntimeError), match="worker"):
        list(flac.loader(**FORKED))


# Errors


class OddError(Exception):
    """Cannot be made again from its arguments, so it cannot be sent as it is."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first}, {second}")


def _raise(error: Exception) -> Callable[[Spans], None]:
    def act(spans: Spans) -> None:
        raise error

    return act


@pytest.mark.parametrize("hands", HANDS, ids=str)
@pytest.mark.parametrize(
    "error",
    [
        DataError("shard 3 is damaged"),
        StorageError("the disk is on fire"),
        TimeoutError("the file server does not answer"),
        KeyError("speaker"),
        MemoryError("no room"),
        RuntimeError("a bug"),
    ],
    ids=repr,
)
def test_an_error_reaches_the_trainer_as_it_is(
    flac: Packed, monkeypatch: pytest.MonkeyPatch, nothing_left: None, hands: dict[str, Any], error: Exception
) -> None:
    read_that(monkeypatch, _raise(error))
    loader = flac.loader(**hands)
    with pytest.raises(type(error)) as caught:
        next(iter(loader))
    assert type(caught.value) is type(error)
    assert str(caught.value) == str(error)
    if "num_workers" in hands:
        assert any("In a worker process" in note and "in act" in note for note in caught.value.__notes__)
    caught.value.__traceback__ = None
    del caught, loader


def test_an_error_that_cannot_travel_is_told_in_words(
    flac: Packed, monkeypatch: pytest.MonkeyPatch, nothing_left: None
) -> None:
    read_that(monkeypatch, _raise(OddError("one", "two")))
    with pytest.raises(UttershardError, match=r"OddError in a worker process: one, two(.|\n)*in act"):
        list(flac.loader(**FORKED))


@pytest.mark.parametrize("hands", HANDS, ids=str)
def test_a_loader_goes_on_after_an_error(
    flac: Packed, monkeypatch: pytest.MonkeyPatch, expected: list[Seen], nothing_left: None, hands: dict[str, Any]
) -> None:
    loader = flac.loader(**hands)
    with monkeypatch.context() as patch:
        read_that(patch, _raise(StorageError("the disk is on fire")))
        with pytest.raises(StorageError):
            list(loader)
    loader.set_epoch(0)
    assert [seen(batch) for batch in loader] == [batch for batch in expected if batch.epoch == 0]


# Reads that do not come back


def test_a_stuck_thread_is_given_up(flac: Packed, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    read_that(monkeypatch, lambda spans: (released.wait(60), None)[1])
    try:
        with pytest.raises(UttershardError, match=r"no batch within 0\.2 s.*timeout="):
            list(flac.loader(threads=1, timeout=0.2))
    finally:
        released.set()


@pytest.mark.parametrize("persistent", [False, True])
def test_a_stuck_worker_is_given_up(
    flac: Packed, monkeypatch: pytest.MonkeyPatch, expected: list[Seen], persistent: bool
) -> None:
    with monkeypatch.context() as patch:
        read_that(patch, lambda spans: (threading.Event().wait(2), None)[1])
        loader = flac.loader(**FORKED, persistent_workers=persistent, timeout=0.2)
        with pytest.raises(UttershardError, match=r"does not answer .*timed out after 0\.2 seconds"):
            list(loader)
    patient = flac.loader(**FORKED, persistent_workers=persistent)
    assert [seen(batch) for batch in patient] == [batch for batch in expected if batch.epoch == 0]


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_no_wait_is_without_a_limit(timeout: float) -> None:
    with pytest.raises(ConfigError, match="every wait has a limit"):
        Workers(timeout=timeout)


# Trainers that leave


@pytest.mark.parametrize("hands", HANDS, ids=str)
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_trainer_that_breaks_out_leaves_nothing_behind(
    flac: Packed, expected: list[Seen], nothing_left: None, hands: dict[str, Any], steps: int
) -> None:
    loader = flac.loader(**hands)
    batches = iter(loader)
    for _ in range(steps):
        next(batches)
    del batches
    loader.set_epoch(1)
    assert [seen(batch) for batch in loader] == [batch for batch in expected if batch.epoch == 1]
    del loader


@pytest.mark.parametrize("hands", HANDS, ids=str)
def test_a_trainer_that_raises_leaves_nothing_behind(flac: Packed, nothing_left: None, hands: dict[str, Any]) -> None:
    def train() -> None:
        for _ in flac.loader(**hands):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()


@pytest.mark.parametrize("hands", HANDS, ids=str)
def test_a_loader_that_is_dropped_in_mid_epoch_leaves_nothing_behind(
    flac: Packed, nothing_left: None, hands: dict[str, Any]
) -> None:
    loader = flac.loader(**hands)
    batches = iter(loader)
    next(batches)
    del loader, batches


@pytest.mark.parametrize("hands", HANDS, ids=str)
def test_dropping_does_not_wait_for_the_garbage_collector(flac: Packed, hands: dict[str, Any]) -> None:
    before, threads = set(workers_of(psutil.Process())), threading.active_count()
    gc.collect()
    gc.disable()
    try:
        loader = flac.loader(**hands)
        batches = iter(loader)
        next(batches)
        del batches
        assert threading.active_count() <= threads or "num_workers" in hands
        del loader
        assert not still_alive(set(workers_of(psutil.Process())) - before)
    finally:
        gc.enable()


def test_an_error_keeps_no_worker(flac: Packed, monkeypatch: pytest.MonkeyPatch) -> None:
    import tblib.pickling_support

    # As in a trainer that has imported Dask: errors come out of the workers with their tracebacks.
    tblib.pickling_support.install()

    def explain(spans: Spans) -> None:
        try:
            raise TimeoutError("no byte")
        except TimeoutError as error:
            raise StorageError("gave up") from error

    read_that(monkeypatch, explain)
    before = set(workers_of(psutil.Process()))
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(StorageError):
            list(flac.loader(**FORKED))
        assert not still_alive(set(workers_of(psutil.Process())) - before)
    finally:
        gc.enable()


def test_batches_outlive_their_loader(flac: Packed, expected: list[Seen]) -> None:
    for hands in HANDS:
        held = list(flac.loader(**hands))
        gc.collect()
        assert [seen(batch) for batch in held] == [batch for batch in expected if batch.epoch == 0]


SCRIPT = """
import sys
from uttershard.pipeline import ShardLoader

def main():
    loader = ShardLoader(sys.argv[1], batch_bins=600, rank=0, world_size=1, **eval(sys.argv[2]))
    {body}

if __name__ == "__main__":
    main()
"""
ENDLESS = """
    while True:
        for batch in loader:
            print(batch.step, flush=True)
"""
LEAVE = """
    batches = iter(loader)
    next(batches)
    print("left", flush=True)
"""


def start(flac: Packed, body: str, hands: dict[str, Any]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.replace("{body}", body.strip()), str(flac.address), repr(hands)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("hands", [HANDS[0], HANDS[2]], ids=str)
def test_control_c_ends_the_trainer_and_its_workers(flac: Packed, hands: dict[str, Any]) -> None:
    process = start(flac, ENDLESS, hands)
    assert process.stdout is not None
    process.stdout.readline()
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    _, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in errors
    assert not still_alive(family)


@pytest.mark.timeout(600, method="thread")  # the other method uses the timer that this test does
def test_no_control_c_is_lost_while_a_batch_is_let_go() -> None:
    # An exception raised inside Python code that the garbage collector calls is printed and dropped.
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    pool = BufferPool()
    before = signal.signal(signal.SIGALRM, stop)
    try:
        for attempt in range(200):
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + attempt * 1e-6)
                for _ in range(1_000_000):
                    pool.empty((8,), torch.int16)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("hands", [HANDS[0], HANDS[2]], ids=str)
def test_a_trainer_that_ends_in_mid_epoch_ends(flac: Packed, hands: dict[str, Any]) -> None:
    process = start(flac, LEAVE, hands)
    output, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert (process.returncode, output) == (0, "left\n"), errors


def test_a_trainer_that_is_killed_takes_its_workers_along(flac: Packed) -> None:
    process = start(flac, ENDLESS, FORKED)
    assert process.stdout is not None
    process.stdout.readline()
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate(timeout=LIMIT_SECONDS)
    assert not still_alive(family)


# A logical shard without utterances, and other odd plans, through the loader


@pytest.mark.parametrize("hands", HANDS, ids=str)
@pytest.mark.parametrize("policy", ["off", "drop", "pad", "split"])
def test_every_policy_of_equal_steps_runs(flac: Packed, hands: dict[str, Any], policy: str) -> None:
    loaders = [flac.loader(rank=rank, world_size=3, equal_steps=policy, **hands) for rank in range(3)]
    epochs = [list(run(loader, 0)) for loader in loaders]
    assert [len(epoch) for epoch in epochs] == [len(loader) for loader in loaders] or policy != "off"
    keys = [key for epoch in epochs for batch in epoch if not batch.filler for key in batch.keys]
    assert len(set(keys)) == len(keys)
    if policy != "drop":
        assert set(keys) == set(flac.sources)
    if policy != "off":
        assert len({len(epoch) for epoch in epochs}) == 1


@pytest.mark.parametrize("hands", HANDS, ids=str)
def test_a_rank_without_utterances_has_an_epoch_without_steps(flac: Packed, hands: dict[str, Any]) -> None:
    """Logical shards are runs of utterances: those after the few that are kept hold nothing."""
    loaders = [
        flac.loader(rank=rank, world_size=4, equal_steps="off", where="num_samples == 3200", **hands)
        for rank in range(4)
    ]
    steps = [len(keys_of(loader)) for loader in loaders]
    assert sorted(steps) == [0, 0, 0, 1]
    for loader in loaders:
        assert loader.metrics()["steps"] in (0, 1)


def test_a_filter_that_keeps_nothing(flac: Packed) -> None:
    with pytest.raises(ConfigError):
        list(flac.loader(max_seconds=0.0001))


def test_a_fixed_batch_size_has_no_fill(flac: Packed) -> None:
    loader: ShardLoader = flac.loader(batch_size=5)
    sizes = [len(batch) for batch in loader]
    assert sum(sizes) == len(flac.sources)
    assert max(sizes) == 5
    metrics = loader.metrics()
    assert metrics["fill"] is None
    assert metrics["steps"] == len(sizes)
    assert 0 < metrics["padding"] < 1
