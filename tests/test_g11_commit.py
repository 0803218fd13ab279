"""G11: shards appear whole or not at all; a job killed at any moment is continued to the same bytes, or refuses."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from corpora import files_of, jsonl_corpus, write_audio
from held_corpus import held_corpus
from uttershard.pipeline.dataset.shardset import ShardSet
from uttershard.pipeline.errors import ConfigError
from uttershard.writers import pack
from uttershard.writers.job import JobFolder, lock

SHARDS = 12
SETTINGS: dict[str, Any] = {"codec": "opus", "shards": SHARDS, "workers": 2, "allow_pipes": True}
LIMIT_SECONDS = 240


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty-four utterances of two seconds or so each."""
    return held_corpus(tmp_path_factory.mktemp("corpus"), 24, seconds=1.5)


@pytest.fixture(scope="module")
def dataset(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset of a run that nobody disturbed."""
    target = tmp_path_factory.mktemp("undisturbed") / "out"
    pack(corpus, target, **SETTINGS)
    return target


@pytest.fixture(scope="module")
def undisturbed(dataset: Path) -> dict[str, bytes]:
    """Its files."""
    return files_of(dataset)


class Packing:
    """`pack` in a process of its own; where asked, it never gets further than eleven shards, or ten."""

    def __init__(
        self,
        corpus: Path,
        target: Path,
        preexec: Callable[[], None] | None = None,
        *,
        hold: bool = False,
        **settings: Any,
    ) -> None:
        arguments = json.dumps({**SETTINGS, **settings})
        code = (
            "import json, sys\nfrom uttershard.writers import pack\n"
            "pack(sys.argv[1], sys.argv[2], **json.loads(sys.argv[3]))"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(corpus), str(target), arguments],
            stderr=subprocess.PIPE,
            preexec_fn=preexec,
            env={**os.environ, "HOLD": str(target) if hold else ""},
        )

    def wait_until(self, condition: Callable[[], bool]) -> bool:
        """Wait until something is so; False if the process ended before."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not condition():
            if self.process.poll() is not None:
                return False
            assert time.monotonic() < deadline, "the moment never came"
            time.sleep(0.001)
        return True

    def workers(self) -> list[psutil.Process]:
        """Return the processes that it has started."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """Kill it, -9, and wait until its workers have noticed."""
        workers = self.workers()
        self.process.send_signal(signal.SIGKILL)
        last_words = self.finish()
        # It may have come to its end just before, where it is not held.
        assert self.process.returncode in (-signal.SIGKILL, 0), last_words
        _, alive = psutil.wait_procs(workers, timeout=LIMIT_SECONDS)
        assert not alive, "workers outlive the process that started them"

    def finish(self) -> str:
        """Wait for its end and return its last words."""
        _, stderr = self.process.communicate(timeout=LIMIT_SECONDS)
        return stderr.decode()


def done(target: Path) -> int:
    return len(list((target / ".uttershard" / "done").glob("*.json")))


def writing(target: Path) -> bool:
    return any((target / ".uttershard" / "tmp").glob("shard-*.tar.*"))


def assert_nothing_half_written(target: Path, undisturbed: dict[str, bytes]) -> None:
    """Whatever is visible has its final bytes; without all of it there is no manifest."""
    visible = {name: data for name, data in files_of(target).items() if not name.startswith(".uttershard")}
    assert {name: data == undisturbed.get(name) for name, data in visible.items()} == dict.fromkeys(visible, True)
    assert "dataset.json" not in visible or set(visible) == set(undisturbed)
    for name in visible:
        if name.endswith(".parquet"):
            assert name.replace(".parquet", ".tar") in visible


def test_killed_at_every_stage(corpus: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    target = tmp_path / "out"
    job = target / ".uttershard"
    stages: list[Callable[[], bool]] = [
        lambda: (job / "lock").exists(),
        lambda: (job / "plan.parquet").exists(),
        lambda: (job / "job.json").exists(),
        lambda: writing(target),
        lambda: done(target) >= 1,
        lambda: done(target) >= 4 and writing(target),
        lambda: done(target) >= 8,
    ]
    for stage in stages:
        packing = Packing(corpus, target, hold=True)
        assert packing.wait_until(stage)
        packing.kill()
        assert_nothing_half_written(target, undisturbed)
    kept = done(target)
    summary = pack(corpus, target, **SETTINGS)
    assert not summary.already_complete
    assert kept >= 8
    assert files_of(target) == undisturbed


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_moments(corpus: Path, undisturbed: dict[str, bytes], tmp_path: Path, seed: int) -> None:
    target = tmp_path / "out"
    for number in range(3):
        # Spread over the time that a whole run takes, start-up included: about two seconds.
        moment = time.monotonic() + 0.6 + (seed * 3 + number) * 0.17
        packing = Packing(corpus, target)
        if packing.wait_until(lambda moment=moment: time.monotonic() > moment):  # type: ignore[misc]
            packing.kill()
        else:
            assert packing.finish() == ""
        if target.exists():
            assert_nothing_half_written(target, undisturbed)
    pack(corpus, target, **SETTINGS)
    assert files_of(target) == undisturbed


def test_audio_of_the_same_size_replaced_between_two_runs(tmp_path: Path) -> None:
    target = tmp_path / "out"
    corpus = held_corpus(tmp_path, SHARDS, seconds=1.5, ending="wav")
    packing = Packing(corpus, target, hold=True)
    assert packing.wait_until(lambda: done(target) >= 1)
    packing.kill()
    replaced = tmp_path / "audio" / "utt003.wav"
    size = replaced.stat().st_size
    write_audio(replaced, 1.5 * (1 + 3 / SHARDS), seed=99)
    assert replaced.stat().st_size == size
    with pytest.raises(ConfigError, match="audio files were changed or replaced since it began"):
        pack(corpus, target, **SETTINGS)
    pack(corpus, target, **SETTINGS, overwrite=True)
    pack(corpus, tmp_path / "fresh", **SETTINGS)
    assert files_of(target) == files_of(tmp_path / "fresh")


def test_killed_workers_are_replaced(corpus: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    target = tmp_path / "out"
    packing = Packing(corpus, target, hold=True)
    killed = 0
    for count in (0, 2, 4, 6):
        assert packing.wait_until(lambda count=count: done(target) >= count and writing(target))  # type: ignore[misc]
        # Dask's workers, not multiprocessing's resource tracker.
        workers = [process for process in packing.workers() if "spawn_main" in " ".join(process.cmdline())]
        if workers:
            workers[count % len(workers)].kill()
            killed += 1
    target.with_name(f"{target.name}.open").touch()
    stderr = packing.finish()
    assert packing.process.returncode == 0, stderr
    assert killed >= 2
    assert files_of(target) == undisturbed


@pytest.fixture(scope="module")
def killed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job that was killed when four of its shards were done."""
    target = tmp_path_factory.mktemp("killed") / "out"
    packing = Packing(corpus, target, hold=True)
    assert packing.wait_until(lambda: done(target) >= 4)
    packing.kill()
    return target


@pytest.fixture
def unfinished(killed: Path, tmp_path: Path) -> Path:
    """A copy of that job, to go on with."""
    return Path(shutil.copytree(killed, tmp_path / "out"))


def test_finished_shards_are_kept_and_damaged_ones_made_again(
    corpus: Path, undisturbed: dict[str, bytes], unfinished: Path
) -> None:
    finished = sorted(path.stem for path in (unfinished / ".uttershard" / "done").glob("*.json"))[:4]
    kept, flipped, cut, gone = (unfinished / f"shard-{number}.tar" for number in finished)
    data = bytearray(flipped.read_bytes())
    data[5000] ^= 1
    flipped.write_bytes(data)
    cut.with_suffix(".parquet").write_bytes(b"")
    gone.unlink()
    before = kept.stat().st_ino
    pack(corpus, unfinished, **SETTINGS)
    assert kept.stat().st_ino == before
    assert files_of(unfinished) == undisturbed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"codec": "flac"}, r'codec: "opus" -> "flac"'),
        ({"sample_rate": 8000, "seed": 3}, r"seed: 0 -> 3; sample_rate: null -> 8000"),
        ({"shards": None}, r"shards: 12 -> null; shard_bytes: null -> 512000000; multiple: null -> 8"),
    ],
)
def test_changed_options_are_refused_by_name(
    corpus: Path, unfinished: Path, change: dict[str, Any], message: str
) -> None:
    before = files_of(unfinished)
    with pytest.raises(ConfigError, match=f"an unfinished job made otherwise. Changed since: {message}"):
        pack(corpus, unfinished, **{**SETTINGS, **change})
    after = files_of(unfinished)
    assert {name for name in after if after[name] != before.get(name)} <= {".uttershard/lock"}


