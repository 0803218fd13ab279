"""How much memory the client of a pack job takes for a corpus of so many tiny utterances, before the first shard.

    python tests/listing_memory.py UTTERANCES [FILES] [FOLDER]

Prints JSON: seconds of each step, and the peak of resident memory above what it was with one utterance, for each.
"""

import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import soundfile
from corpora import noise
from uttershard.writers.assign import assign
from uttershard.writers.fingerprint import fingerprint
from uttershard.writers.ids import refuse_bad_ids
from uttershard.writers.inventory import take_inventory
from uttershard.writers.plan import write_plan
from uttershard.writers.probe import probe_corpus
from uttershard.writers.probed import ProbedFiles
from uttershard.writers.progress import Silent
from uttershard.writers.settings import PackSettings
from uttershard.writers.sources import open_source
from uttershard.writers.targets.limits import WriteLimits
from uttershard.writers.targets.opening import open_target

SHARDS = 512
_LINKS = 30_000
"""File systems allow a file some ten thousand names."""


def write_corpus(folder: Path, utterances: int, files: int) -> Path:
    """Write a manifest of utterances of 60 ms, all in the same few files or a file each."""
    seconds = 0.06
    for number in range(files):
        original = folder / f"original{number // _LINKS}.wav"
        if number % _LINKS == 0:
            soundfile.write(original, noise(seconds, seed=number), 16_000)
        os.link(original, folder / f"{number:07d}.wav")
    manifest = folder / "corpus.jsonl"
    with manifest.open("w") as lines:
        for number in range(utterances):
            record = {
                "id": f"speaker{number % 977:04d}-chapter{number % 31:03d}-{number:08d}",
                "audio_filepath": str(folder / f"{number % files:07d}.wav"),
                "duration": seconds,
                "text": f"the words of utterance number {number} and some more",
                "speaker": f"s{number % 977}",
            }
            lines.write(json.dumps(record) + "\n")
    return manifest


def measure(manifest: Path, folder: Path) -> dict[str, Any]:
    """List, assign and plan; what `pack` does before its first shard."""
    settings, seconds = PackSettings(columns=("speaker",)), {}

    def timed(name: str, function: Any, *arguments: Any) -> Any:
        began = time.monotonic()
        result = function(*arguments)
        seconds[name] = round(time.monotonic() - began, 2)
        return result

    listing = timed("list", lambda: open_source(str(manifest), None, {}, allow_pipes=False).list_utterances())
    listing = timed("ids", refuse_bad_ids, listing)
    listing = timed("inventory", take_inventory, listing)
    timed("fingerprint", fingerprint, listing, settings)

    def run(function: Any, tasks: Any) -> Any:
        return ((number, function(task)) for number, task in enumerate(tasks))

    target = open_target(str(folder), None, WriteLimits())
    (folder / ".uttershard" / "tmp").mkdir(parents=True, exist_ok=True)
    probed = timed("probe", probe_corpus, listing, settings, run, ProbedFiles(target), Silent())
    dealt = timed(
        "assign", lambda: assign(probed.utterances["key"], probed.utterances["seconds"].to_numpy(), SHARDS, 0)
    )
    timed("plan", write_plan, target, probed.utterances, dealt)
    return {"utterances": sum(map(len, dealt)), "seconds": seconds}


def main() -> None:
    """Measure a corpus in a process of its own, so that its peak is that of the corpus."""
    utterances = int(sys.argv[1])
    files = int(sys.argv[2]) if len(sys.argv) > 2 else 16
    with tempfile.TemporaryDirectory(dir=sys.argv[3] if len(sys.argv) > 3 else None) as name:
        folder = Path(name)
        (folder / "one").mkdir()
        measure(write_corpus(folder / "one", 1 + SHARDS, 1), folder)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        (folder / "all").mkdir()
        result = measure(write_corpus(folder / "all", utterances, files), folder)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result |= {"peak_mb": round(peak / 1000), "bytes_an_utterance": round((peak - before) * 1024 / utterances)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
