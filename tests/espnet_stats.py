"""Has ESPnet2's own code read what `uttershard stats` writes for it; run by hand, needs the network.

    python tests/espnet_stats.py

`GlobalMVN` and its aggregation of statistics read feats_stats.npz, its samplers feats_shape. It prints how far the
numbers are from ours; with ESPnet 202511 mean and deviation are equal to 4e-15, normalised features to the bit, and
each utterance is in one batch, under its id as `feats_shape` has it, also one of blanks and one without a frame.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from corpora import RATE, noise, write_jsonl
from espnet_record import VERSION, load_samplers
from uttershard.pipeline import Fbank, GlobalCmvn
from uttershard.writers import collect_stats, pack

IDS = ["plain", "two words", "100 %", "全角\u3000空白", "short", "ümläut", *(f"utt{number}" for number in range(14))]


def make_statistics(folder: Path) -> Path:
    """Pack noise under odd ids and measure it; the path of the json."""
    records = []
    for number, key in enumerate(IDS):
        seconds = 0.01 if key == "short" else 0.5 + 0.1 * number
        soundfile.write(folder / f"{number}.flac", noise(seconds, seed=number), RATE)
        records.append({"id": key, "audio_filepath": f"{number}.flac"})
    pack(write_jsonl(folder / "corpus.jsonl", records), folder / "data", shards=2, workers=1)
    return Path(collect_stats(folder / "data", workers=1).path)


def load_layers(source: Path) -> Any:
    """Import ESPnet2's GlobalMVN and its aggregation."""
    for name in (
        "espnet2.layers",
        "espnet2.bin",
        "espnet",
        "espnet.nets",
        "espnet.nets.pytorch_backend",
        "espnet.utils",
    ):
        package = types.ModuleType(name)
        package.__path__ = [str(source / name.replace(".", "/"))]
        sys.modules[name] = package
    return tuple(
        importlib.import_module(f"espnet2.{name}") for name in ("layers.global_mvn", "bin.aggregate_stats_dirs")
    )


def compare_sums(npz: Path, measured: dict[str, Any], folder: Path, source: Path) -> None:
    """Print how far ESPnet's mean, deviation and normalised features are from ours."""
    layers, aggregation = load_layers(source)
    theirs, ours = layers.GlobalMVN(str(npz)), GlobalCmvn(npz, transform=Fbank())
    deviation = np.sqrt(measured["variance"])
    print("mean:", np.abs(theirs.mean.numpy() / measured["mean"] - 1).max())
    print("deviation:", np.abs(theirs.std.numpy() / deviation - 1).max())
    features, lengths = torch.randn(3, 50, 80) * 4 - 10, torch.tensor([50, 30, 7])
    print("normalised:", float((theirs(features.clone(), lengths)[0] - ours(features, lengths)[0]).abs().max()))
    for part in ("a", "b"):
        for mode in ("train", "valid"):
            (folder / part / mode).mkdir(parents=True)
            (folder / part / mode / "batch_keys").write_text("")
            (folder / part / mode / "stats_keys").write_text("feats\n")
            (folder / part / mode / "feats_stats.npz").write_bytes(npz.read_bytes())
    aggregation.aggregate_stats_dirs([folder / "a", folder / "b"], folder / "both", "ERROR", skip_sum_stats=False)
    both, one = np.load(folder / "both" / "train" / "feats_stats.npz"), np.load(npz)
    print("added up:", all((both[name] == 2 * one[name]).all() for name in one), sorted(both))
    print(
        "added up and read:",
        bool(torch.equal(GlobalCmvn(folder / "both" / "train" / "feats_stats.npz").mean, ours.mean)),
    )


def compare_shapes(shapes: Path, build: Any) -> None:
    """Print what ESPnet's samplers make of the ids and lengths."""
    written = [line.split(" ")[0] for line in shapes.read_text(encoding="utf-8").splitlines()]
    for batch_type in ("numel", "length", "sorted", "folded"):
        sampler = build.build_batch_sampler(
            type=batch_type, batch_size=4, batch_bins=80 * 1000, shape_files=[str(shapes)], fold_lengths=[800]
        )
        keys = [key for batch in sampler for key in batch]
        print(f"{batch_type}: {len(list(sampler))} batches, all utterances once: {sorted(keys) == sorted(written)}")


def main() -> None:
    """Compare."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build = load_samplers(folder)
        path = make_statistics(folder)
        npz = path.with_suffix("") / "feats_stats.npz"
        compare_sums(npz, json.loads(path.read_text())["features"], folder, folder / f"espnet-{VERSION}")
        compare_shapes(npz.with_name("feats_shape"), build)


if __name__ == "__main__":
    main()
