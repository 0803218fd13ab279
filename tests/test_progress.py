"""What a job tells while it runs, and how that reads in a log file."""

from pathlib import Path

import pytest
from corpora import jsonl_corpus
from uttershard.scripts.cli import progress as progress_module
from uttershard.scripts.cli.progress import Bars
from uttershard.writers import pack, probe
from uttershard.writers.cluster import ClusterSettings

HERE = ClusterSettings(n_workers=2, options={"processes": False})


def test_a_log_file_is_told_of_every_phase_as_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(probe, "CHUNK_FILES", 8)
    monkeypatch.setattr(progress_module, "_LOG_SECONDS", 0.0)
    corpus = jsonl_corpus(tmp_path / "corpus", 24)
    (tmp_path / "corpus" / "audio" / "utt007.flac").write_bytes(b"no audio")
    pack(corpus, tmp_path / "out", shards=4, cluster=HERE, max_errors=1, progress=Bars())
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
    bars.advance(utterances=40, refused=2)
    bars.end()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("packing: 40 of 100 utterances")
    assert "left" not in line
