"""Clusters: which there are, what is refused, what is found of workers at start, and what becomes of failed tasks."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cluster_tasks
import dask
import psutil
import pytest
from batch_system import install_batch_system
from corpora import files_of, jsonl_corpus
from dask_processes import DaskProcesses, dask_processes
from heard import Heard
from uttershard.pipeline.errors import ConfigError, StorageError
from uttershard.writers import pack
from uttershard.writers.cluster import ClusterSettings, TasksFailedError, read_cluster_config, start_cluster
from uttershard.writers.cluster.present import present_workers
from uttershard.writers.cluster.settings import ENVS, JOB_QUEUES
from uttershard.writers.progress import Silent

HERE = ClusterSettings(n_workers=2, options={"processes": False})


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return jsonl_corpus(tmp_path_factory.mktemp("corpus"), 24)


@pytest.fixture(scope="module")
def expected(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The dataset as local workers pack it."""
    target = tmp_path_factory.mktemp("local") / "out"
    pack(corpus, target, shards=4, cluster=HERE)
    return files_of(target)


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[DaskProcesses]:
    """A scheduler without workers."""
    with dask_processes(tmp_path, 0) as processes:
        yield processes


# What is asked for


def test_yaml_as_in_espnet(tmp_path: Path) -> None:
    path = tmp_path / "parallel.yaml"
    path.write_text(
        "parallel:\n  env: slurm\n  n_workers: 16\n"
        '  options: {queue: cpu, cores: 4, memory: 16GB, walltime: "02:00:00"}\n'
    )
    assert read_cluster_config(str(path)) == ClusterSettings(
        "slurm", 16, options={"queue": "cpu", "cores": 4, "memory": "16GB", "walltime": "02:00:00"}
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n_workers: 3", "no `parallel:` block with env, n_workers, min_workers, options"),
        ("parallel: {env: slurm, workers: 3}", "no entry 'workers'; it has: env, n_workers"),
        ("parallel: {env: slurm, n_workers: 3, options: [1]}", "`options` a mapping"),
        (
            "parallel: {env: spark}",
            "cluster is 'spark'; it can be local, slurm, pbs, sge, lsf, htcondor, oar, moab, ssh",
        ),
        ("parallel: {env: slurm, n_workers: 2, options: {qeueu: cpu}}", r"no option 'qeueu'; it has: .*\bqueue\b"),
        ("parallel: {env: local, n_workers: 0}", "n_workers is 0"),
        ("parallel: {env: local, n_workers: two}", "n_workers is 'two'"),
        ("parallel: {env: local, n_workers: 2, min_workers: 1}", "min_workers is for batch systems and kubernetes"),
        ("parallel: {env: slurm}", "say how many workers"),
        ("parallel: {env: ssh, n_workers: 2}", "needs the option hosts: the scheduler's first, then the workers'$"),
        ("parallel: {env: ssh, options: {hosts: head}}", "needs the option hosts: .*, a list of names .it is 'head'"),
        ("parallel: {env: pbs, n_workers: 2, options: {walltime: 24:00:00}}", "walltime is 86400; write it in quotes"),
        ("parallel: {env: 'tcp://127.0.0.1:1', options: {cores: 1}}", "no option 'cores'; it has: none"),
        ("parallel: [", "no YAML that can be read"),
        ("parallel: {start_seconds: soon}", "start_seconds is 'soon'; it must be a number of seconds"),
        ("parallel: {dashboard: 'no'}", "dashboard is 'no'; it can be true or false"),
    ],
)
def test_yaml_that_does_not_fit(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "parallel.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_cluster_config(str(path))


@pytest.mark.parametrize("env", [env for env in ENVS if env != "kubernetes"])
def test_every_kind_lists_its_options(env: str) -> None:
    with pytest.raises(ConfigError, match=f"cluster '{env}' has no option 'nonsense'; it has: .+, .+"):
        ClusterSettings(env, 2, options={"nonsense": 1, "hosts": ["a"]} if env == "ssh" else {"nonsense": 1})


def test_ctrl_c_stays_ours_when_job_queues_are_imported() -> None:
    code = (
        "import signal; from uttershard.writers.cluster import ClusterSettings; ClusterSettings('slurm', 2); "
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
    with pytest.raises(ConfigError, match=r"pip install 'uttershard\[cluster\]'"):
        ClusterSettings("slurm", 2)


@pytest.mark.parametrize("options", [{"memory": "much"}, {"cores": 0}])
def test_an_option_that_its_cluster_refuses(options: dict[str, Any]) -> None:
    with (
        pytest.raises(ConfigError, match="slurm"),
        start_cluster(ClusterSettings("slurm", 1, options=options), 0, Silent()),
    ):
        pass


def test_n_workers_holds_for_local() -> None:
    with start_cluster(ClusterSettings(n_workers=3, options={"processes": False}), 0, Silent()) as cluster:
        assert len(present_workers(cluster.client) or ()) == 3


def test_the_dashboard_is_told() -> None:
    heard = Heard()
    settings = ClusterSettings(n_workers=1, options={"processes": False}, dashboard=True)
    with start_cluster(settings, 0, heard):
        assert [note.partition(":")[0] for note in heard.notes] == ["dashboard"]
        assert heard.notes[0].endswith("/status")


# Kinds of clusters


def test_a_scheduler_that_runs(
    scheduler: DaskProcesses, corpus: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    scheduler.start_worker()
    pack(corpus, tmp_path / "out", shards=4, cluster=scheduler.address)
    assert files_of(tmp_path / "out") == expected


def test_no_scheduler_there(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT", "1s")
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        pytest.raises(StorageError, match="no scheduler"),
    ):
        pack(corpus, tmp_path / "out", shards=4, cluster="tcp://127.0.0.1:1")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("address", ["tcp://", "foo://head:8786", "tls://127.0.0.1:1"])
def test_no_address_of_a_scheduler(address: str) -> None:
    with (
        pytest.raises(ConfigError, match="no address of a scheduler"),
        start_cluster(ClusterSettings(address), 0, Silent()),
    ):
        pass


def test_a_local_cluster_that_cannot_start_says_why() -> None:
    settings = ClusterSettings(n_workers=1, options={"preload": ["no_such_module_of_ours"]})
    with (
        pytest.raises(StorageError, match=r"(?s)no_such_module_of_ours.*run the same command again"),
        start_cluster(settings, 0, Silent()),
    ):
        pass


def test_a_local_worker_that_does_not_come_back_is_replaced() -> None:
    with start_cluster(ClusterSettings("local", 1), 3, Silent()) as cluster:
        ((_, pid),) = cluster.run(cluster_tasks.pid_of, [0])
        family = {child.pid for child in psutil.Process().children(recursive=True)}
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 90
        while not (restarting := [c for c in psutil.Process().children(recursive=True) if c.pid not in family]):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for process in restarting:
            process.suspend()
        assert dict(cluster.run(abs, [-1, -2, -3])) == {0: 1, 1: 2, 2: 3}
        for process in restarting:
            process.kill()


def test_a_scheduler_that_is_killed_is_told_in_a_line(
    scheduler: DaskProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", logged.append)
    scheduler.start_worker()
    with (
        pytest.raises(StorageError, match="the scheduler is gone"),
        start_cluster(ClusterSettings(scheduler.address), 3, Silent()) as cluster,
    ):
        monkeypatch.setattr(cluster.client, "_timeout", 1.0)  # how long it looks for a scheduler that is lost
        logging.getLogger("distributed.client").addHandler(handler)
        for _ in cluster.run(abs, range(1_000_000)):
            if scheduler.scheduler is not None and scheduler.scheduler.poll() is None:
                scheduler.scheduler.kill()
    logging.getLogger("distributed.client").removeHandler(handler)
    assert logged == []


def test_no_worker_comes(scheduler: DaskProcesses) -> None:
    settings = ClusterSettings(scheduler.address, start_seconds=0.5)
    with pytest.raises(StorageError, match=r"no worker of .* start some"), start_cluster(settings, 0, Silent()):
        pass


@pytest.mark.parametrize(
    ("env", "submit", "cancel"), [("pbs", "qsub", "qdel"), ("lsf", "bsub", "bkill"), ("moab", "msub", "canceljob")]
)
def test_job_queues(
    env: str, submit: str, cancel: str, corpus: Path, expected: dict[str, bytes], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    tools = install_batch_system(tmp_path, submit, cancel)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    options = {"interface": "lo", "memory": "1GB", "walltime": "00:10:00", "scheduler_options": {"host": "127.0.0.1"}}
    pack(corpus, tmp_path / "out", shards=4, cluster=ClusterSettings(env, 1, options=options))
    assert files_of(tmp_path / "out") == expected
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 1
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() and _state(pid) != "Z" for pid in pids):
        assert time.monotonic() < deadline, "the job outlives the run"
        time.sleep(0.05)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


@pytest.mark.parametrize("env", list(JOB_QUEUES))
def test_a_process_a_core_unless_said_otherwise(env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: dict[str, Any] = {}

    class Stand:
        """Takes the arguments of the cluster."""

        job_cls = object

        def __init__(self, **options: Any) -> None:
            started.update(options)

        def adapt(self, **bounds: int) -> None:
            started["adapt"] = bounds
            raise RuntimeError("far enough")

    from uttershard.writers.cluster import start

    monkeypatch.setattr(start, "cluster_class", lambda _: Stand)
    settings = ClusterSettings(env, 10, min_workers=3, options={"cores": 4, "memory": "8GB"})
    with pytest.raises(StorageError, match="far enough"), start_cluster(settings, 0, Silent()):
        pass
    assert (started["cores"], started["processes"], started["memory"]) == (4, 4, "8GB")
    assert started["adapt"] == {"minimum_jobs": 1, "maximum_jobs": 3}


def test_kubernetes_is_told_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    # No Kubernetes here: what is tested is what its class is called with.
    calls: list[Any] = []

    class KubeCluster:
        """Has the parameters of dask-kubernetes' class that the test uses."""

        def __init__(self, *, name: str | None = None, image: str | None = None, n_workers: int | None = None) -> None:
            calls.append((name, image, n_workers))

        def adapt(self, minimum: int, maximum: int) -> None:
            calls.append((minimum, maximum))
            raise RuntimeError("far enough")

    operator = ModuleType("dask_kubernetes.operator")
    operator.KubeCluster = KubeCluster  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "dask_kubernetes", ModuleType("dask_kubernetes"))
    monkeypatch.setitem(sys.modules, "dask_kubernetes.operator", operator)
    with pytest.raises(ConfigError, match="no option 'cores'; it has: image, name"):
        ClusterSettings("kubernetes", 2, options={"cores": 3})
    settings = ClusterSettings("kubernetes", 8, min_workers=2, options={"image": "speech:1"})
    with pytest.raises(StorageError, match="far enough"), start_cluster(settings, 0, Silent()):
        pass
    assert calls == [(None, "speech:1", 2), (2, 8)]


# Workers


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (
            "soundfile.py",
            "raise ImportError('no libsndfile')",
            r"soundfile can't be imported \(ImportError: no libsndfile\)",
        ),
        ("soxr-9.9.dist-info/METADATA", "Name: soxr\nVersion: 9.9\n", r"soxr is 9\.9, here it is \d"),
    ],
)
def test_a_worker_that_differs_is_named_at_start(
    scheduler: DaskProcesses, corpus: Path, tmp_path: Path, file: str, text: str, message: str
) -> None:
    path = tmp_path / "path" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    scheduler.start_worker(environment={"PYTHONPATH": str(tmp_path / "path")})
    with pytest.raises(ConfigError, match=rf"tcp://127\.0\.0\.1:\d+: {message}"):
        pack(corpus, tmp_path / "out", shards=4, cluster=scheduler.address)
    assert not (tmp_path / "out" / "dataset.json").exists()


def test_a_worker_that_comes_later_and_differs_gets_no_task(scheduler: DaskProcesses, tmp_path: Path) -> None:
    (tmp_path / "soxr-9.9.dist-info").mkdir()
    (tmp_path / "soxr-9.9.dist-info" / "METADATA").write_text("Name: soxr\nVersion: 9.9\n")
    first = scheduler.start_worker()
    with start_cluster(ClusterSettings(scheduler.address), 0, Silent()) as cluster:
        assert dict(cluster.run(abs, [-1])) == {0: 1}
        scheduler.start_worker(environment={"PYTHONPATH": str(tmp_path)})
        cluster.client.wait_for_workers(2, timeout=60)
        first.kill()
        with pytest.raises(TasksFailedError, match=r"tcp://127\.0\.0\.1:\d+: soxr is 9\.9, here it is \d"):
            list(cluster.run(abs, [-1]))


def test_a_scheduler_without_the_package_is_named_at_start(tmp_path: Path) -> None:
    (tmp_path / "path" / "uttershard").mkdir(parents=True)
    (tmp_path / "path" / "uttershard" / "__init__.py").write_text("raise ImportError('not here')")
    processes = DaskProcesses(tmp_path)
    try:
        processes.start_scheduler(environment={"PYTHONPATH": str(tmp_path / "path")})
        processes.start_worker()
        with (
            pytest.raises(ConfigError, match=r"can: the scheduler: uttershard can't be imported \(ImportError: not"),
            start_cluster(ClusterSettings(processes.address), 0, Silent()),
        ):
            pass
    finally:
        processes.stop()