def test_changed_inputs_are_refused_by_name(tmp_path: Path) -> None:
    corpus = jsonl_corpus(tmp_path / "corpus", 8)
    target, settings = tmp_path / "out", {"shards": 2, "workers": 1}
    pack(corpus, target, **settings)
    original = corpus.read_text()
    lines = original.splitlines(keepends=True)

    def refused(manifest: str) -> str:
        corpus.write_text(manifest)
        with pytest.raises(ConfigError, match="holds a dataset made otherwise") as caught:
            pack(corpus, target, **settings)
        return str(caught.value)

    assert "texts: xxh3_128:" in refused(original.replace("text of 3", "text of three"))
    assert "metadata: xxh3_128:" in refused(original.replace('"text":', '"speaker": "tom", "text":'))
    assert "utterances: 8 -> 7; ids: xxh3_128:" in refused("".join(lines[:-1]))
    write_audio(tmp_path / "corpus" / "audio" / "utt002.flac", 0.5)
    assert "Changed since: audio: xxh3_128:" in refused(original)


def test_the_same_job_twice_is_refused_with_host_and_pid(corpus: Path, tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "out")
    with lock(folder), pytest.raises(ConfigError, match=rf"is being written by host \S+ pid {os.getpid()}: wait"):
        pack(corpus, folder.target, **SETTINGS)
    with lock(folder):
        pass


