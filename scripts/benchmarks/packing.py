"""Packing: the same files copied, packed by us, and packed as others do it; and how fast FLAC is encoded at best.

Every subject starts from files in the page cache and ends when its last file is closed. `cp` is measured with and
without a `sync` behind it, since a packed shard is forced to disk before it counts and a copied file is not.
"""

import io
import itertools
import json
import multiprocessing
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import soundfile
from uttershard.writers.encode import encode

from .corpus import MEAN_SECONDS, SHARDS, write_source
from .lengths import SAMPLE_RATE

_SLOW_SHARE = 8
"""Lhotse is measured on one in so many of the files: its rate does not depend on how many there are."""

_FEW_FILES = 16
_ENCODE_SECONDS = 3.0

LIMIT = "bare FLAC encoder"
COPY = "cp -r"
KEEP = "ours, keep"
FLAC = "ours, FLAC"


@dataclass(frozen=True)
class Files:
    """The files that are packed."""

    folder: Path
    paths: tuple[Path, ...]

    @classmethod
    def of(cls, folder: Path) -> "Files":
        """Find them."""
        return cls(folder, tuple(sorted(folder.glob("*.wav"))))

    @property
    def manifest(self) -> Path:
        """Their list, with durations."""
        return self.folder / "manifest.jsonl"

    def some(self, count: int, folder: Path) -> "Files":
        """Return the first of them with a list of their own in another folder."""
        folder.mkdir()
        with self.manifest.open("rb") as lines:
            records = [json.loads(line) for line in itertools.islice(lines, count)]
        for record in records:
            record["audio_filepath"] = str(self.folder / record["audio_filepath"])
        (folder / "manifest.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
        return Files(folder, self.paths[:count])


def make_files(data: Path, speech: Path, hours: float) -> Path:
    """Return the folder of the WAV files and their manifest, written if it is not there yet."""
    folder = data / f"{hours:g}h-wav"
    if not (folder / "manifest.jsonl").is_file():
        write_source(folder, speech, max(SHARDS, round(hours * 3600 / MEAN_SECONDS)))
    return folder


def copy(files: Files, target: Path, *, sync: bool) -> Files:
    """Copy the files, as `cp -r` does."""
    subprocess.run(["cp", "-r", str(files.folder), str(target)], check=True)
    if sync:
        subprocess.run(["sync", "-f", str(target)], check=True)
    return files


def ours(files: Files, target: Path, *, codec: str) -> Files:
    """Pack them, from the listing to `dataset.json`; workers are started and ended."""
    from uttershard.writers import pack

    pack(files.manifest, target, codec=codec, shards=SHARDS)
    return files


def ours_few(files: Files, target: Path) -> Files:
    """Pack a handful: what starting and ending a job takes."""
    few = files.some(_FEW_FILES, target.parent / "few")
    return ours(few, target, codec="keep")


def wenet(files: Files, target: Path) -> Files:
    """Make shards by the rule of WeNet's recipe: a process a shard, a text and a whole file an utterance, no index."""
    target.mkdir()
    shards = [(target / f"shards_{shard:09d}.tar", files.paths[shard::SHARDS]) for shard in range(SHARDS)]
    with ProcessPoolExecutor(cores(), multiprocessing.get_context("fork")) as pool:
        list(pool.map(_write_tar, shards))
    return files


def _write_tar(shard: tuple[Path, Sequence[Path]]) -> None:
    name, paths = shard
    with tarfile.open(name, "w") as tar:
        for path in paths:
            for member, data in ((f"{path.stem}.txt", b"the words"), (path.name, path.read_bytes())):
                info = tarfile.TarInfo(member)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def lhotse(files: Files, target: Path) -> Files:
    """Export a part of them to Lhotse Shar, in one process, as its documentation does."""
    from lhotse import CutSet, Recording
    from lhotse.shar import SharWriter

    part = files.paths[: max(1, len(files.paths) // _SLOW_SHARE)]
    cuts = CutSet.from_cuts(Recording.from_file(path, recording_id=path.stem).to_cut() for path in part)
    target.mkdir()
    with SharWriter(str(target), fields={"recording": "flac"}, shard_size=len(part) // SHARDS + 1) as writer:
        for cut in cuts:
            writer.write(cut)
    return Files(files.folder, part)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


_SUBJECTS: dict[str, Callable[[Files, Path], Files]] = {
    COPY: partial(copy, sync=False),
    "cp -r, then sync": partial(copy, sync=True),
    KEEP: partial(ours, codec="keep"),
    "WeNet's way": wenet,
    FLAC: partial(ours, codec="flac"),
    "Lhotse Shar, FLAC": lhotse,
    f"{KEEP}, {_FEW_FILES} files": ours_few,
}


def packing_subjects() -> tuple[str, ...]:
    """Return the names of all that is measured; without Lhotse if it is not installed."""
    return (LIMIT, *(name for name in _SUBJECTS if find_spec("lhotse") or not name.startswith("Lhotse")))


def measure_packing(subject: str, folder: str, scratch: str) -> dict[str, Any]:
    """Measure one subject in this process; results are JSON values."""
    files = Files.of(Path(folder).absolute())
    if subject == LIMIT:
        speed = _encode_alone(files)
        return {"seconds": None, "megabytes_per_second": None, "audio_seconds_per_second": speed,
                "utterances_per_second": speed / MEAN_SECONDS}  # fmt: skip
    place = Path(scratch).absolute()
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    os.sync()
    try:
        began = time.perf_counter()
        packed = _SUBJECTS[subject](files, place / "out")
        seconds = time.perf_counter() - began
    finally:
        shutil.rmtree(place)
    nbytes = sum(path.stat().st_size for path in packed.paths)
    return {
        "seconds": seconds,
        "megabytes_per_second": nbytes / seconds / 1e6,
        "audio_seconds_per_second": nbytes / (2 * SAMPLE_RATE) / seconds,
        "utterances_per_second": len(packed.paths) / seconds,
    }


def _encode_alone(files: Files) -> float:
    """Return how many seconds of audio a process a core encodes in a second, each its own share of the files."""
    with ProcessPoolExecutor(cores(), multiprocessing.get_context("fork")) as pool:
        return sum(pool.map(_encode_share, (files.paths[share :: cores()] for share in range(cores()))))


def _encode_share(paths: Sequence[Path]) -> float:
    began, audio_seconds = time.perf_counter(), 0.0
    for path in itertools.cycle(paths):
        samples, rate = soundfile.read(path, dtype="int16")
        encode(samples, rate, "flac", subtype="PCM_16")
        audio_seconds += len(samples) / rate
        elapsed = time.perf_counter() - began
        if elapsed >= _ENCODE_SECONDS:
            break
    return audio_seconds / elapsed
