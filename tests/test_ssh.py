"""Workers over SSH: started, read, and started again on their hosts when they have ended."""

import asyncio
import dataclasses
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncssh
import cluster_tasks
import psutil
import pytest
from corpora import files_of, jsonl_corpus
from heard import Heard
from ssh_server import running_ssh_server
from uttershard.pipeline.errors import StorageError
from uttershard.writers import pack
from uttershard.writers.cluster import ClusterSettings, start_cluster
from uttershard.writers.cluster import ssh as ssh_module
from uttershard.writers.cluster.ssh import SshWatch, SshWorker, start_ssh
from uttershard.writers.progress import Silent

LIMIT_SECONDS = 180


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[ClusterSettings]:
    """Two workers of one thread on this machine, over SSH; what they log in to does not know of our tasks' module."""
    path = shlex.quote(str(Path(cluster_tasks.__file__).parent))
    with running_ssh_server(tmp_path / "keys") as server:
        key = asyncssh.read_private_key(str(server.client_key))
        options = {
            "hosts": ["127.0.0.1", "127.0.0.1"],
            "connect_options": {"port": server.port, "known_hosts": None, "client_keys": [key]},
            "remote_python": f"env PYTHONPATH={path} {shlex.quote(sys.executable)}",
            "worker_options": {"nthreads": 1},
        }
        yield ClusterSettings("ssh", 2, options=options)


def with_options(settings: ClusterSettings, **options: Any) -> ClusterSettings:
    return dataclasses.replace(settings, options={**settings.options, **options})


def test_a_worker_and_its_nanny_killed(
    settings: ClusterSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_module, "_LOOK_SECONDS", 0.1)
    monkeypatch.setattr("uttershard.writers.cluster.tasks._LOOK_SECONDS", 0.1)
    corpus, target = jsonl_corpus(tmp_path / "corpus", 12, seconds=3.0), tmp_path / "out"
    pack(corpus, tmp_path / "expected", codec="opus", shards=4, cluster=ClusterSettings(options={"processes": False}))
    killed: list[int] = []

    class Kill(Silent):
        """With the first shard all workers go; there is none until one is started again."""

        def advance(self, *_: object, **__: object) -> None:
            if not killed and list((target / ".uttershard" / "done").glob("*.json")):
                for nanny in nannies():
                    family = [nanny, *nanny.children(recursive=True)]
                    killed.extend(process.pid for process in family)
                    for process in family:
                        process.kill()

    pack(corpus, target, codec="opus", shards=4, cluster=settings, progress=Kill())
    assert len(killed) >= 4
    assert files_of(target) == files_of(tmp_path / "expected")


def nannies() -> list[psutil.Process]:
    """Return the processes that SSH has started workers with."""
    found = psutil.Process().children(recursive=True)
    return [process for process in found if '"ssh-' in process.cmdline()[-1] and "-m" in process.cmdline()]


def test_what_workers_write_is_read(settings: ClusterSettings) -> None:
    with start_cluster(dataclasses.replace(settings, n_workers=1), 0, Silent()) as cluster:
        assert dict(cluster.run(cluster_tasks.complain, [1, 2])) == {0: 1, 1: 2}


def test_n_workers_holds_with_several_on_a_host(settings: ClusterSettings) -> None:
    several = with_options(dataclasses.replace(settings, n_workers=3), worker_options={"n_workers": 2, "nthreads": 1})
    with start_cluster(several, 0, Silent()) as cluster:
        cluster.client.wait_for_workers(3, timeout=LIMIT_SECONDS)
        workers = cluster.client.scheduler.identity
        names = {worker["name"] for worker in cluster.client.sync(workers)["workers"].values()}
    assert names == {"ssh-0", "ssh-1", "ssh-2"}


def test_a_host_whose_python_is_not_there_is_named_at_start(settings: ClusterSettings) -> None:
    python = [settings.options["remote_python"], "/nowhere/python"]
    with (
        pytest.raises(
            StorageError, match=r"could not be started: 127\.0\.0\.1: the worker ended as it started: .*nowhere"
        ),
        start_cluster(with_options(settings, remote_python=python), 0, Silent()),
    ):
        pass


