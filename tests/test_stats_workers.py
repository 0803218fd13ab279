"""Statistics and the workers that measure them: what ends them, where they are, what they are sent."""

import json
import os
import re
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import soundfile
from corpora import RATE, files_of, noise, write_audio, write_jsonl
from fault_proxy import Fault, FaultProxy
from heard import Heard
from packed import Packed
from s3_cases import RemoteDataset
from s3_server import BUCKET, SECRET
from uttershard.pipeline import ShardSet
from uttershard.pipeline.dataset.stats import load_stats
from uttershard.pipeline.errors import ConfigError, DataError, StorageError
from uttershard.pipeline.remote.retry import Limits
from uttershard.scripts.cli import main
from uttershard.writers import StatsSettings, collect_stats, index_tars, pack
from uttershard.writers.cluster import ClusterSettings, TasksFailedError
from uttershard.writers.cluster.tasks import ElsewhereError
from uttershard.writers.commit import NoSpaceError
from uttershard.writers.stats.attempts import DEADLY, Attempt, Attempts
from uttershard.writers.stats.shard import StatsTask

HERE = ClusterSettings(n_workers=1, options={"processes": False})


def test_a_function_that_ends_its_worker_is_named(flac: Packed, tmp_path: Path) -> None:
    settings = StatsSettings(features="stats_functions:ends_worker")
    with pytest.raises(DataError, match=r"shard-00000\d\.tar: utterance .*3 workers have died.*:ends_worker\)"):
        collect_stats(str(flac.address), settings, out=str(tmp_path), workers=2)


@pytest.mark.parametrize(
    ("function", "error", "what"),
    [
        ("lacks_a_package", ElsewhereError, "ModuleNotFoundError"),
        ("lacks_a_file", ElsewhereError, "FileNotFoundError"),
        ("opens_a_folder", DataError, "IsADirectoryError"),
    ],
)
def test_what_waiting_does_not_change_is_told_at_once(
    flac: Packed, tmp_path: Path, function: str, error: type[Exception], what: str
) -> None:
    heard = Heard()
    with pytest.raises(error, match=rf"tar: utterance .*:{function} raised {what}"):
        collect_stats(
            flac.address,
            StatsSettings(features=f"stats_functions:{function}"),
            out=tmp_path,
            cluster=HERE,
            progress=heard,
        )
    assert heard.retries == 0


@pytest.mark.parametrize("function", ["server_away", "complains"])
def test_what_may_pass_is_told_and_tried_again(flac: Packed, tmp_path: Path, function: str, no_pauses: None) -> None:
    heard = Heard()
    settings = StatsSettings(features=f"stats_functions:{function}")
    with pytest.raises(TasksFailedError, match=rf"4 given up.*utterance .*:{function} raised OSError"):
        collect_stats(flac.address, settings, out=tmp_path, cluster=HERE, retries=2, progress=heard)
    assert heard.retries == 8
    assert re.search(
        rf"shard-00000\d\.tar: .*tar: utterance .*:{function} raised .*; tried again in 0 s", heard.notes[0]
    )


def test_attempts_that_ended_are_not_held_against_an_utterance(tmp_path: Path) -> None:
    attempts, other = Attempts(tmp_path, 4), Attempts(tmp_path, 5)
    for _ in range(DEADLY):
        with attempts.attempt() as attempt, attempt.at(7):
            pass
        with pytest.raises(ValueError, match="told"), attempts.attempt() as attempt, attempt.at(7):
            raise ValueError("told")
    # What is left open is as a process that was killed leaves it: between two utterances, or at one.
    left: list[Any] = []

    def die_at(number: int | None) -> None:
        left.append(attempts.attempt())
        attempt = left[-1].__enter__()
        if number is not None:
            left.append(attempt.at(number))
            left[-1].__enter__()

    for number in (None, None, None, 0, 1, 1, 2):
        die_at(number)
    assert attempts.deadly() is None
    die_at(1)
    assert attempts.deadly() == 1
    assert other.deadly() is None


def test_a_note_on_a_full_disk() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(NoSpaceError, match="no space left"), Attempt(Path("/dev/full"), full).at(1):
            pass
    finally:
        os.close(full)


def test_workers_in_another_folder(flac: Packed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["Satz ü 12345", "67890 Satz"] * 20),
        model_prefix=str(tmp_path / "bpe"), vocab_size=20, model_type="bpe", minloglevel=9,
    )  # fmt: skip
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    settings = StatsSettings(features="none", tokenizer="bpe.model")
    stats = collect_stats(
        f"file://{flac.address}", settings, out="stats",
        cluster=ClusterSettings(n_workers=1, options={"preload": [f"import os; os.chdir({str(elsewhere)!r})"]}),
    ).stats  # fmt: skip
    assert stats.body["tokens"] > 0


