"""What a job tells while it runs, and how that reads in a log file."""

import io
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from corpora import jsonl_corpus
from rich.console import Console
from uttershard.scripts.cli import progress as progress_module
from uttershard.scripts.cli.progress import Bars
from uttershard.writers import pack, probe
from uttershard.writers.cluster import ClusterSettings
from uttershard.writers.progress import Done

HERE = ClusterSettings(n_workers=2, options={"processes": False})


class Telling(Bars):
    """Writes a line of the log at every step."""

    def advance(self, done: Done) -> None:
        super().advance(done)
        if done != Done(kept=done.kept):
            self._log()


def test_a_log_file_is_told_of_every_phase_as_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(probe, "CHUNK_FILES", 8)
    corpus = jsonl_corpus(tmp_path / "corpus", 24)
    (tmp_path / "corpus" / "audio" / "utt007.flac").write_bytes(b"no audio")
    pack(corpus, tmp_path / "out", shards=4, cluster=HERE, max_errors=1, progress=Telling())
    lines = capsys.readouterr().err.splitlines()
    probing = [line for line in lines if line.startswith("probing: ")]
    packing = [line for line in lines if line.startswith("packing: ")]
    assert [line.split(" utterances")[0] for line in probing[:2]] == ["probing: 8 of 24", "probing: 16 of 24"]
    assert all(line.endswith(" left") for line in [*probing[:2], packing[0]])
    assert probing[-1].startswith("probing: 24 of 24 utterances")
    assert packing[-1].startswith("packing: 23 of 23 utterances")
    assert "1 refused" in probing[-1]


def test_what_is_over_has_no_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    bars = Bars()
    bars.begin("pack", utterances=100, seconds=None)
    bars.advance(Done(utterances=40, refused=2))
    bars.end()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("packing: 40 of 100 utterances")
    assert "left" not in line


def test_a_log_file_is_told_that_nothing_is_done_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr(progress_module, "_LOG_SECONDS", 0.01)
    monkeypatch.setattr(sys, "stderr", log)
    bars = Bars()
    bars.begin("pack", utterances=100, seconds=None)
    while "\n" not in log.getvalue():
        pass
    bars.end()
    assert re.match(r"packing: 0 of 100 utterances, 0 utt/s, after \d+\.\d s\n", log.getvalue())


def test_what_an_earlier_run_did_says_nothing_of_the_rate(capsys: pytest.CaptureFixture[str]) -> None:
    bars = Telling()
    bars.begin("pack", utterances=1000, seconds=9000.0)
    bars.advance(Done(utterances=900, seconds=8000.0, nbytes=10**9, kept=True))
    bars.advance(Done(utterances=1, refused=1))
    bars.end()
    kept, more, _ = capsys.readouterr().err.splitlines()
    assert kept.startswith(
        "packing: 900 of 1,000 utterances, 0 utt/s, 2.22 h of audio, 0x real time, 1.0 GB, 0 B/s, 900 kept, after "
    )
    assert not kept.endswith("left")
    assert more.endswith(" left")


@pytest.mark.parametrize("width", [80, 200])
def test_a_terminal_shows_count_rate_and_times_whole(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bars, screen = Bars(), io.StringIO()
    bars._console = Console(file=screen, force_terminal=True, width=width)
    bars.begin("pack", utterances=240_000, seconds=900_000.0)
    now = bars._began + 101
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: now))
    bars.advance(Done(utterances=120_000, seconds=450_000.0, nbytes=10**9))
    bars.end()
    shown = " ".join(screen.getvalue().split())
    assert "120000/240000" in shown
    assert "utt/s" in shown
    assert "x real time" in shown
    assert re.search(r"after 1 min 4\d s, 1 min 4\d s left" if width == 200 else r"1 min 4\d s left", shown)
    assert "…" not in shown
