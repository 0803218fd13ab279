"""Records what ESPnet2's own samplers do, for test_espnet_types.py to compare with; run by hand, needs the network.

    python tests/espnet_record.py                # writes tests/espnet_batches.jsonl
    python tests/espnet_record.py --compare 5000 # compares that many fresh cases at once, writes nothing

espnet pins far more than its samplers need, so that the suite can't install it: its source archive is fetched without
dependencies, and `typeguard`, which only decorates, is left out. One line a case: lengths, settings, batches.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import subprocess
import sys
import tarfile
import tempfile
import types
from pathlib import Path
from typing import Any

VERSION = "202511"
RECORD = Path(__file__).with_name("espnet_batches.jsonl")
CASES = 90
"""Of each type."""


def load_samplers(folder: Path) -> Any:
    """Fetch ESPnet2's samplers and import them."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*command, "--dest", str(folder), f"espnet=={VERSION}"], check=True)
    with tarfile.open(folder / f"espnet-{VERSION}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    source = folder / f"espnet-{VERSION}"
    typeguard = types.ModuleType("typeguard")
    typeguard.typechecked = lambda function: function  # type: ignore[attr-defined]
    sys.modules["typeguard"] = typeguard
    for name in ("espnet2", "espnet2.samplers", "espnet2.fileio"):
        package = types.ModuleType(name)
        package.__path__ = [str(source / name.replace(".", "/"))]
        sys.modules[name] = package
    return importlib.import_module("espnet2.samplers.build_batch_sampler")


def draw_case(batch_type: str, dice: random.Random) -> dict[str, Any]:
    """Draw lengths and settings."""
    count = dice.choice([1, 2, 3, 7, 20, 45])
    longest = dice.choice([3, 40, 2000])
    columns = 1 if batch_type in ("unsorted", "sorted", "catbel", "catpow") else dice.choice([1, 1, 2, 3])
    lengths = [[dice.randint(1, longest) for _ in range(count)] for _ in range(columns)]
    settings: dict[str, Any] = {}
    if batch_type in ("unsorted", "sorted", "folded", "catbel"):
        settings["batch_size"] = dice.choice([1, 2, 4, 9, 60])
    else:
        settings["batch_bins"] = dice.choice([1, 5, 1]) * longest * dice.choice([1, 4])
    if batch_type in ("sorted", "folded", "length", "numel"):
        settings["sort_in_batch"] = dice.choice(["ascending", "descending"])
        settings["sort_batch"] = dice.choice(["ascending", "descending"])
    if batch_type not in ("catbel", "catpow"):
        settings["drop_last"] = dice.random() < 0.4
    if batch_type in ("folded", "length", "numel"):
        settings["min_batch_size"] = dice.choice([1, 1, 2, 5])
    if batch_type == "folded":
        settings["fold_lengths"] = [max(1, longest // dice.choice([1, 2, 10])) for _ in lengths]
    if batch_type in ("length", "numel"):
        settings["padded"] = dice.random() < 0.7
    if batch_type == "numel":
        settings["length_dims"] = [dice.choice([1, 2, 80]) for _ in lengths]
        settings["batch_bins"] *= dice.choice([1, 20])
    if batch_type in ("catbel", "catpow") or (batch_type == "folded" and dice.random() < 0.3):
        settings["categories"] = [dice.randrange(dice.choice([1, 3, 12])) for _ in range(count)]
    if batch_type == "catpow":
        settings |= {
            "min_batch_size": dice.choice([1, 3]),
            "max_batch_size": dice.choice([None, 4]),
            "upsampling_factor": dice.choice([0.0, 0.5, 1.0]),
            "scaling_factor": dice.choice([1.0, 1.2, 3.0]),
            "drop_last": dice.random() < 0.4,
        }
    return {"type": batch_type, "lengths": lengths, "settings": settings}


def run_espnet(build: Any, case: dict[str, Any], folder: Path) -> dict[str, Any] | None:
    """Return the case with ESPnet2's batches, as numbers of utterances; None where ESPnet2 stops with an error."""
    settings, lengths = dict(case["settings"]), case["lengths"]
    dims = settings.pop("length_dims", [1] * len(lengths))
    shapes = []
    for number, (column, dim) in enumerate(zip(lengths, dims, strict=True)):
        path = folder / f"shape.{number}"
        ending = f",{dim}" if case["type"] == "numel" else ""
        path.write_text("".join(f"u{i} {length}{ending}\n" for i, length in enumerate(column)))
        shapes.append(str(path))
    categories = settings.pop("categories", None)
    if case["type"] in ("catbel", "catpow"):
        return _run_drawn(build, case, settings, categories, shapes, folder)
    if categories is not None:
        path = folder / "utt2category"
        path.write_text("".join(f"u{i} c{category}\n" for i, category in enumerate(categories)))
        settings["utt2category_file"] = str(path)
    settings["padding"] = settings.pop("padded", True)
    settings = {"batch_size": 1, "batch_bins": 1, **settings}
    try:
        sampler = build.build_batch_sampler(type=case["type"], shape_files=shapes, **settings)
    except (IndexError, RuntimeError):
        return None
    return {**case, "batches": [[int(key[1:]) for key in batch] for batch in sampler]}


def _run_drawn(
    build: Any, case: dict[str, Any], settings: dict[str, Any], categories: list[int], shapes: list[str], folder: Path
) -> dict[str, Any]:
    """Run a sampler that draws, and record what it drew, so that the rule can be compared without its dice."""
    members: dict[int, list[str]] = {}
    for number, category in enumerate(categories):
        members.setdefault(category, []).append(f"u{number}")
    path = folder / "category2utt"
    path.write_text("".join(f"c{category} {' '.join(utterances)}\n" for category, utterances in members.items()))
    drawn: list[list[Any]] = []
    shuffle = random.shuffle

    def recording(values: list[Any]) -> None:
        shuffle(values)
        drawn.append(list(values))

    if case["type"] == "catbel":
        module = sys.modules["espnet2.samplers.category_balanced_sampler"]
        module.random = types.SimpleNamespace(seed=random.seed, shuffle=recording)  # type: ignore[attr-defined]
        sampler = module.CategoryBalancedSampler(category2utt_file=str(path), **settings)
        names = [int(name[1:]) for name in drawn[0]]
        walk = [category for category in names for _ in members[category]]
        own = {str(names[i]): [int(key[1:]) for key in drawn[1 + i]] for i in range(len(names))}
        extra = {"walk": [walk[place] for place in drawn[-1]], "own": own}
    else:
        settings["dataset_scaling_factor"] = settings.pop("scaling_factor")
        module = sys.modules["espnet2.samplers.category_power_sampler"]
        sampler = module.CategoryPowerSampler(shape_files=shapes, category2utt_file=str(path), **settings)
        extra = {
            "probabilities": [float(one) for one in sampler.category_probs],
            "order": [int(name[1:]) for name in sampler.categories],
            "own": {
                name[1:]: [int(key[1:]) for key in utterances]
                for name, utterances in sampler.all_utts_by_category.items()
            },
        }
    return {**case, **extra, "batches": [[int(key[1:]) for key in batch] for batch in sampler]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compare", type=int, default=0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build = load_samplers(folder)
        dice = random.Random(chosen.compare)
        kinds = ["unsorted", "sorted", "folded", "length", "numel", "catbel", "catpow"]
        cases = [draw_case(kind, dice) for kind in kinds for _ in range(chosen.compare or CASES)]
        recorded = [found for case in cases if (found := run_espnet(build, case, folder)) is not None]
    if chosen.compare:
        from test_espnet_types import difference

        problems = [problem for case in recorded if (problem := difference(case))]
        print(f"{len(recorded)} cases, {len(problems)} differ", *problems[:5], sep="\n")
        sys.exit(bool(problems))
    RECORD.write_text("".join(json.dumps(case, separators=(",", ":")) + "\n" for case in recorded))
    print(f"{len(recorded)} cases of {len(cases)} in {RECORD}")


if __name__ == "__main__":
    main()