def test_a_blank_in_the_path_of_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/our tools/python")
    started: list[Any] = []
    monkeypatch.setattr(ssh_module, "SpecCluster", lambda *specs, **_: started.extend(specs))
    start_ssh(ClusterSettings("ssh", options={"hosts": ["head", "node"]}))
    workers, scheduler = started
    commands = [scheduler["options"]["remote_python"], workers[0]["options"]["python"]]
    assert [shlex.split(command) for command in commands] == [["/opt/our tools/python"]] * 2


def test_a_worker_that_says_much_at_once_as_it_starts() -> None:
    """Its word that it is up is not the last."""

    worker = SshWorker("tcp://head:8786", "node", "ssh-0", {}, "python", {})

    async def read() -> bool:
        stream, up = asyncio.StreamReader(), asyncio.Event()
        stream.feed_data(b"Start worker at: tcp://node:1\n" + 9_000 * b"-" + b"\nRegistered\n")
        stream.feed_eof()
        await worker._read(stream, up)
        return up.is_set()

    assert asyncio.run(read())
    assert worker.last_words == "Registered"


class Worker:
    """What a watch sees of a worker."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.host = f"host-of-{name}"
        self.has_ended = False
        self.trouble: str | None = None
        self.last_words = "Killed"
        self.started = 0
        self.comes_back = True

    def start_again(self) -> None:
        self.started += 1
        self.has_ended = not self.comes_back
        self.trouble = None if self.comes_back else f"{self.host}: Connection refused"


class Hosts:
    """A cluster of two workers, and a clock."""

    def __init__(self) -> None:
        self.loop = self
        self.now = 1000.0
        self.workers = {0: Worker("ssh-0"), 1: Worker("ssh-1")}
        self.heard = Heard()
        self.watch = SshWatch(self, self.heard, lambda: self.now)

    @property
    def scheduler_info(self) -> dict[str, Any]:
        return {"workers": {f"tcp://{w.name}": {"name": w.name} for w in self.workers.values() if not w.has_ended}}

    def add_callback(self, function: Callable[[], object]) -> None:
        function()

    def look(self, seconds: float) -> None:
        """Have the watch look every five seconds for so long."""
        for _ in range(int(seconds / 5)):
            self.now += 5
            self.watch()


def test_a_worker_that_ended_is_started_again_without_a_word() -> None:
    hosts = Hosts()
    hosts.workers[1].has_ended = True
    hosts.look(5)
    assert hosts.workers[1].started == 0, "the scheduler may be about to learn of it"
    hosts.look(5)
    hosts.look(60)
    assert [worker.started for worker in hosts.workers.values()] == [0, 1]
    assert hosts.heard.notes == []


def test_a_host_that_is_down_is_tried_now_and_then_and_told_once() -> None:
    hosts = Hosts()
    down, beside = hosts.workers.values()
    for worker in (down, beside):
        worker.host = "host-of-ssh-0"
        worker.has_ended, worker.comes_back = True, False
    hosts.look(3600)
    assert 12 <= down.started <= 16
    assert hosts.heard.notes == ["workers are lost, and started again now and then: host-of-ssh-0: Connection refused"]
    down.comes_back = True
    hosts.look(900)
    assert not down.has_ended
    down.has_ended = True
    started = down.started
    hosts.look(15)
    assert down.started == started + 1, "it was well for a while, and is not waited for"


def test_a_worker_that_ends_again_and_again_is_told() -> None:
    hosts = Hosts()
    for _ in range(4):
        hosts.workers[0].has_ended = True
        hosts.look(30)
    assert hosts.workers[0].started == 3
    assert hosts.heard.notes == [
        "workers are lost, and started again now and then: host-of-ssh-0: its worker has ended again: Killed"
    ]


def test_a_worker_whose_connection_was_cut_is_left_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts()
    at_work = hosts.scheduler_info
    hosts.workers[0].has_ended = True
    monkeypatch.setattr(Hosts, "scheduler_info", at_work)
    hosts.look(60)
    assert hosts.workers[0].started == 0
