"""What packing is measured with: the same files copied, packed by us, and packed as others do it.

    python -m uttershard.scripts.benchmarks.packing RECORDINGS SCRATCH [--copies N] [--rounds N] [--workers N]

RECORDINGS is a folder of audio files, which are packed as WAV; SCRATCH a folder on the disk to be measured. Each round
runs all subjects once, in another order each time; rates are medians over the rounds. `cp` is given with and without
`sync`, since a packed shard is forced to disk before it counts and a copied file is not.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import soundfile
from uttershard.pipeline.errors import ConfigError
from uttershard.writers import pack
from uttershard.writers.encode import encode

_SHARDS = 8
_RATIO_BASE = "cp -r"


@dataclass(frozen=True)
class Corpus:
    """The files that are packed."""

    folder: Path
    manifest: Path
    files: tuple[Path, ...]
    nbytes: int
    seconds: float


def make_corpus(recordings: Path, scratch: Path, copies: int) -> Corpus:
    """Copy recordings so many times over, and list them with their durations, as corpora do.

    Raises:
        ConfigError: There are none.
    """
    sources = sorted(path for path in recordings.iterdir() if path.suffix in (".flac", ".wav"))
    if not sources:
        raise ConfigError(f"{recordings}: no .flac or .wav files in it")
    folder = scratch / "corpus"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    records, files, total = [], [], 0.0
    samples = {path: soundfile.read(path, dtype="int16") for path in sources}
    lengths = {path: len(values) / rate for path, (values, rate) in samples.items()}
    for copy, source in itertools.product(range(copies), sources):
        path = folder / f"{source.stem}-{copy:03d}.wav"
        soundfile.write(path, *samples[source], subtype="PCM_16")
        files.append(path)
        total += lengths[source]
        records.append({"audio_filepath": str(path), "duration": lengths[source], "text": f"the words of {path.stem}"})
    manifest = scratch / "corpus.jsonl"
    manifest.write_text("".join(json.dumps(record) + "\n" for record in records))
    return Corpus(folder, manifest, tuple(files), sum(path.stat().st_size for path in files), total)


def copy(corpus: Corpus, target: Path, *, sync: bool) -> None:
    """Copy the files, as `cp -r` does."""
    subprocess.run(["cp", "-r", str(corpus.folder), str(target)], check=True)
    if sync:
        subprocess.run(["sync", "-f", str(target)], check=True)


def ours(corpus: Corpus, target: Path, *, codec: str, workers: int) -> None:
    """Pack them, from the listing to `dataset.json`."""
    pack(corpus.manifest, target, codec=codec, shards=_SHARDS, workers=workers)


def wenet(corpus: Corpus, target: Path, *, workers: int) -> None:
    """Make shards the way WeNet's recipe does: a process a shard, tarfile, whole files, no index, no checks."""
    target.mkdir()
    # Spawned: a fork of a process that has run Dask may inherit a lock that nobody will release.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        shards = [(str(target / f"shards_{shard:09d}.tar"), corpus.files[shard::_SHARDS]) for shard in range(_SHARDS)]
        list(pool.map(_tar, shards))


def _tar(task: tuple[str, Sequence[Path]]) -> None:
    import io

    name, files = task
    with tarfile.open(name, "w") as tar:
        for path in files:
            for member, data in ((f"{path.stem}.txt", b"the words"), (path.name, path.read_bytes())):
                info = tarfile.TarInfo(member)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def lhotse(corpus: Corpus, target: Path, *, codec: str) -> None:
    """Export to Lhotse Shar, in one process, as its documentation does."""
    from lhotse import CutSet, Recording
    from lhotse.shar import SharWriter

    cuts = CutSet.from_cuts(Recording.from_file(path, recording_id=path.stem).to_cut() for path in corpus.files)
    target.mkdir()
    with SharWriter(str(target), fields={"recording": codec}, shard_size=len(corpus.files) // _SHARDS + 1) as writer:
        for cut in cuts:
            writer.write(cut)


def encode_alone(corpus: Corpus, seconds: float = 3.0) -> float:
    """Return how many seconds of audio one process encodes as FLAC in a second, decoding them first."""
    began = time.perf_counter()
    done = 0.0
    for path in itertools.cycle(corpus.files):
        samples, rate = soundfile.read(path, dtype="int16")
        encode(samples, rate, "flac", subtype="PCM_16")
        done += float(len(samples)) / rate
        if time.perf_counter() - began > seconds:
            break
    return done / (time.perf_counter() - began)


def measure(corpus: Corpus, scratch: Path, rounds: int, workers: int) -> dict[str, float]:
    """Return the seconds that each subject takes, medians over the rounds."""
    subjects: dict[str, Callable[[Path], None]] = {
        _RATIO_BASE: lambda target: copy(corpus, target, sync=False),
        "cp -r, sync": lambda target: copy(corpus, target, sync=True),
        f"ours, keep, {workers} workers": lambda target: ours(corpus, target, codec="keep", workers=workers),
        f"ours, flac, {workers} workers": lambda target: ours(corpus, target, codec="flac", workers=workers),
        f"WeNet's way, {workers} processes": lambda target: wenet(corpus, target, workers=workers),
    }
    if _has_lhotse():
        subjects["Lhotse Shar, flac, 1 process"] = lambda target: lhotse(corpus, target, codec="flac")
    taken: dict[str, list[float]] = {name: [] for name in subjects}
    for turn in range(rounds):
        names = list(subjects)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            target = scratch / "out"
            shutil.rmtree(target, ignore_errors=True)
            os.sync()
            began = time.perf_counter()
            subjects[name](target)
            taken[name].append(time.perf_counter() - began)
            print(f"{name}: {taken[name][-1]:.2f} s", file=sys.stderr, flush=True)
    shutil.rmtree(scratch / "out", ignore_errors=True)
    return {name: statistics.median(values) for name, values in taken.items()}


def _has_lhotse() -> bool:
    from importlib.util import find_spec

    return find_spec("lhotse") is not None


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--copies", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    chosen = parser.parse_args()
    corpus = make_corpus(chosen.recordings, chosen.scratch, chosen.copies)
    taken = measure(corpus, chosen.scratch, chosen.rounds, chosen.workers)
    base = taken[_RATIO_BASE]
    report = {
        name: {
            "seconds": round(seconds, 2),
            "mb_per_second": round(corpus.nbytes / seconds / 1e6, 1),
            "audio_seconds_per_second": round(corpus.seconds / seconds),
            "of_cp": round(base / seconds, 3),
        }
        for name, seconds in taken.items()
    }
    head = {"files": len(corpus.files), "mb": round(corpus.nbytes / 1e6), "hours": round(corpus.seconds / 3600, 2)}
    print(json.dumps({**head, "encode_flac_1_process": round(encode_alone(corpus)), "subjects": report}, indent=1))


if __name__ == "__main__":
    main()