def test_a_killed_overwrite_is_continued(corpus: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    target = tmp_path / "out"
    pack(corpus, target, codec="keep", shards=20, workers=2, allow_pipes=True)
    packing = Packing(corpus, target, hold=True, overwrite=True)
    assert packing.wait_until(lambda: done(target) >= 3)
    packing.kill()
    assert not (target / "dataset.json").exists()
    kept = done(target)
    assert kept >= 3
    pack(corpus, target, overwrite=True, **SETTINGS)
    assert files_of(target) == undisturbed


def _tmpfs(folder: Path, kilobytes: int, *options: str) -> bool:
    options_text = ",".join((f"size={kilobytes}k", *options))
    command = ["mount", "-t", "tmpfs", "-o", options_text, "none", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


class SmallDisk:
    """A place where not all of a dataset fits, until it is made larger.

    A file system of its own where one may be mounted; else, and when asked for, a limit on the size of files.
    """

    def __init__(self, folder: Path, dataset: dict[str, bytes], *, mount: bool) -> None:
        self.folder = folder
        sizes = [len(data) for name, data in dataset.items() if name.endswith(".tar")]
        self._largest = max(sizes)
        self.mounted = mount and _tmpfs(folder, sum(sizes) // 2048)
        self.preexec: Callable[[], None] | None = None if self.mounted else self._limit

    def _limit(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._largest - 1, resource.RLIM_INFINITY))

    def enlarge(self) -> None:
        self.preexec = None
        if self.mounted:
            assert _tmpfs(self.folder, 100_000, "remount")

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


@pytest.fixture(params=["file system", "file size"])
def small_disk(request: pytest.FixtureRequest, undisturbed: dict[str, bytes], tmp_path: Path) -> Iterator[SmallDisk]:
    """See SmallDisk."""
    folder = tmp_path / "disk"
    folder.mkdir()
    disk = SmallDisk(folder, undisturbed, mount=request.param == "file system")
    yield disk
    disk.close()


def test_a_full_disk(corpus: Path, undisturbed: dict[str, bytes], small_disk: SmallDisk) -> None:
    target = small_disk.folder / "out"
    packing = Packing(corpus, target, preexec=small_disk.preexec)
    stderr = packing.finish()
    assert packing.process.returncode != 0
    last = stderr.strip().splitlines()[-1]
    assert "no space left on" in last or "no file may get that large" in last
    assert f"of {SHARDS} shards are done and kept. Free space and run the same command again" in last
    assert list((target / ".uttershard" / "tmp").iterdir()) == []
    assert_nothing_half_written(target, undisturbed)
    small_disk.enlarge()
    packing = Packing(corpus, target, preexec=small_disk.preexec)
    assert packing.finish() == ""
    assert files_of(target) == undisturbed


def test_the_fingerprint_is_in_every_sidecar(dataset: Path) -> None:
    opened = ShardSet.open(str(dataset))
    digests = {opened.sidecar(shard)[1].fingerprint for shard in range(SHARDS)}
    assert digests == {opened.manifest.fingerprint["digest"]}