def test_code_that_changes_while_workers_run_is_refused(
    flac: Packed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "changing_features.py"
    module.write_text(
        "import numpy as np\n"
        "def features(audio, sample_rate):\n"
        "    open(__file__, 'a').write('# edited')\n"
        "    return np.zeros((1, 1))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = StatsSettings(features="changing_features:features")
    with pytest.raises(ConfigError, match=r"changing_features:features: not the code.* change nothing while"):
        collect_stats(str(flac.address), settings, out=str(tmp_path / "stats"), cluster=HERE)


def test_a_shard_without_utterances(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        tar.add(write_audio(tmp_path / "a.flac"), "a.flac")
    with tarfile.open(tmp_path / "1.tar", "w"):
        pass
    index_tars([str(tmp_path / "0.tar"), str(tmp_path / "1.tar")], out=str(tmp_path / "data"), cluster=HERE)
    settings = StatsSettings(features="stats_functions:powers", sample_rate=None)
    stats = collect_stats(str(tmp_path / "data"), settings, cluster=HERE).stats
    assert stats.body["features"]["frames"] == 100
    assert stats.columns(["feature_frames"]).to_pydict() == {"feature_frames": [100]}


def test_columns_that_hold_no_number(tmp_path: Path) -> None:
    numbers = ("3.5", "NaN", "NaN", "Infinity")
    for number, said in enumerate(numbers):
        with tarfile.open(tmp_path / f"{number}.tar", "w") as tar:
            write_audio(tmp_path / f"{number}.wav")
            tar.add(tmp_path / f"{number}.wav", f"{number}.wav")
            (tmp_path / f"{number}.json").write_text(f'{{"snr": {said}}}')
            tar.add(tmp_path / f"{number}.json", f"{number}.json")
    tars = [str(tmp_path / f"{number}.tar") for number in range(len(numbers))]
    index_tars(tars, out=str(tmp_path / "data"), columns=("snr",), cluster=HERE)
    made = collect_stats(tmp_path / "data", StatsSettings(features="none", columns=("snr",)), cluster=HERE)
    counts = {row["value"]: row["utterances"] for row in made.stats.body["columns"]["snr"]}
    assert counts == {3.5: 1, None: 2, "inf": 1}
    assert "NaN" not in Path(made.path).read_text(), "which is no JSON"


def test_the_command_prints_the_address_whole(
    flac: Packed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / ("a folder whose name is long " * 5).strip()
    config = tmp_path / "here.yaml"
    config.write_text("parallel: {n_workers: 1, options: {processes: false}}")
    arguments = ["stats", str(flac.address), "--out", str(out), "--features", "none", "--cluster-config", str(config)]
    said = []
    for more in ([], [], ["--json"]):
        monkeypatch.setattr(sys, "argv", ["uttershard", *arguments, *more])
        with pytest.raises(SystemExit) as ended:
            main()
            sys.exit(0)
        assert not ended.value.code
        said.append(capsys.readouterr().out)
    address = str(*out.glob("*.json"))
    assert said[0].endswith(f"\nwritten to {address}\n")
    assert said[1].startswith("already complete, nothing to do\n")
    found = json.loads(said[2])
    assert (found["path"], found["already_complete"], found["kept_shards"]) == (address, True, 0)
    assert found["utterances"] == len(flac.sources)


def test_a_dataset_in_a_store(remote: RemoteDataset, tmp_path: Path) -> None:
    settings = StatsSettings(features="stats_functions:powers", tokenizer="stats_functions:characters")
    here = collect_stats(remote.packed.address, settings, out=tmp_path / "here", cluster=HERE)
    options = remote.options()
    there = collect_stats(remote.address, settings, out=tmp_path / "there", cluster=HERE, storage_options=options)
    assert files_of(tmp_path / "there") == files_of(tmp_path / "here")
    shards = remote.shards()
    assert shards.index(["tokens"], stats=there.path) == here.stats.columns(["tokens"])
    remote.server.filesystem().pipe_file(f"{BUCKET}/of-train.json", Path(there.path).read_bytes())
    with pytest.raises(DataError, match=r"of-train/columns\.parquet: does not exist.*Copy both together"):
        shards.index(["tokens"], stats=f"s3://{BUCKET}/of-train.json")
    with pytest.raises(ConfigError, match="a local folder: say which with out="):
        collect_stats(remote.address, settings, cluster=HERE, storage_options=options)


@pytest.mark.usefixtures("instant_pauses")
def test_statistics_in_a_store_are_waited_for_as_long_as_the_dataset(
    remote: RemoteDataset, tmp_path: Path, proxy: FaultProxy
) -> None:
    made = collect_stats(remote.packed.address, StatsSettings(features="none"), out=tmp_path, cluster=HERE)
    remote.server.filesystem().pipe_file(f"{BUCKET}/slow.json", Path(made.path).read_bytes())
    proxy.faults = [Fault(match="slow.json", stall_after=10)]
    shards = ShardSet.open(remote.address, remote.options(proxy), Limits(read_timeout=1.0, read_deadline=10.0))
    with pytest.raises(StorageError, match=r"slow\.json.* 10 s"):
        shards.stats(f"s3://{BUCKET}/slow.json")


def test_credentials_are_not_shown(remote: RemoteDataset, tmp_path: Path) -> None:
    settings, shards = StatsSettings(features="none"), remote.shards()
    made = collect_stats(remote.packed.address, settings, out=tmp_path, cluster=HERE)
    loaded = load_stats(made.path, shards.digest, storage_options=remote.options())
    entry = shards.manifest.shards[0]
    task = StatsTask(remote.address, remote.options(), 0, entry, {}, str(tmp_path), "key", settings, "digest")
    assert SECRET not in f"{loaded!r} {task!r}"


def test_a_column_that_both_have(tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "a.jsonl", [{"audio_filepath": str(write_audio(tmp_path / "a.wav")), "tokens": 3}])
    pack(corpus, tmp_path / "data", columns=("tokens",), cluster=HERE)
    settings = StatsSettings(features="none", tokenizer="stats_functions:characters")
    stats = collect_stats(str(tmp_path / "data"), settings, cluster=HERE)
    data = ShardSet.open(tmp_path / "data")
    with pytest.raises(ConfigError, match=r"the sidecars have a column 'tokens', and so have .*: leave stats= out"):
        data.index(["tokens"], stats=stats.path)
    assert data.index(["num_samples", "silence"], stats=stats.path).num_rows == 1
    assert data.index(["tokens"])["tokens"].to_pylist() == [3]


def test_functions_may_work_in_place_whatever_the_codec(tmp_path: Path) -> None:
    settings = StatsSettings(features="stats_functions:in_place")
    found = []
    for subtype in ("PCM_16", "FLOAT"):
        soundfile.write(tmp_path / f"{subtype}.wav", noise(0.5) / 32768, RATE, subtype=subtype)
        corpus = write_jsonl(tmp_path / f"{subtype}.jsonl", [{"audio_filepath": f"{subtype}.wav"}])
        pack(corpus, tmp_path / subtype, cluster=HERE)
        found.append(collect_stats(str(tmp_path / subtype), settings, cluster=HERE).stats.mean)
    np.testing.assert_array_equal(found[0], found[1])


def test_options_as_the_json_gives_them_back() -> None:
    options = {"low_freq": 20, "dither": (0.0, 1)}
    assert StatsSettings(feature_options=options).identity()["feature_options"]["dither"] == [0.0, 1]


def test_transforms_take_samples_that_are_only_read(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    soundfile.write(tmp_path / "a.wav", noise(0.5) / 32768, RATE, subtype="FLOAT")
    pack(write_jsonl(tmp_path / "a.jsonl", [{"audio_filepath": "a.wav"}]), tmp_path / "data", cluster=HERE)
    assert collect_stats(tmp_path / "data", out=tmp_path / "stats", cluster=HERE).stats.mean.shape == (80,)
    assert not [warning for warning in recwarn if "writable" in str(warning.message)]


def test_a_file_where_the_folder_would_be(flac: Packed, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=rf"{out}: {tmp_path}/file is a file; out= \(--out\) names a folder"):
            collect_stats(flac.address, out=out, cluster=HERE)


def test_retries_that_are_none(flac: Packed, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="retries is -1"):
        collect_stats(flac.address, out=tmp_path, retries=-1)
    assert not files_of(tmp_path)


def test_a_tokenizer_object_counts_as_in_the_loader(flac: Packed, tmp_path: Path) -> None:
    counts = []
    for tokenizer in ("letters", "characters"):
        settings = StatsSettings(features="none", tokenizer=f"stats_functions:{tokenizer}")
        counts.append(collect_stats(flac.address, settings, out=tmp_path, cluster=HERE).stats.body["tokens"])
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize(
    ("tokenizer", "what"), [("text_itself", "str"), ("as_a_dict", "dict"), ("as_a_batch", r"ndarray of shape \(1, ")]
)
def test_lengths_that_are_none_of_tokens_are_refused(flac: Packed, tmp_path: Path, tokenizer: str, what: str) -> None:
    settings = StatsSettings(features="none", tokenizer=f"stats_functions:{tokenizer}")
    with pytest.raises(DataError, match=rf"utterance .*{tokenizer} returned {what}.*expected a list of tokens"):
        collect_stats(flac.address, settings, out=tmp_path, cluster=HERE)


def test_features_without_a_frame_have_no_sums(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "short.wav", noise(0.01), RATE)
    pack(write_jsonl(tmp_path / "a.jsonl", [{"audio_filepath": "short.wav"}]), tmp_path / "data", cluster=HERE)
    path = Path(collect_stats(tmp_path / "data", cluster=HERE).path)
    assert {file.name for file in path.with_suffix("").iterdir()} == {"columns.parquet", "feats_shape"}
    assert collect_stats(tmp_path / "data", cluster=HERE).already_complete
