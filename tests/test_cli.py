"""Commands: JSON with the promised fields, plans that the loader keeps to, errors a person can act on, help."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from corpora import jsonl_corpus, write_audio
from packed import BINS, Packed, keys_of
from uttershard.pipeline import ShardSet
from uttershard.scripts.cli import main
from uttershard.scripts.cli.app import app
from uttershard.scripts.cli.progress import Bars

COMMANDS = ("pack", "index", "info", "verify", "plan")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Runs the command line in this process; returns (exit status, standard output, standard error)."""

    def run(*arguments: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["uttershard", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
            sys.exit(0)
        code = ended.value.code
        return code if isinstance(code, int) else 0 if code is None else 1, *capfd.readouterr()

    return run


def as_json(result: tuple[int, str, str]) -> dict[str, Any]:
    status, output, errors = result
    assert status == 0, errors
    found = json.loads(output)
    assert isinstance(found, dict)
    return found


def test_pack_says_what_it_made(command: Any, tmp_path: Path) -> None:
    corpus = jsonl_corpus(tmp_path / "corpus", utterances=6)
    arguments = ("pack", corpus, tmp_path / "out", "--shards", 2, "--workers", 1)
    found = as_json(command(*arguments, "--json"))
    assert {"dataset", "utterances", "hours", "bytes", "shards", "refused", "already_complete"} <= found.keys()
    assert (found["utterances"], found["shards"], found["refused"]) == (6, 2, 0)
    assert not found["already_complete"]
    status, output, _ = command(*arguments)
    assert status == 0
    assert "already complete" in output


def test_no_workers_are_refused_whatever_the_file_says(command: Any, tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text("parallel: {n_workers: 2}")
    for cluster in ((), ("--cluster-config", tmp_path / "two.yaml")):
        status, _, errors = command("pack", tmp_path, tmp_path / "out", "--workers", 0, *cluster)
        assert status == 1
        assert "n_workers is 0; it must be an integer of 1 or more" in errors


def test_values_in_tables_are_no_markup(command: Any, tmp_path: Path) -> None:
    corpus, config = jsonl_corpus(tmp_path / "corpus", utterances=2, tag="[noise][/b] :smile:"), tmp_path / "here.yaml"
    config.write_text("parallel: {n_workers: 1, options: {processes: false}}")
    assert command("pack", corpus, tmp_path / "out", "--column", "tag", "--cluster-config", config)[0] == 0
    arguments = ("stats", tmp_path / "out", "--column", "tag", "--features", "none", "--cluster-config", config)
    status, output, errors = command(*arguments)
    assert status == 0, errors
    assert "[noise][/b] :smile:" in output
    Bars().note("[noise][/b] :smile:")
    assert "[noise][/b] :smile:" in command("info", tmp_path / "out")[2]


def test_pack_says_that_texts_are_missing(command: Any, tmp_path: Path) -> None:
    for name in ("a.wav", "b.wav", "c.wav"):
        write_audio(tmp_path / "corpus" / name)
    for text, expected in (
        (None, "no utterance has a transcript"),
        ("hello", "2 utterances without a transcript"),
    ):
        if text is not None:
            (tmp_path / "corpus" / "a.txt").write_text(text, "utf-8")
        target = tmp_path / f"out-{text}"
        _, output, _ = command("pack", tmp_path / "corpus", target, "--shards", 2, "--workers", 1)
        assert expected in output


def test_index_says_what_it_changed(command: Any, broken: Packed) -> None:
    broken.sidecar(2).unlink()
    found = as_json(command("index", broken.address, "--workers", 1, "--json"))
    assert found.keys() >= {"dataset", "digest", "shards", "utterances", "hours", "changed"}
    assert found["changed"] == ["shard-000002.parquet"]
    status, output, _ = command("index", broken.address, "--workers", 1)
    assert status == 0
    assert "0 sidecars written, the others were right" in output


def test_info_says_what_is_there(command: Any, flac: Packed) -> None:
    found = as_json(command("info", flac.address, "--json"))
    dataset = ShardSet.open(flac.address)
    assert found["digest"] == dataset.digest
    assert found["utterances"] == len(flac.sources)
    assert found["hours"] == pytest.approx(dataset.hours)
    assert found["audio"] == [{"codec": "flac", "sample_rate": 16_000, "channels": 1, "utterances": 48}]
    assert found["columns"] == {"speaker": "string"}
    assert found["with_text"] == sum(source.text is not None for source in flac.sources.values())
    assert len(found["shards"]) == 4
    status, output, _ = command("info", flac.address, "--shards")
    assert status == 0
    for word in (dataset.digest, "shard-000003.tar", "48 flac 16000 Hz 1 ch", "speaker (string)"):
        assert word in output


@pytest.mark.parametrize("deep", [False, True])
def test_verify_is_quiet_about_what_is_well(command: Any, flac: Packed, deep: bool) -> None:
    options = ["--deep"] if deep else []
    found = as_json(command("verify", flac.address, "--json", *options))
    assert found["ok"]
    assert found["problems"] == []
    assert (found["deep"], found["shards"], found["utterances"]) == (deep, 4, 48)
    status, output, _ = command("verify", flac.address, "--workers", 1, *options)
    assert status == 0
    assert "all is well" in output


def test_verify_names_what_is_damaged(command: Any, broken: Packed) -> None:
    row = ShardSet.open(broken.address).sidecar(1)[0].to_pylist()[0]
    tar = bytearray(broken.tar(1).read_bytes())
    tar[700] ^= 1
    broken.tar(1).write_bytes(tar)
    broken.tar(2).unlink()
    status, output, _ = command("verify", broken.address, "--json")
    assert status == 1
    found = json.loads(output)
    assert not found["ok"]
    damaged, missing = found["problems"]
    assert (damaged["shard"], damaged["key"], damaged["offset"]) == ("shard-000001.tar", row["key"], 0)
    assert (missing["shard"], missing["key"]) == ("shard-000002.tar", None)
    status, output, _ = command("verify", broken.address)
    assert status == 1
    assert f"shard-000001.tar: {row['key']!r} at offset 0: its bytes are damaged" in output
    assert "2 problems" in output


PLAN_FIELDS = {"epoch", "world_size", "total_shards", "batch_bins", "steps", "filtered", "ranks"}
RANK_FIELDS = {"rank", "logical_shard", "utterances", "frames", "padded_frames", "padding", "fill"}


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ([], {}),
        (["--seed", "3", "--longest-first"], {"seed": 3, "longest_first": True}),
        (["--max-seconds", "1", "--where", 'speaker != "s1"'], {"max_seconds": 1, "where": 'speaker != "s1"'}),
        (["--equal-steps", "pad", "--max-batch-size", "3"], {"equal_steps": "pad", "max_batch_size": 3}),
        (["--equal-steps", "drop"], {"equal_steps": "drop"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_a_plan_is_what_the_loader_does(
    command: Any, flac: Packed, epoch: int, options: list[str], settings: dict[str, Any]
) -> None:
    found = as_json(
        command(
            *("plan", flac.address, "--json", "--batches", "--epoch", epoch, "--world-size", 2, "--total-shards", 4),
            *("--batch-bins", BINS, *options),
        )
    )
    assert found.keys() >= PLAN_FIELDS
    assert (found["epoch"], found["world_size"], found["total_shards"], found["batch_bins"]) == (epoch, 2, 4, BINS)
    for number, rank in enumerate(found["ranks"]):
        loader = flac.loader(rank=number, world_size=2, total_shards=4, **settings)
        loader.set_epoch(epoch)
        assert rank.keys() >= RANK_FIELDS
        assert rank["rank"] == number
        assert rank["logical_shard"] == (epoch * 2 + number) % 4
        assert found["filtered"] == loader.filtered
        assert len(rank["batches"]) == len(loader) == found["steps"]
        planned = [tuple(batch["keys"]) for batch in rank["batches"]]
        assert planned == keys_of(loader)
        assert [batch["step"] for batch in rank["batches"]] == list(range(found["steps"]))
        assert max(batch["padded_frames"] for batch in rank["batches"]) <= BINS
        metrics = loader.metrics()
        assert rank["padding"] == pytest.approx(metrics["padding"])
        assert rank["fill"] == pytest.approx(metrics["fill"])
        assert rank["padded_frames"] == sum(batch["padded_frames"] for batch in rank["batches"])
        assert all(batch["padded_frames"] == batch["longest_frames"] * len(batch["keys"]) for batch in rank["batches"])


def test_a_plan_of_espnets_batches(command: Any, flac: Packed) -> None:
    options = ["--batch-type", "numel", "--batch-bins", 900, "--no-shuffle", "--rule", "sort_batch=descending"]
    columns = ["--rule", "length_columns=[frames, text_chars]", "--rule", "length_dims=[3, 1]"]
    found = as_json(command("plan", flac.address, "--json", "--batches", *options, *columns))
    loader = flac.loader(
        batch_type="numel",
        batch_bins=900,
        shuffle=False,
        sort_batch="descending",
        length_columns=("frames", "text_chars"),
        length_dims=(3, 1),
    )
    (rank,) = found["ranks"]
    assert [tuple(batch["keys"]) for batch in rank["batches"]] == keys_of(loader)


def test_a_plan_of_fixed_batch_sizes(command: Any, flac: Packed) -> None:
    found = as_json(command("plan", flac.address, "--json", "--batch-size", 5))
    assert (found["batch_bins"], found["batch_size"], found["steps"]) == (None, 5, 10)
    assert found["ranks"][0]["fill"] is None
    assert "batches" not in found["ranks"][0]


def test_a_plan_for_people(command: Any, flac: Packed) -> None:
    status, output, _ = command("plan", flac.address, "--world-size", 4, "--batch-bins", BINS, "--min-seconds", 0.5)
    assert status == 0
    assert "4 ranks, 4 logical shards" in output
    assert "utterances kept" in output
    assert "too short" in output.replace("_", " ")


# Errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info", "{none}"], "no dataset at"),
        (["verify", "{none}"], "no dataset at"),
        (["plan", "{none}"], "no dataset at"),
        (["index", "{none}"], "no such file"),
        (["pack", "{none}", "{out}"], "none"),
        (["plan", "{flac}", "--batch-bins", "10"], "longer than batch_bins=10"),
        (["plan", "{flac}", "--batch-bins", "600", "--batch-size", "3"], "give exactly one of them"),
        (["plan", "{flac}", "--world-size", "3", "--total-shards", "4"], "total_shards=3 or 6"),
        (["plan", "{flac}", "--where", "speeker == 1"], "speeker"),
        (["plan", "{flac}", "--where", "import os"], "where"),
        (["plan", "{flac}", "--equal-steps", "maybe"], "equal_steps='maybe' is unknown"),
        (["plan", "{flac}", "--batch-type", "sorted"], "batch_type='sorted' needs batch_size="),
        (["plan", "{flac}", "--batch-type", "numel", "--rule", "min_batch=2"], "NAME is one of min_batch_size"),
        (["plan", "{flac}", "--batches"], "--batches lists every batch and needs --json"),
        (["plan", "{flac}", "--epoch", "-1"], "epoch=-1"),
        (["index", "{flac}", "--column", "take"], "leave them out"),
        (["index", "{flac}", "--out", "{file}"], "file"),
        (["verify", "{flac}", "--workers", "-1"], "workers"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors_are_one_line_on_standard_error(
    command: Any, flac: Packed, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "file").write_text("a file")
    places = {"none": tmp_path / "none", "out": tmp_path / "out", "flac": flac.address, "file": tmp_path / "file"}
    status, output, errors = command(*(argument.format(**places) for argument in arguments))
    assert status == 1
    assert output == ""
    assert errors.startswith("uttershard: ")
    assert message in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_is_refused(command: Any, flac: Packed, name: str) -> None:
    places = [flac.address, flac.address] if name == "pack" else [flac.address]
    status, output, errors = command(name, *places, "--colour", "blue")
    assert status != 0
    assert output == ""
    assert "--colour" in errors


def test_an_unknown_command_is_refused(command: Any) -> None:
    status, _, errors = command("train")
    assert status != 0
    assert "train" in errors


# Help


@pytest.mark.parametrize("name", COMMANDS)
def test_help_teaches(command: Any, name: str) -> None:
    status, output, _ = command(name, "--help")
    assert status == 0
    assert f"uttershard {name}" in output
    assert "--json" in output
    assert output == command(name, "-h")[1]
    known: Any = typer.main.get_command(app)
    for parameter in known.commands[name].params:
        assert getattr(parameter, "help", None), f"{name} {parameter.name}: says not what it does"


def test_the_command_itself_lists_what_there_is(command: Any) -> None:
    _, output, errors = command()
    for name in COMMANDS:
        assert name in output + errors
    status, output, _ = command("--version")
    assert status == 0
    assert output.startswith("uttershard ")


def test_the_installed_command_and_a_closed_pipe(flac: Packed) -> None:
    script = Path(sys.executable).parent / "uttershard"
    command = [script, "plan", flac.address, "--json", "--batches", "--batch-bins", "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "{\n"
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()
