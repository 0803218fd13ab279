"""`scripts/bench` runs and writes what it promises; sizes are tiny, so no speed is looked at."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from uttershard.scripts.benchmarks.report import markdown
from uttershard.scripts.benchmarks.rounds import Spread, measure_apart
from uttershard.scripts.benchmarks.subjects import LEAST_COPY
from uttershard.scripts.benchmarks.suite import Suite
from uttershard.scripts.benchmarks.targets import judge

TINY = ("--rounds", "1", "--hours", "0.02", "--seconds", "0.01", "--warm-up", "0.01")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "uttershard.scripts.benchmarks", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="module")
def wav_run(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run with `--only wav`, and what it printed."""
    folder = tmp_path_factory.mktemp("bench")
    done = bench("--only", "wav", *TINY, "--data", str(folder), "--speech", str(demo / "audio"))
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_reading_is_measured_and_written_up(wav_run: tuple[Path, str]) -> None:
    folder, printed = wav_run
    rows = {row["subject"]: row for row in json.loads((folder / "benchmarks.json").read_text("utf-8"))["wav"]}
    assert all(row["utterances_per_second"]["median"] > 0 for row in rows.values())
    assert {"ours, 1 thread", "ours, 2 threads", "ours, 1 worker", "ours, 2 workers"} < set(rows)
    for name, row in rows.items():
        assert (row["of_limit"] is None) == (name == LEAST_COPY)
        assert (row["of_peer"] is not None) == name.startswith("ours")
    document = (folder / "benchmarks.md").read_text("utf-8")
    assert document == printed.removesuffix("\n")
    assert "## Reading" in document
    assert "## Planning" not in document


def test_the_corpus_is_kept_and_its_source_is_not(wav_run: tuple[Path, str]) -> None:
    assert {path.name for path in (wav_run[0] / "0.02h").iterdir()} == {"flac", "wav"}


def test_the_limit_of_flac_adds_up_its_processes(wav_run: tuple[Path, str]) -> None:
    result = measure_apart(
        "flac: bare decode, 2 processes",
        {"dataset": str(wav_run[0] / "0.02h" / "flac"), "warm_up_seconds": 0.01, "seconds": 0.01},
    )
    assert result["utterances_per_second"] > 0
    assert result["first_batch_seconds"] is None


def test_plans_are_measured_and_written_up(tmp_path: Path) -> None:
    sizes = ("--utterances", "3000", "--ranks", "1", "--ranks", "4")
    done = bench("--only", "planning", "--only", "padding", *TINY, *sizes, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "benchmarks.json").read_text("utf-8"))
    assert [(row["utterances"], row["ranks"]) for row in results["planning"]] == [(3000, 1), (3000, 4)]
    assert all(row["bytes_per_utterance"] > 0 for row in results["planning"])
    assert {row["ranks"] for row in results["padding"]} == {1, 8}
    verdicts = {verdict.what: verdict for verdict in judge(results)}
    assert verdicts["1 rank: padding"].holds
    assert markdown(results) == (tmp_path / "benchmarks.md").read_text("utf-8")


def test_packing_is_measured_and_written_up(demo: Path, tmp_path: Path) -> None:
    sizes = ("--rounds", "1", "--packing-hours", "0.06", "--data", str(tmp_path), "--speech", str(demo / "audio"))
    done = bench("--only", "packing", *sizes)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "benchmarks.json").read_text("utf-8"))
    rows = {row["subject"]: row for row in results["packing"]}
    assert {"cp -r", "ours, keep", "ours, FLAC", "WeNet's way", "bare FLAC encoder"} <= set(rows)
    assert all(row["audio_seconds_per_second"]["median"] > 0 for row in rows.values())
    assert rows["ours, keep"]["of_copy"]["median"] > 0
    assert rows["ours, FLAC"]["of_limit"]["median"] > 0
    assert {verdict.what for verdict in judge(results)} == {
        "packing, keep: of cp -r",
        "packing, FLAC: of the bare encoder",
    }
    assert markdown(results) == (tmp_path / "benchmarks.md").read_text("utf-8")
    without = [row for row in results["packing"] if not row["subject"].startswith("Lhotse")]
    assert "Not installed where this was measured" in markdown({**results, "packing": without})
    assert {path.name for path in tmp_path.iterdir()} == {"0.06h-wav", "benchmarks.json", "benchmarks.md"}


def test_an_unknown_part_is_refused(tmp_path: Path) -> None:
    done = bench("--only", "mp3", "--data", str(tmp_path))
    assert done.returncode == 1
    assert "'mp3'" in done.stderr
    assert "flac, wav, planning, padding, storage" in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_wrapper_is_executable_and_the_default_run_is_whole(repository: Path) -> None:
    assert (repository / "scripts" / "bench").stat().st_mode & 0o111
    assert Suite().rounds >= 3
    assert Suite().parts == ("flac", "wav", "planning", "padding", "storage", "packing")


def test_the_spread_is_median_lowest_highest() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
