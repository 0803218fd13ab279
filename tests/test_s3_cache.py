"""The cache: no wrong byte and no hang, whoever is killed, whatever is full, cut, stale or not writable."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import Fault, FaultProxy
from packed import run
from s3_cases import PATIENT, RemoteDataset, cached_tars, tar_requests
from s3_job import digest
from uttershard.pipeline.errors import UttershardError
from uttershard.pipeline.storage import eviction
from uttershard.pipeline.storage.cache_files import CacheFolder, lock_part

JOB = Path(__file__).with_name("s3_job.py")
WORKERS = {"num_workers": 2, "multiprocessing_context": "fork"}


def job_command(remote: RemoteDataset, proxy: FaultProxy | None = None, epochs: int = 1, **settings: Any) -> list[str]:
    settings = {"storage_options": remote.options(proxy), **PATIENT, **settings}
    job = {"dataset": remote.address, "epochs": epochs, "settings": settings}
    return [sys.executable, str(JOB), json.dumps(job, default=str)]


def results(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def run_on_tmpfs(folder: Path, size: str, script: str) -> list[dict[str, Any]]:
    """Run a shell script in a mount namespace of its own, with a small tmpfs on `folder`."""
    folder.mkdir(exist_ok=True)
    script = f"set -e; mount -t tmpfs -o size={size} tmpfs {folder}; {script}"
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return results(done.stdout)


@contextmanager
def stalled(proxy: FaultProxy) -> Iterator[threading.Event]:
    """Let tars stall in their middle; the event is set once one has."""
    asked = threading.Event()
    proxy.faults = [Fault(match=".tar", stall_after=20_000)]
    proxy.on_request = lambda path: asked.set() if ".tar" in path else None
    yield asked
    proxy.faults, proxy.on_request = [], lambda path: None


def test_a_job_killed_in_a_download(remote: RemoteDataset, proxy: FaultProxy, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with stalled(proxy) as asked:
        job = subprocess.Popen(job_command(remote, proxy, cache=cache), stdout=subprocess.DEVNULL)
        assert asked.wait(100)
        job.kill()
        job.wait()
    assert list(cache.glob("*.part")), "the job was killed before it began"
    assert list(run(remote.loader(cache=cache), 0)) == list(run(remote.packed.loader(), 0))
    assert len(cached_tars(cache)) == 8
    assert not list(cache.glob("*.part"))


def test_a_worker_killed_in_a_download(remote: RemoteDataset, proxy: FaultProxy, tmp_path: Path) -> None:
    loader = remote.loader(proxy, cache=tmp_path, **WORKERS)
    killed: list[int] = []

    def kill_a_worker(path: str) -> None:
        if ".tar" in path and not killed:
            killed.append(loader._processes._workers[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    with stalled(proxy):
        proxy.on_request = kill_a_worker
        with pytest.raises(UttershardError, match="worker process is gone"):
            list(run(loader, 0))
    assert killed
    assert list(run(loader, 0)) == list(run(remote.packed.loader(), 0))


def test_a_job_killed_in_an_eviction(remote: RemoteDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"cache": tmp_path, "cache_bytes": remote.tar_bytes() * 5 // 8, "windows": 4}
    expected = list(run(remote.packed.loader(windows=4), 0))
    child = os.fork()
    if not child:
        monkeypatch.setattr(eviction, "remove", lambda entry: os.kill(os.getpid(), signal.SIGKILL))
        list(run(remote.loader(**settings), 0))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert list(run(remote.loader(**settings), 0)) == expected


def test_half_written_and_cut_files_are_not_believed(remote: RemoteDataset, tmp_path: Path) -> None:
    list(run(remote.loader(cache=tmp_path), 0))
    whole, cut, *_ = cached_tars(tmp_path)
    whole.rename(whole.with_suffix(".part"))
    os.truncate(whole.with_suffix(".part"), 1000)
    os.truncate(cut, 1000)
    assert list(run(remote.loader(cache=tmp_path), 0)) == list(run(remote.packed.loader(), 0))
    assert sum(path.stat().st_size for path in cached_tars(tmp_path)) == remote.tar_bytes()


def test_a_tar_cut_while_it_is_mapped(remote: RemoteDataset, tmp_path: Path) -> None:
    loader = remote.loader(cache=tmp_path)
    expected = list(run(loader, 0))
    for path in cached_tars(tmp_path):
        os.truncate(path, 512)
    assert list(run(loader, 0)) == expected


def test_a_byte_that_rots_in_the_cache(remote: RemoteDataset, tmp_path: Path) -> None:
    list(run(remote.loader(cache=tmp_path), 0))
    for path in cached_tars(tmp_path):
        rotten = bytearray(path.read_bytes())
        rotten[2000] ^= 1
        path.chmod(0o644)
        path.write_bytes(rotten)
    loader = remote.loader(cache=tmp_path)
    expected = list(run(remote.packed.loader(), 0))
    assert list(run(loader, 0)) == expected
    assert loader.metrics()["storage"]["refetched"] == 8
    assert list(run(remote.loader(cache=tmp_path), 0)) == expected


def test_a_lock_of_a_dead_process_is_no_lock(remote: RemoteDataset, tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        for shard in remote.shards().manifest.shards:
            lock_part(CacheFolder(tmp_path), shard.tar_digest)
        with (tmp_path / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(list(tmp_path.glob("*.part"))) == 8
    assert list(run(remote.loader(cache=tmp_path), 0)) == list(run(remote.packed.loader(), 0))
    assert len(cached_tars(tmp_path)) == 8


def test_locks_that_somebody_holds_for_ever(remote: RemoteDataset, tmp_path: Path) -> None:
    parts = [lock_part(CacheFolder(tmp_path), shard.tar_digest) for shard in remote.shards().manifest.shards]
    loader = remote.loader(cache=tmp_path, read_deadline=3.0)
    assert list(run(loader, 0)) == list(run(remote.packed.loader(), 0))
    assert cached_tars(tmp_path) == []
    for part in parts:
        part.close()


def test_a_tar_is_waited_for_while_another_process_fetches_it(
    remote: RemoteDataset, proxy: FaultProxy, tmp_path: Path
) -> None:
    proxy.faults = [Fault(match=".tar", rate=200_000)]
    job = subprocess.Popen(job_command(remote, proxy, cache=tmp_path), stdout=subprocess.PIPE, text=True)
    loader = remote.loader(proxy, cache=tmp_path)
    assert list(run(loader, 0)) == list(run(remote.packed.loader(), 0))
    output, _ = job.communicate(timeout=100)
    assert results(output)[0]["digest"] == digest(remote.packed.loader(), 0)
    assert len(tar_requests(proxy)) == 8


def test_eviction_breaks_no_reader(remote: RemoteDataset, tmp_path: Path) -> None:
    loader = remote.loader(cache=tmp_path)
    expected = list(run(loader, 0))
    for epoch_batch, batch in zip(expected, run(loader, 0), strict=True):
        assert batch == epoch_batch
        for path in cached_tars(tmp_path):
            path.unlink()


def test_the_tars_used_longest_ago_go_first(remote: RemoteDataset, tmp_path: Path) -> None:
    list(run(remote.loader(cache=tmp_path), 0))
    folder = CacheFolder(tmp_path)
    for age, path in enumerate(cached_tars(tmp_path)):
        os.utime(path, (1_000_000 + age, 2_000_000))
    gone = eviction.shrink(folder, remote.tar_bytes() // 2)
    assert [entry.last_used for entry in gone] == [1_000_000 + age for age in range(len(gone))]
    assert folder.nbytes() <= remote.tar_bytes() // 2


def test_a_full_disk(remote: RemoteDataset, tmp_path: Path) -> None:
    expected = [digest(remote.packed.loader(), epoch) for epoch in range(2)]
    cache = tmp_path / "small"
    # A third of the tars fit.
    command = shlex.join(job_command(remote, epochs=2, cache=cache))
    first, second = run_on_tmpfs(cache, f"{remote.tar_bytes() // 3 // 1024}k", command)
    assert [first["digest"], second["digest"]] == expected
    warnings = [line for line in second["log"] if "reading from the store instead" in line]
    assert len(warnings) == 1 and "full" in warnings[0]
    assert second["storage"]["cache_hits"] > 0


def test_a_full_disk_gives_up_what_is_old(remote: RemoteDataset, tmp_path: Path) -> None:
    cache, old = tmp_path / "small", tmp_path / "old"
    old.mkdir()
    (old / f"xxh3_128-{0:032x}.tar").write_bytes(bytes(remote.tar_bytes() // 2))
    fill = shlex.join(["cp", *map(str, old.iterdir()), str(cache)])
    job = shlex.join(job_command(remote, cache=cache))
    (result,) = run_on_tmpfs(cache, f"{remote.tar_bytes() * 5 // 4 // 1024}k", f"{fill}; {job}; ls {cache} >&2")
    assert result["storage"]["evictions"] == 1
    assert not [line for line in result["log"] if "instead" in line]


def test_a_cache_that_can_not_be_written(remote: RemoteDataset, tmp_path: Path) -> None:
    list(run(remote.loader(cache=tmp_path / "full"), 0))
    kept = cached_tars(tmp_path / "full")[:4]
    cache = tmp_path / "readonly"
    fill = shlex.join(["cp", *map(str, kept), str(cache)])
    job = shlex.join(job_command(remote, cache=cache))
    (result,) = run_on_tmpfs(cache, "50m", f"{fill}; mount -o remount,ro {cache}; {job}")
    assert result["digest"] == digest(remote.packed.loader(), 0)
    assert result["storage"]["cache_hits"] == result["storage"]["cache_misses"] == 24
    warnings = [line for line in result["log"] if "reading from the store instead" in line]
    assert len(warnings) == 1 and "can't be written" in warnings[0]


def test_a_cache_that_can_not_be_made(remote: RemoteDataset, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    loader = remote.loader(cache=tmp_path / "file" / "cache")
    assert list(run(loader, 0)) == list(run(remote.packed.loader(), 0))


def test_the_cache_is_known_by_digests(remote: RemoteDataset, tmp_path: Path) -> None:
    other = remote.server.upload(remote.packed.address, "copy")
    list(run(remote.loader(cache=tmp_path), 0))
    moved = type(remote)(remote.packed, other, remote.server)
    loader = moved.loader(cache=tmp_path)
    list(run(loader, 0))
    assert loader.metrics()["storage"]["requests"] == 0
    shutil.rmtree(tmp_path)
