"""What was probed survives the process that had it done; what may be another file by now is probed again."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import files_of, jsonl_corpus, write_audio, write_jsonl
from s3_cases import stored
from s3_server import BUCKET, S3Server
from uttershard.pipeline.dataset.digest import PREFIX, digest_bytes
from uttershard.pipeline.errors import DataError, StorageError
from uttershard.writers import pack, probed
from uttershard.writers import probe as probe_module
from uttershard.writers.cluster import ClusterSettings
from uttershard.writers.commit import NoSpaceError
from uttershard.writers.ids import refuse_bad_ids
from uttershard.writers.inventory import take_inventory
from uttershard.writers.listing import Listing, ListingBuilder
from uttershard.writers.probe import Probed, probe_corpus
from uttershard.writers.probed import ProbedFiles
from uttershard.writers.progress import Done, Silent
from uttershard.writers.settings import PackSettings
from uttershard.writers.source_store import source_storage
from uttershard.writers.sources import open_source
from uttershard.writers.targets.base import Target
from uttershard.writers.targets.limits import WriteLimits
from uttershard.writers.targets.local import LocalTarget
from uttershard.writers.targets.opening import open_target

HERE = ClusterSettings(n_workers=2, options={"processes": False})
LIMIT_SECONDS = 240
FILES = 12


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four files a task, each kept as soon as it is done."""
    monkeypatch.setattr(probe_module, "CHUNK_FILES", 4)
    monkeypatch.setattr(probed, "SAVE_SECONDS", 0.0)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return jsonl_corpus(tmp_path / "corpus", FILES)


@pytest.fixture
def target(tmp_path: Path) -> Target:
    target = LocalTarget(tmp_path / "out")
    (target.path / ".uttershard" / "tmp").mkdir(parents=True)
    return target


@dataclass
class Run(Silent):
    """One probing, here, of a corpus; stopped before the task of that number."""

    corpus: Path
    target: Target
    stop_before: int | None = None
    opened: list[str] = field(default_factory=list)
    advanced: list[tuple[int, bool]] = field(default_factory=list)

    def probe(self, settings: PackSettings | None = None) -> pa.Table:
        """Return ids and seconds."""
        listing = take_inventory(refuse_bad_ids(open_source(str(self.corpus)).list_utterances()))
        found = self.probe_listing(listing, settings or PackSettings())
        return found.utterances.select(["key", "seconds"]).combine_chunks()

    def probe_listing(self, listing: Listing, settings: PackSettings) -> Probed:
        """Probe what was listed."""
        return probe_corpus(listing, settings, self._run, ProbedFiles(self.target), self)

    def advance(self, done: Done) -> None:
        """Note it."""
        if done.utterances:
            self.advanced.append((done.utterances, done.kept))

    def _run(self, function: Any, tasks: Any) -> Iterator[tuple[int, Any]]:
        for number, addresses in enumerate(tasks):
            if number == self.stop_before:
                raise KeyboardInterrupt
            self.opened += [Path(address).name for address in addresses]
            yield number, function(addresses)


def stopped(corpus: Path, target: Target) -> Run:
    """Return a run that was stopped when four files were known."""
    run = Run(corpus, target, stop_before=1)
    with pytest.raises(KeyboardInterrupt, match=rf"stopped: the lengths of 4 of {FILES} audio files are known"):
        run.probe()
    assert run.opened == names(range(4))
    return run


def names(numbers: Any) -> list[str]:
    return [f"utt{number:03d}.flac" for number in numbers]


def records(target: Target) -> list[Path]:
    return sorted(Path(target.where(probed.PROBED_FOLDER)).iterdir())


def expected(corpus: Path, tmp_path: Path) -> pa.Table:
    fresh = LocalTarget(tmp_path / "fresh")
    (fresh.path / ".uttershard" / "tmp").mkdir(parents=True)
    return Run(corpus, fresh).probe()


def test_what_is_known_is_not_probed_again(corpus: Path, target: Target, tmp_path: Path) -> None:
    stopped(corpus, target)
    run = Run(corpus, target)
    assert run.probe().equals(expected(corpus, tmp_path))
    assert run.opened == names(range(4, FILES))
    assert run.advanced == [(4, True), (4, False), (4, False)]
    again = Run(corpus, target)
    again.probe()
    assert again.opened == []


