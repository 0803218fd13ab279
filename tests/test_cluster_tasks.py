"""Tasks on workers: retried elsewhere, given up one by one, taken as they are needed."""

import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cluster_tasks
import dask
import pytest
from corpora import write_audio, write_jsonl
from dask_processes import dask_processes
from distributed import LocalCluster
from heard import Heard
from uttershard.pipeline.errors import DataError
from uttershard.writers import pack
from uttershard.writers.cluster import Cluster, ClusterSettings, TasksFailedError, start_cluster
from uttershard.writers.cluster import tasks as cluster_module
from uttershard.writers.cluster.present import present_workers
from uttershard.writers.progress import Silent

HERE = ClusterSettings(n_workers=2, options={"processes": False})


def test_what_a_job_without_workers_waits_for_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "_TOLD_SECONDS", 0.0)
    heard = Heard()
    with start_cluster(HERE, 0, heard) as started:
        started.client.cluster.scale(0)
        while present_workers(started.client):
            time.sleep(0.01)
        since = time.monotonic() - 1
        assert started.check_alive(since) == started.check_alive(since) == since
        started.client.cluster.scale(1)
        started.client.wait_for_workers(1, timeout=60)
        assert started.check_alive(since) > since
    assert heard.notes == ["all workers are gone: waiting for others, for 180 s at most"]


def test_workers_that_are_there_are_never_missed() -> None:
    """Dask's client forgets them whenever its timer asks for something else: here a thousand times a second."""
    with (
        dask.config.set({"distributed.client.scheduler-info-interval": "1ms"}),
        start_cluster(HERE, 0, Silent()) as started,
    ):
        assert {len(present_workers(started.client) or ()) for _ in range(300)} == {2}


def test_of_a_scheduler_that_is_gone_nothing_is_known(tmp_path: Path) -> None:
    with dask_processes(tmp_path, 1) as processes:
        with start_cluster(ClusterSettings(processes.address), 0, Silent()) as started:
            assert present_workers(started.client)
            processes.stop()
            assert present_workers(started.client) is None
            assert not started.is_alone({"tcp://127.0.0.1:1"})
        assert present_workers(started.client) is None


@pytest.mark.usefixtures("no_pauses")
def test_a_failed_task_goes_to_another_worker(tmp_path: Path) -> None:
    heard = Heard()
    with start_cluster(HERE, 3, heard) as cluster:
        tasks = [(str(tmp_path), number) for number in range(8)]
        results = dict(cluster.run(cluster_tasks.fail_once_on_each, tasks))
    assert sorted(results) == list(range(8))
    assert all(worker != (tmp_path / str(number)).read_text() for number, worker in results.items())
    assert heard.retries == 8


@pytest.mark.usefixtures("no_pauses")
def test_the_others_are_finished_and_the_cause_is_told() -> None:
    finished = []
    heard = Heard()
    with start_cluster(HERE, 2, heard) as cluster, pytest.raises(TasksFailedError) as failed:
        for number, _ in cluster.run(cluster_tasks.fail_third, range(10), "shard-{:06d}.tar".format):
            finished.append(number)
    assert sorted(finished) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert list(failed.value.causes) == ["shard-000003.tar"]
    assert "bad sector" in failed.value.causes["shard-000003.tar"]
    assert heard.retries == 2


def _lacks_a_file(task: int) -> int:
    raise cluster_module.ElsewhereError("no lexicon here")


def test_what_a_host_lacks_is_asked_of_others_soon_and_told_when_there_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_module, "PAUSES_SECONDS", (0.0, 100_000.0))  # the second is for what may pass
    monkeypatch.setattr(cluster_module, "_TROUBLE_SECONDS", 100_000.0)
    heard = Heard()
    with start_cluster(HERE, 3, heard) as cluster:
        with pytest.raises(cluster_module.ElsewhereError, match="no lexicon here"):
            list(cluster.run(_lacks_a_file, [1]))
        assert not heard.retries
        monkeypatch.setattr(cluster, "is_alone", lambda failed_on: False)
        with pytest.raises(TasksFailedError, match="no lexicon here"):
            list(cluster.run(_lacks_a_file, [1], "shard {}".format))
    assert heard.retries == 3
    assert heard.notes == ["shard 0: no lexicon here; tried again in 0 s"], "and not all of them"


def test_a_task_that_kills_its_workers_is_given_up_and_the_others_finished() -> None:
    finished = []
    with (
        start_cluster(ClusterSettings(n_workers=2), 1, Silent()) as cluster,
        pytest.raises(TasksFailedError, match="task 3: 2 workers died over it"),
    ):
        for number, _ in cluster.run(cluster_tasks.die_on_third, range(10)):
            finished.append(number)
    assert sorted(finished) == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_a_worker_that_is_being_started_does_not_fail_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    close = LocalCluster.close

    def closing(self: Any, timeout: float | None = None) -> None:
        close(self, timeout)
        raise AssertionError("can only join a started process")

    monkeypatch.setattr(LocalCluster, "close", closing)
    with start_cluster(HERE, 1, Silent()) as cluster:
        assert dict(cluster.run(abs, [-1])) == {0: 1}


def test_a_verdict_ends_the_run_at_once() -> None:
    with start_cluster(HERE, 5, Silent()) as cluster, pytest.raises(DataError, match="no shard 3"):
        list(cluster.run(cluster_tasks.refuse_third, range(1_000_000)))


def test_tasks_are_taken_as_they_are_needed() -> None:
    taken = 0

    def tasks() -> Iterator[int]:
        nonlocal taken
        for number in range(100_000):
            taken += 1
            yield number

    with start_cluster(HERE, 5, Silent()) as cluster:
        results = cluster.run(cluster_tasks.fail_third, tasks())
        next(results)
        assert taken <= 8
        results.close()


def test_the_scheduler_sees_few_small_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task a shard and one for some hundred files, of a size that does not grow with what they pack."""
    audio = write_audio(tmp_path / "a.wav", 0.05)
    count = 3000
    records = [{"id": f"u{number}", "audio_filepath": str(audio), "duration": 0.05} for number in range(count)]
    manifest = write_jsonl(tmp_path / "train.jsonl", records)
    sizes = []
    submit = Cluster.submit

    def noting(self: Cluster, function: Any, attempt: Any) -> Any:
        sizes.append(len(pickle.dumps((function, attempt.task))))
        return submit(self, function, attempt)

    monkeypatch.setattr(Cluster, "submit", noting)
    summary = pack(manifest, tmp_path / "out", shards=3, workers=1)
    assert summary.utterances == count
    assert len(sizes) <= 3 + 1
    assert max(sizes) < 4096
