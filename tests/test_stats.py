"""Statistics: those of a plain loop, the same for any split, and never those of another dataset or other settings."""

import json
import shutil
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import sentencepiece
import soundfile
import stats_functions
import torch
from corpora import RATE, files_of, noise, write_jsonl
from numpy.typing import NDArray
from uttershard.pipeline import Fbank, GlobalCmvn, ShardLoader, ShardSet
from uttershard.pipeline.dataset.stats import load_stats, settings_digest
from uttershard.pipeline.errors import ConfigError, DataError
from uttershard.pipeline.reading.convert import mix_channels, resample, to_float32
from uttershard.writers import StatsSettings, collect_stats, pack
from uttershard.writers.cluster import ClusterSettings
from uttershard.writers.progress import Done
from uttershard.writers.stats.moments import Moments

HERE = ClusterSettings(n_workers=1, options={"processes": False})
"""A worker in this process, which starts at once; what depends on processes says workers=."""

OWN = StatsSettings(features="stats_functions:powers", tokenizer="stats_functions:characters", columns=("speaker",))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three speakers: noise, a silent part, a clipped one, two rates, two channels, one too short for a frame."""
    folder = tmp_path_factory.mktemp("corpus")
    records = []
    for number in range(30):
        rate = 8_000 if number % 7 == 0 else RATE
        samples = noise(0.3 + 0.05 * number, seed=number, rate=rate, channels=2 if number == 5 else 1)
        if number == 3:
            samples[: len(samples) // 2] = 0
        if number == 4:
            samples[100:110] = 32767
            samples[200:205] = -32768
        if number == 6:
            samples = samples[:50]
        name = f"utt {number:02d} %" if number == 9 else f"utt{number:02d}"
        path = folder / f"{number}.flac"
        soundfile.write(path, samples, rate)
        records.append({"id": name, "audio_filepath": str(path), "text": "word " * number, "speaker": f"s{number % 3}"})
    return write_jsonl(folder / "train.jsonl", records)


@pytest.fixture(scope="module")
def dataset(corpus: Path) -> Path:
    """Packed into eight shards."""
    target = corpus.parent / "packed"
    pack(corpus, target, shards=8, columns=("speaker",), cluster=HERE)
    return target


def audio_of(corpus: Path) -> dict[str, tuple[NDArray[np.int16], int]]:
    """Read the corpus by soundfile alone."""
    records = [json.loads(line) for line in corpus.read_text().splitlines()]
    return {record["id"]: soundfile.read(record["audio_filepath"], dtype="int16") for record in records}


def test_equal_to_a_plain_loop(corpus: Path, dataset: Path, tmp_path: Path) -> None:
    settings = replace(OWN, sample_rate=None)
    stats = collect_stats(str(dataset), settings, out=str(tmp_path), cluster=HERE).stats
    frames, clipped, total, silent, windows = [], 0, 0, 0, 0
    for samples, rate in audio_of(corpus).values():
        mono = samples.astype(np.float64)
        mono = np.rint(mono.mean(axis=1)).astype(np.int16) if mono.ndim > 1 else mono
        frames.append(stats_functions.powers((mono / 32768).astype(np.float32), rate))
        clipped += int(((samples == 32767) | (samples == -32768)).sum())
        total += samples.size
        size = min(len(samples), rate // 100)
        for start in range(0, len(samples) // size * size, size):
            power = np.mean((samples[start : start + size].astype(np.float64) / 32768) ** 2)
            silent += power < 1e-6
            windows += 1
    expected = np.concatenate(frames)
    assert stats.body["features"]["frames"] == len(expected)
    np.testing.assert_allclose(stats.mean, expected.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(stats.variance, expected.var(axis=0), rtol=1e-9)
    assert stats.body["clipping"] == clipped / total
    assert clipped >= 15
    assert stats.body["clipped_utterances"] == 1
    assert stats.body["silence"] == silent / windows
    assert 0 < silent < windows


def test_hours_lengths_and_tokens(corpus: Path, dataset: Path, tmp_path: Path) -> None:
    stats = collect_stats(str(dataset), OWN, out=str(tmp_path), cluster=HERE).stats
    records = [json.loads(line) for line in corpus.read_text().splitlines()]
    lengths = {key: len(samples) / rate for key, (samples, rate) in audio_of(corpus).items()}
    hours = dict.fromkeys(("s0", "s1", "s2"), 0.0)
    for record in records:
        hours[record["speaker"]] += lengths[record["id"]] / 3600
    found = {row["value"]: row["hours"] for row in stats.body["columns"]["speaker"]}
    assert found == pytest.approx(hours, rel=1e-12)
    bars = np.bincount([int(length) for length in lengths.values()]).tolist()
    assert stats.body["histograms"]["seconds"] == {"width": 1.0, "counts": bars}
    tokens = {record["id"]: len(record["text"]) for record in records}
    assert stats.body["tokens"] == sum(tokens.values())
    assert stats.body["histograms"]["tokens"]["counts"] == np.bincount([n // 10 for n in tokens.values()]).tolist()
    table = ShardSet.open(str(dataset)).index(["key", "tokens", "num_samples", "clipping"], stats=stats.path)
    assert dict(zip(table["key"].to_pylist(), table["tokens"].to_pylist(), strict=True)) == tokens
    assert table.column_names == ["key", "tokens", "num_samples", "clipping"]
    assert sum(share > 0 for share in table["clipping"].to_pylist()) == 1


def test_fbank_is_what_a_trainer_computes(corpus: Path, dataset: Path, tmp_path: Path) -> None:
    settings = StatsSettings(feature_options={"num_mel_bins": 23}, sample_rate=RATE)
    stats = collect_stats(str(dataset), settings, out=str(tmp_path), cluster=HERE).stats
    fbank, lines, frames = Fbank(num_mel_bins=23), {}, []
    for key, (samples, rate) in audio_of(corpus).items():
        audio = torch.from_numpy(resample(to_float32(mix_channels(samples, 1)), rate, RATE).copy())
        features, lengths = fbank(audio[None], torch.tensor([len(audio)]))
        frames.append(features[0, : int(lengths[0])].double().numpy())
        lines[key.replace("%", "%25").replace(" ", "%20")] = f"{int(lengths[0])},23"
    text = (Path(stats.path).with_suffix("") / "feats_shape").read_text()
    shapes = dict(line.split() for line in text.splitlines())
    assert len(shapes) == 30
    assert shapes == lines
    assert shapes["utt06"] == "0,23", "shorter than a window"
    sums = np.load(Path(stats.path).with_suffix("") / "feats_stats.npz")
    assert sums["count"] == sum(int(shape.partition(",")[0]) for shape in shapes.values())
    np.testing.assert_allclose(sums["sum"] / sums["count"], stats.mean, rtol=1e-12)
    np.testing.assert_allclose(np.concatenate(frames).mean(axis=0), stats.mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(np.concatenate(frames).var(axis=0), stats.variance, rtol=1e-9)
    digest = ShardSet.open(dataset).digest
    npz = Path(stats.path).with_suffix("") / "feats_stats.npz"
    normalise = GlobalCmvn(npz, transform=fbank, dataset_digest=digest)
    with pytest.raises(DataError, match=r"computed otherwise \(num_mel_bins: 23 there, 80 here\)"):
        GlobalCmvn(npz, transform=Fbank())
    normal, _ = normalise(torch.from_numpy(frames[-1]).float()[None], torch.tensor([len(frames[-1])]))
    expected = (frames[-1] - stats.mean) / np.sqrt(stats.variance)
    np.testing.assert_allclose(normal[0].numpy(), expected, atol=2e-3)


def test_the_same_for_any_number_of_workers_and_any_split(corpus: Path, dataset: Path, tmp_path: Path) -> None:
    one = collect_stats(str(dataset), OWN, out=str(tmp_path / "one"), workers=1).stats
    two = collect_stats(str(dataset), OWN, out=str(tmp_path / "two"), workers=2).stats
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    for shards in (1, 30):
        other = tmp_path / f"packed{shards}"
        pack(corpus, other, shards=shards, seed=shards, columns=("speaker",), cluster=HERE)
        split = collect_stats(str(other), OWN, cluster=HERE).stats
        np.testing.assert_allclose(split.mean, one.mean, rtol=1e-9)
        np.testing.assert_allclose(split.variance, one.variance, rtol=1e-9)
        np.testing.assert_allclose(split.variance[0], split.variance[2], rtol=1e-6, err_msg="lost beside a large mean")
        for name in ("silence", "clipping", "histograms", "tokens", "columns"):
            assert split.body[name] == one.body[name]
    assert two.body == one.body


@pytest.mark.parametrize("cuts", [(0, 1000), (1, 2, 3, 1000), (500, 1000), (999, 1000), (0, 0, 1000)])
def test_moments_merge_as_one(cuts: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).normal([0, 1e4, -5, 1e6], [1, 1, 1e3, 1e-6], (1000, 4))
    values[:, 3] += np.linspace(0, 1e-5, 1000)  # parts of other means: what rounding takes from 1e6 matters
    merged, begin = Moments.of(values[:0]), 0
    for cut in cuts:
        merged = merged.merge(Moments.of(values[begin:cut]))
        begin = cut
    np.testing.assert_allclose(merged.mean, values.mean(axis=0), rtol=1e-9)
    exact = [statistics.pvariance(column) for column in values.T.tolist()]
    np.testing.assert_allclose(merged.variance, exact, rtol=1e-9)
    assert Moments.from_json(json.loads(json.dumps(merged.as_json()))).squares.tolist() == merged.squares.tolist()


def test_other_settings_make_other_files(dataset: Path, tmp_path: Path) -> None:
    first = collect_stats(str(dataset), OWN, out=str(tmp_path), cluster=HERE)
    louder = replace(OWN, silence_dbfs=-20.0)
    second = collect_stats(str(dataset), louder, out=str(tmp_path), cluster=HERE)
    assert first.path != second.path
    assert second.stats.body["silence"] > first.stats.body["silence"]
    assert collect_stats(str(dataset), OWN, out=str(tmp_path), cluster=HERE).already_complete
    with pytest.raises(DataError, match=r"other settings \(silence_dbfs: -60\.0 there, -20\.0 wanted\)"):
        load_stats(first.path, ShardSet.open(str(dataset)).digest, louder.identity())


def test_stale_statistics_are_refused_and_made_again(corpus: Path, dataset: Path, tmp_path: Path) -> None:
    stats = collect_stats(str(dataset), OWN, out=str(tmp_path / "stats"), cluster=HERE)
    changed = tmp_path / "packed"
    pack(corpus, changed, shards=4, columns=("speaker",), cluster=HERE)
    digest = ShardSet.open(str(changed)).digest
    with pytest.raises(DataError) as refused:
        load_stats(stats.path, digest)
    assert ShardSet.open(str(dataset)).digest in str(refused.value)
    assert digest in str(refused.value)
    with pytest.raises(DataError, match="stale"):
        ShardSet.open(str(changed)).index(["tokens"], stats=stats.path)
    again = collect_stats(str(changed), OWN, out=str(tmp_path / "stats"), cluster=HERE)
    assert not again.already_complete
    assert again.path == stats.path
    assert load_stats(again.path, digest).body == again.stats.body


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "not JSON"),
        (lambda text: json.dumps({"count": 3}), "not statistics of uttershard"),
        (lambda text: text.replace('"format_version": 2', '"format_version": 9'), "format version 9"),
        (lambda text: json.dumps({**json.loads(text), "files": {}}), "changed by hand"),
        (lambda text: text.replace('"utterances": 30', '"utterances": 31', 1), "changed by hand"),
        (lambda text: "[" * 100_000, "not JSON"),
        (lambda text: "", "not JSON"),
        (lambda text: "PK\x03\x04", "an .npz file, .*: give the address of the json"),
    ],
)
def test_half_written_and_foreign_files(dataset: Path, tmp_path: Path, damage: Any, message: str) -> None:
    stats = collect_stats(str(dataset), OWN, out=str(tmp_path), cluster=HERE)
    path, before = Path(stats.path), files_of(tmp_path)
    path.write_text(damage(path.read_text()))
    with pytest.raises(DataError, match=message):
        load_stats(str(path), ShardSet.open(str(dataset)).digest).columns(["tokens"])
    assert not collect_stats(str(dataset), OWN, out=str(tmp_path), cluster=HERE).already_complete
    assert files_of(tmp_path) == before


def test_a_job_that_died_after_its_last_file_is_ended(dataset: Path, tmp_path: Path) -> None:
    stats, before = collect_stats(str(dataset), OWN, out=str(tmp_path), cluster=HERE), files_of(tmp_path)
    left = Path(stats.path).with_suffix("") / ".uttershard" / "done"
    left.mkdir(parents=True)
    (left / "000000.json").write_text("{}")
    assert collect_stats(str(dataset), OWN, out=str(tmp_path), cluster=HERE).already_complete
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("name", ["feats_stats.npz", "feats_shape", "columns.parquet"])
def test_lost_and_damaged_files_are_made_again(dataset: Path, tmp_path: Path, name: str) -> None:
    stats = collect_stats(str(dataset), OWN, out=str(tmp_path), cluster=HERE)
    path, before = Path(stats.path).with_suffix("") / name, files_of(tmp_path)
    path.unlink()
    assert not collect_stats(str(dataset), OWN, out=str(tmp_path), cluster=HERE).already_complete
    path.write_bytes(path.read_bytes()[:-1])
    assert not collect_stats(str(dataset), OWN, out=str(tmp_path), cluster=HERE).already_complete
    assert files_of(tmp_path) == before


def test_columns_of_other_statistics_are_refused(dataset: Path, tmp_path: Path) -> None:
    stats = collect_stats(str(dataset), OWN, out=str(tmp_path), cluster=HERE).stats
    columns = Path(stats.path).with_suffix("") / "columns.parquet"
    table = pq.read_table(columns)
    pq.write_table(table.slice(1), columns)
    with pytest.raises(DataError, match="not the file that"):
        stats.columns(["tokens"])
    assert not collect_stats(str(dataset), OWN, out=str(tmp_path), cluster=HERE).already_complete
    assert stats.columns(["tokens"]).num_rows == table.num_rows


def test_addresses_of_other_things(dataset: Path, tmp_path: Path) -> None:
    digest = ShardSet.open(str(dataset)).digest
    for address in (tmp_path, tmp_path / "none.json", dataset / "dataset.json", dataset / "shard-000000.parquet"):
        with pytest.raises(DataError, match="give the address of the json that `uttershard stats` wrote and printed"):
            load_stats(str(address), digest)


def test_other_statistics_by_the_same_name_are_another_plan(dataset: Path, tmp_path: Path) -> None:
    states = []
    for number, tokenizer in enumerate(("characters", "syllables")):
        settings = replace(OWN, tokenizer=f"stats_functions:{tokenizer}")
        made = Path(collect_stats(str(dataset), settings, out=str(tmp_path), cluster=HERE).path)
        renamed = made.rename(tmp_path / "mine.json")
        shutil.rmtree(tmp_path / "mine", ignore_errors=True)
        made.with_suffix("").rename(tmp_path / "mine")
        loader = ShardLoader(
            dataset, batch_bins=3000, sample_rate=RATE, channels=1, where="tokens > 20", stats=renamed, rank=0,
            world_size=1,
        )  # fmt: skip
        states.append(loader.state_dict())
        if number:
            with pytest.raises(ConfigError, match="stats"):
                loader.load_state_dict(states[0])


def test_goes_on_shard_by_shard(dataset: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(dataset, copy)
    expected = collect_stats(str(dataset), OWN, out=str(tmp_path / "whole"), cluster=HERE)
    (copy / "shard-000006.tar").rename(tmp_path / "away")
    with pytest.raises(DataError, match="shard-000006"):
        collect_stats(str(copy), OWN, out=str(tmp_path / "stats"), cluster=HERE)
    job = Path(expected.path).with_suffix("").name
    done = tmp_path / "stats" / job / ".uttershard" / "done"
    kept = {path.name: path.stat().st_mtime_ns for path in done.glob("*.json")}
    assert "000000.json" in kept
    assert "000006.json" not in kept
    # A record cut in half, one of another dataset, and one with a digit changed: they are measured again.
    (done / "000000.json").write_bytes((done / "000000.json").read_bytes()[:100])
    foreign = json.loads((done / "000001.json").read_text())
    (done / "000001.json").write_text(json.dumps({**foreign, "key": "another"}))
    record = (done / "000002.json").read_text()
    (done / "000002.json").write_text(record.replace('"samples": ', '"samples": 1'))
    (tmp_path / "away").rename(copy / "shard-000006.tar")
    times = {name: (done / name).stat().st_mtime_ns for name in kept}
    seen = dict(times)

    class Watch:
        """Looks at the records while the job runs."""

        def begin(self, phase: str, *, utterances: int | None, seconds: float | None) -> None:
            pass

        def advance(self, _: Done) -> None:
            seen.update({path.name: path.stat().st_mtime_ns for path in done.glob("*.json")})

        def end(self) -> None:
            pass

        def note(self, message: str) -> None:
            pass

    again = collect_stats(str(copy), OWN, out=str(tmp_path / "stats"), cluster=HERE, progress=Watch())
    assert again.kept_shards == len(kept) - 3
    assert files_of(tmp_path / "stats") == files_of(tmp_path / "whole")
    assert {name for name in kept if seen[name] != times[name]} == {"000000.json", "000001.json", "000002.json"}


def test_sentencepiece_counts_tokens(dataset: Path, corpus: Path, tmp_path: Path) -> None:
    model = tmp_path / "bpe"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["word word words", "worn wood", "swords"] * 20),
        model_prefix=str(model), vocab_size=20, model_type="bpe", minloglevel=9,
    )  # fmt: skip
    settings = StatsSettings(features="none", tokenizer=f"{model}.model")
    stats = collect_stats(str(dataset), settings, out=str(tmp_path / "stats"), cluster=HERE).stats
    table = ShardSet.open(str(dataset)).index(["key", "tokens"], stats=stats.path)
    processor = sentencepiece.SentencePieceProcessor(model_file=f"{model}.model")
    records = [json.loads(line) for line in corpus.read_text().splitlines()]
    expected = {record["id"]: len(processor.encode(record["text"])) for record in records}
    assert dict(zip(table["key"].to_pylist(), table["tokens"].to_pylist(), strict=True)) == expected
    digest = settings.identity()["tokenizer_digest"]
    Path(f"{model}.model").write_bytes(Path(f"{model}.model").read_bytes() + b" ")
    assert settings.identity()["tokenizer_digest"] != digest, "another model is another setting"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"features": "mfcc"}, "fbank, log_mel, none"),
        ({"features": "fbank", "sample_rate": None}, "needs a sample_rate"),
        ({"histogram_seconds": 0.0}, r"0\.01 or more"),
        ({"histogram_seconds": 1e-300}, r"0\.01 or more"),
        ({"histogram_seconds": True}, "must be a number"),
        ({"sample_rate": 10**12}, "from 1 to 10000000"),
        ({"columns": ["speaker", 3]}, "columns names 3"),
        ({"feature_options": {"sample_rate": 8000}}, "a setting of its own"),
        ({"silence_dbfs": float("nan")}, "number of decibels"),
        ({"silence_dbfs": 3}, "0 or less"),
        ({"histogram_seconds": float("nan")}, r"0\.01 or more"),
        ({"features": "none", "feature_options": {"num_mel_bins": 80}}, "takes none"),
        ({"feature_options": {"num_mel_bins": Path()}}, "numbers, strings and lists"),
        ({"features": stats_functions.powers}, "module:function"),
        ({"tokenizer": len}, "module:function"),
        ({"columns": "speaker"}, "list of names"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StatsSettings(**settings)


@pytest.mark.parametrize("option", ["num_mel_bins", "high_freq", "window_type", "use_log"])
def test_options_that_do_not_fit_are_told_before_there_is_a_worker(option: str, dataset: Path, tmp_path: Path) -> None:
    nobody = ClusterSettings("tcp://127.0.0.1:1")
    with pytest.raises(ConfigError, match=f"^{option}='x'"):
        collect_stats(dataset, StatsSettings(feature_options={option: "x"}), out=tmp_path, cluster=nobody)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (StatsSettings(columns=("gender",)), ConfigError, "no column 'gender'; there are key, offset"),
        (
            StatsSettings(feature_options={"bins": 3}),
            ConfigError,
            "no option 'bins'; it has num_mel_bins, fra",
        ),
        (StatsSettings(features="stats_functions:nothing"), ConfigError, "was imported, but has no function 'nothing'"),
        (StatsSettings(features="none", tokenizer="/nowhere.model"), ConfigError, "can't be read"),
        (StatsSettings(features="none", tokenizer=__file__), ConfigError, "no SentencePiece model .* module:function"),
        (StatsSettings(features="stats_functions:shaky"), DataError, "dimensions"),
        (StatsSettings(features="stats_functions:leaves"), DataError, "utterance .*leaves raised SystemExit: 3"),
        (StatsSettings(features="stats_functions:ragged"), DataError, "utterance .*ragged raised ValueError"),
        (StatsSettings(features="stats_functions:words"), DataError, "utterance .*words returned .*<U4 of shape"),
        (StatsSettings(features="stats_functions:complex_ones"), DataError, "utterance .*returned .*complex128"),
        (
            StatsSettings(features="stats_functions:large"),
            DataError,
            r"utterance .*large\) hold NaN, infinity, or numb",
        ),
        (StatsSettings(features="stats_imports:powers"), ConfigError, r"can't be imported \(SystemExit: no licence"),
        (StatsSettings(features="stats_functions:broken"), DataError, "utterance .*: stats_functions:broken raised Va"),
        (
            StatsSettings(features="none", tokenizer="stats_functions:broken"),
            DataError,
            "utterance .*broken raised Typ",
        ),
    ],
)
def test_what_does_not_fit_the_dataset(
    dataset: Path, tmp_path: Path, settings: StatsSettings, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        collect_stats(str(dataset), settings, out=str(tmp_path), cluster=HERE)
    assert not list(tmp_path.glob("*.json"))


def test_what_was_not_measured_has_no_files(dataset: Path, tmp_path: Path) -> None:
    settings = StatsSettings(features="none")
    folder = tmp_path / settings_digest(settings.identity())
    folder.mkdir()
    for name in ("feats_shape", "feats_stats.npz"):
        (folder / name).write_bytes(b"of a dataset that was here before")
    stats = collect_stats(str(dataset), settings, out=str(tmp_path), cluster=HERE).stats
    assert [path.name for path in folder.iterdir()] == ["columns.parquet"]
    with pytest.raises(ConfigError, match="--tokenizer"):
        stats.columns(["tokens"])
    with pytest.raises(ConfigError, match="without --features none"):
        stats.columns(["feature_frames"])
    assert stats.body["features"] == {"frames": 0, "dimensions": 0, "mean": [], "variance": []}