def test_a_failure_keeps_what_is_known_too(corpus: Path, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(run: Run, function: Any, tasks: Any) -> Iterator[tuple[int, Any]]:
        addresses = next(iter(tasks))
        yield 0, function(addresses)
        raise StorageError("there has been no worker for 180 s")

    monkeypatch.setattr(probed, "SAVE_SECONDS", 3600.0)
    with monkeypatch.context() as patch, pytest.raises(StorageError, match="no worker"):
        patch.setattr(Run, "_run", lost)
        Run(corpus, target).probe()
    run = Run(corpus, target)
    run.probe()
    assert run.opened == names(range(4, FILES))


def test_many_are_gathered_in_one_record(corpus: Path, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probed, "SAVE_SECONDS", 3600.0)
    Run(corpus, target).probe()
    assert not ProbedFiles(target).exist(), "what takes seconds is not worth a file"
    monkeypatch.setattr(probed, "SAVE_FILES", 8)
    Run(corpus, target).probe()
    assert [pq.read_metadata(record).num_rows for record in records(target)] == [8, 4]


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "of another schema", "of no Parquet", "of another name"])
def test_a_record_that_is_damaged_or_foreign_is_none(corpus: Path, target: Target, tmp_path: Path, damage: str) -> None:
    stopped(corpus, target)
    (record,) = records(target)
    data = record.read_bytes()
    if damage == "flipped":
        spoiled = bytearray(data)
        spoiled[len(data) // 2] ^= 1
        record.write_bytes(spoiled)
    elif damage in ("cut", "empty"):
        record.write_bytes(data[: -20 if damage == "cut" else 0])
    elif damage == "of another name":
        record.rename(record.with_name("notes.parquet"))
    else:
        record.unlink()
        other = record.with_name("other")
        pq.write_table(pa.table({"key": pa.array([1], pa.int64())}), other)
        foreign = b"none" if damage == "of no Parquet" else other.read_bytes()
        other.unlink()
        digest = digest_bytes(foreign).removeprefix(PREFIX)
        record.with_name(f"000000-{digest}.parquet").write_bytes(foreign)
    run = Run(corpus, target)
    assert run.probe().equals(expected(corpus, tmp_path))
    assert run.opened == names(range(FILES))


def test_a_file_that_was_changed_is_probed_again(corpus: Path, target: Target, tmp_path: Path) -> None:
    stopped(corpus, target)
    touched, longer = (corpus.parent / "audio" / name for name in names((1, 2)))
    found = touched.stat()
    os.utime(touched, ns=(found.st_atime_ns, found.st_mtime_ns - 1))
    kept = longer.stat()
    write_audio(longer, 3.0)
    os.utime(longer, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    run = Run(corpus, target)
    table = run.probe()
    assert run.opened == names([1, 2, *range(4, FILES)])
    assert table["seconds"][2].as_py() == 3.0
    assert table.equals(expected(corpus, tmp_path))


def test_a_changed_corpus_takes_over_the_files_that_stayed(corpus: Path, target: Target, tmp_path: Path) -> None:
    stopped(corpus, target)
    lines = corpus.read_text().splitlines(keepends=True)
    write_audio(corpus.parent / "audio" / "added.flac", 0.7)
    corpus.write_text("".join([*lines[2:], lines[2].replace("utt002", "added")]))
    run = Run(corpus, target)
    assert run.probe().equals(expected(corpus, tmp_path))
    assert run.opened == ["added.flac", *names(range(4, FILES))]


def test_a_corpus_that_states_its_durations_now(corpus: Path, target: Target) -> None:
    stopped(corpus, target)
    lines = (json.loads(line) for line in corpus.read_text().splitlines())
    write_jsonl(corpus, [{**line, "duration": 0.2} for line in lines])
    run = Run(corpus, target)
    assert run.probe()["seconds"].to_pylist() == [0.2] * FILES
    assert run.opened == []


def test_other_options_of_the_store_are_another_corpus(corpus: Path, target: Target) -> None:
    stopped(corpus, target)
    run = Run(corpus, target)
    with source_storage({"endpoint_url": "http://elsewhere"}):
        run.probe()
    assert run.opened == names(range(FILES))


def test_what_could_not_be_probed_is_looked_at_again(corpus: Path, target: Target, tmp_path: Path) -> None:
    bad = corpus.parent / "audio" / "utt001.flac"
    good, times = bad.read_bytes(), bad.stat()
    bad.write_bytes(bytes(len(good)))
    os.utime(bad, ns=(times.st_atime_ns, times.st_mtime_ns))
    run = Run(corpus, target)
    assert run.probe().num_rows == FILES - 1
    bad.write_bytes(good)
    os.utime(bad, ns=(times.st_atime_ns, times.st_mtime_ns))
    run = Run(corpus, target)
    assert run.probe().equals(expected(corpus, tmp_path))
    assert run.opened == ["utt001.flac"]


def test_a_segment_outside_its_recording_has_it_looked_at_again(target: Target, tmp_path: Path) -> None:
    """In a store, nothing tells that the recording was replaced by a longer one."""
    store = fsspec.filesystem("memory")
    address = f"/{tmp_path.name}/{{}}.wav"
    records = []
    for name in "ab":
        store.pipe_file(address.format(name), write_audio(tmp_path / f"{name}.wav", 2.0).read_bytes())
        record = {"audio_filepath": f"memory:/{address.format(name)}", "text": name, "duration": 1.0}
        records += [{**record, "id": f"{name}{offset}", "offset": offset} for offset in (0, 2 if name == "b" else 1)]
    corpus = write_jsonl(tmp_path / "corpus.jsonl", records)
    run = Run(corpus, target)
    assert run.probe()["key"].to_pylist() == ["a0", "a1", "b0"]
    assert run.opened == ["a.wav", "b.wav"]
    store.pipe_file(address.format("b"), write_audio(tmp_path / "b.wav", 3.0).read_bytes())
    for _ in range(2):
        run = Run(corpus, target)
        assert run.probe()["key"].to_pylist() == ["a0", "a1", "b0", "b2"]
    assert run.opened == [], "what was found last counts"


def test_the_channels_of_several_files(target: Target, tmp_path: Path) -> None:
    """Each of them counts, also the one that is not the newest."""
    older, newer = (write_audio(tmp_path / f"{name}.wav", 1.0) for name in ("older", "newer"))
    os.utime(older, ns=(1, 1_000_000_000))

    def opened() -> int:
        builder = ListingBuilder()
        builder.add("a", f'join:["{older}","{newer}"]', origin="here")
        listing = take_inventory(builder.finish(str(tmp_path), "here"))
        run = Run(tmp_path, target)
        run.probe_listing(listing, PackSettings())
        return len(run.opened)

    assert [opened(), opened()] == [1, 0]
    os.utime(older, ns=(1, 1_000_000_001))
    assert [opened(), opened()] == [1, 0]


def test_a_full_disk_says_what_is_kept(corpus: Path, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise NoSpaceError("no space left")

    stopped(corpus, target)
    monkeypatch.setattr(LocalTarget, "put", full)
    with pytest.raises(NoSpaceError, match=r"no space left: the lengths of 4 of 12 .* Free space and run the same"):
        Run(corpus, target).probe()


class Stop(Silent):
    """Ctrl-C as soon as some files are probed."""

    def begin(self, phase: str, **_: object) -> None:
        self.phase = phase

    def advance(self, done: Done) -> None:
        if self.phase == "probe" and done.utterances and not done.kept:
            raise KeyboardInterrupt


def test_a_job_stopped_again_and_again(corpus: Path, tmp_path: Path) -> None:
    """Each run takes up where the one before was stopped; a finished dataset has nothing of it left."""
    out, settings = tmp_path / "out", {"cluster": HERE, "shards": 2}
    for kept in (4, 8):
        with pytest.raises(KeyboardInterrupt, match=rf"{kept} of {FILES} audio files are known and kept. Run the same"):
            pack(corpus, out, progress=Stop(), **settings)
    pack(corpus, out, **settings)
    pack(corpus, tmp_path / "undisturbed", **settings)
    assert files_of(out) == files_of(tmp_path / "undisturbed")


def test_a_job_that_ended_over_its_refusals(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, settings = tmp_path / "out", {"cluster": HERE, "shards": 2}
    bad = corpus.parent / "audio" / "utt005.flac"
    good = bad.read_bytes()
    bad.write_bytes(b"no audio at all")
    with pytest.raises(DataError, match=f"1 of {FILES} utterances refused"):
        pack(corpus, out, **settings)
    bad.write_bytes(good)
    opened, find = [], probe_module.probe_channels
    monkeypatch.setattr(probe_module, "probe_channels", lambda uri: (opened.append(Path(uri).name), find(uri))[1])
    pack(corpus, out, **settings)
    assert opened == ["utt005.flac"]
    pack(corpus, tmp_path / "undisturbed", **settings)
    assert files_of(out) == files_of(tmp_path / "undisturbed")


GATE = """
[ -e out/.uttershard/job.json ] || echo $1 >> probed.log
case $1 in utt11) until [ -e open ]; do sleep 0.05; done;; esac
cat $1.wav
"""

CLIENT = """
from uttershard.writers import pack, probe, probed
probe.CHUNK_FILES, probed.SAVE_SECONDS = 4, 0.0
pack("corpus", "out", workers=2, shards=2, allow_pipes=True)
"""


def test_killed_while_it_probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kill -9 of the client, with the last of three tasks still running."""
    monkeypatch.chdir(tmp_path)
    ids = [f"utt{number:02d}" for number in range(FILES)]
    for number, name in enumerate(ids):
        write_audio(tmp_path / f"{name}.wav", 0.2 + number / 10, seed=number)
    Path("gate.sh").write_text(GATE)
    Path("corpus").mkdir()
    Path("corpus/wav.scp").write_text("".join(f"{name} cd {tmp_path} && sh gate.sh {name} |\n" for name in ids))
    Path("corpus/text").write_text("".join(f"{name} text of {name}\n" for name in ids))
    client = subprocess.Popen([sys.executable, "-c", CLIENT], stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + LIMIT_SECONDS
        while sum(pq.read_metadata(path).num_rows for path in Path("out").glob(".uttershard/probed/*")) < 8:
            assert client.poll() is None, client.communicate()[1].decode()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        family = psutil.Process(client.pid).children(recursive=True)
        client.send_signal(signal.SIGKILL)
        client.communicate(timeout=LIMIT_SECONDS)
    finally:
        Path("open").touch()
        client.kill()
        client.wait()
    _, alive = psutil.wait_procs(family, timeout=LIMIT_SECONDS)
    assert not alive
    Path("probed.log").unlink()
    settings: dict[str, Any] = {"cluster": HERE, "shards": 2, "allow_pipes": True}
    pack("corpus", "out", **settings)
    assert sorted(Path("probed.log").read_text().split()) == ids[8:]
    pack("corpus", "undisturbed", **settings)
    assert files_of(Path("out")) == files_of(Path("undisturbed"))


def test_in_a_store(s3: S3Server, corpus: Path, tmp_path: Path) -> None:
    address = f"s3://{BUCKET}/probed/out"
    settings = {"cluster": HERE, "shards": 2, "storage_options": s3.options()}
    with pytest.raises(KeyboardInterrupt, match=rf"4 of {FILES} audio files are known and kept"):
        pack(corpus, address, progress=Stop(), **settings)
    store = open_target(address, s3.options(), WriteLimits())
    (name,) = [name for name in store.names() if name.startswith(probed.PROBED_FOLDER)]
    store.put(name.replace("000000", "000007"), b"damaged")
    with pytest.raises(KeyboardInterrupt, match=rf"8 of {FILES} audio files are known and kept"):
        pack(corpus, address, progress=Stop(), **settings)
    pack(corpus, address, **settings)
    pack(corpus, tmp_path / "undisturbed", cluster=HERE, shards=2)
    assert stored(s3, address) == files_of(tmp_path / "undisturbed")
