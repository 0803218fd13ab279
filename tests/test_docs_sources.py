"""The commands of docs/sources.md, run as they stand."""

import re
import shlex
import tarfile
from pathlib import Path

import pytest
from corpora import write_audio, write_lines
from test_source_examples import CORPORA
from typer.testing import CliRunner
from uttershard.pipeline import ShardSet
from uttershard.scripts.cli.app import app


def commands(repository: Path) -> list[list[str]]:
    text = (repository / "docs" / "sources.md").read_text("utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


def test_every_command(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("librispeech", "commonvoice", "lhotse", "hf", "nemo", "webdataset"):
        CORPORA[name]()
    CORPORA["kaldi"]()
    write_audio(tmp_path / "LJSpeech-1.1/wavs/LJ-1.wav", 0.1)
    write_lines(tmp_path / "LJSpeech-1.1/metadata.csv", 'LJ-1|"No." 1|"No." one')
    (tmp_path / "data/train/utt2spk").write_text("a tom\n")
    with tarfile.open("corpus.tar.gz", "w:gz") as tar:
        tar.add("data/train", "corpus")
    for program, *arguments in commands(repository):
        assert program == "uttershard"
        result = CliRunner().invoke(app, [*arguments, "--workers", "1"])
        assert result.exit_code == 0, f"{arguments}: {result.output}"
        target = arguments[arguments.index("--out") + 1] if "--out" in arguments else arguments[2]
        assert ShardSet.open(target).manifest.utterances >= 1
