"""Hugging Face datasets on disk, written by `datasets` (in a process of its own: it is large)."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from corpora import RATE, noise, read_errors, write_audio
from s3_server import ACCESS, BUCKET, SECRET, S3Server
from source_checks import assert_samples, list_corpus, rows_of
from test_adopt import loaded
from uttershard.pipeline.errors import ConfigError, DataError
from uttershard.writers import audio_files, pack
from uttershard.writers.cluster import ClusterSettings
from uttershard.writers.probe import probe_files

HERE = ClusterSettings(n_workers=2, options={"processes": False})


def encoded(seed: int, kind: str = "FLAC") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, noise(0.1, seed), RATE, format=kind)
    return file.getvalue()


WRITER = """
import sys
from pathlib import Path
import datasets
files, target = Path(sys.argv[1]), Path(sys.argv[2])

def dataset(rows):
    # Cast, since encoding audio would need torchcodec; what is written is the same.
    return datasets.Dataset.from_dict({
        "id": [f"utt{row}" for row in range(rows)],
        "audio": [{"bytes": (files / f"{row}.flac").read_bytes(), "path": f"file{row}.flac"} for row in range(rows)],
        "sentence": [f"text {row}" for row in range(rows)],
        "speaker_id": list(range(rows)),
    }).cast_column("audio", datasets.Audio(decode=False))

def classes(rows):
    labels = datasets.ClassLabel(names=["yes", "no"])
    numbers = {"word": [row % 2 for row in range(rows)], "language": [-1, None, *[1] * (rows - 2)]}
    added = dataset(rows)
    for name, values in numbers.items():
        added = added.add_column(name, values).cast_column(name, labels)
    return added

classes(4).to_parquet(target / "classes.parquet")
classes(4).save_to_disk(target / "classes")

dataset(7).to_parquet(target / "one" / "data" / "train-00000-of-00001.parquet", batch_size=3)
for split in ("train", "test"):
    dataset(7).to_parquet(target / "splits" / f"{split}-00000-of-00001.parquet")
dataset(7).save_to_disk(target / "saved", num_shards=2)
datasets.DatasetDict({"train": dataset(7), "test": dataset(2)}).save_to_disk(target / "dict")
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files, target = tmp_path_factory.mktemp("files"), tmp_path_factory.mktemp("written")
    for row in range(7):
        (files / f"{row}.flac").write_bytes(encoded(row))
    for folder in ("one/data", "splits"):
        (target / folder).mkdir(parents=True)
    environment = {"HF_HOME": str(files / "home"), "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin", "HOME": str(files)}
    # -P: the folder of the tests is not searched for modules.
    command = [sys.executable, "-P", "-c", WRITER, str(files), str(target)]
    subprocess.run(command, check=True, env=environment, timeout=120, cwd=files)
    return target


def check(address: Path | str, *, from_: str | None = None, **options: str) -> None:
    listing = list_corpus(address, from_, **options)
    rows = rows_of(listing)
    assert not listing.refused
    assert list(rows) == [f"utt{row}" for row in range(7)]
    for row in range(7):
        assert (rows[f"utt{row}"]["text"], rows[f"utt{row}"]["metadata"]) == (f"text {row}", f'{{"speaker_id":{row}}}')
        assert_samples(rows[f"utt{row}"], noise(0.1, row))


def test_parquet(written: Path) -> None:
    check(written / "one")
    check(written / "one" / "data" / "train-*.parquet")
    check(written / "one" / "data" / "train-00000-of-00001.parquet")


def test_save_to_disk(written: Path) -> None:
    check(written / "saved")
    row = rows_of(list_corpus(written / "saved"))["utt3"]
    assert "#range=" in row["uri"]
    assert row["size"] == len(encoded(3))


@pytest.mark.parametrize("place", ["classes", "classes.parquet"])
def test_classes_are_their_names(written: Path, place: str) -> None:
    rows = rows_of(list_corpus(written / place, text="word"))
    assert [row["text"] for row in rows.values()] == ["yes", "no", "yes", "no"]
    metadata = [json.loads(row["metadata"]) for row in rows.values()]
    assert [fields.get("language", "nothing") for fields in metadata] == [-1, "nothing", "no", "no"]


def test_splits(written: Path) -> None:
    check(written / "dict", split="train")
    with pytest.raises(ConfigError, match="option split which of train, test"):
        list_corpus(written / "dict")
    check(written / "splits", split="train")
    with pytest.raises(ConfigError, match="several splits"):
        list_corpus(written / "splits")


def test_paths_instead_of_bytes(tmp_path: Path) -> None:
    write_audio(tmp_path / "clips" / "a.wav", 0.1)
    audio = pa.array(
        [{"bytes": None, "path": "clips/a.wav"}, {"bytes": None, "path": "clips/b.wav"}],
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    )
    pq.write_table(pa.table({"audio": audio, "text": ["hi", "gone"]}), tmp_path / "t.parquet")
    listing = list_corpus(tmp_path / "t.parquet")
    assert_samples(rows_of(listing)["a"], noise(0.1))
    assert [refusal.key for refusal in listing.refused] == ["b"]


AUDIO = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def test_rows_with_bytes_with_a_path_with_both_and_with_none(tmp_path: Path) -> None:
    values = [
        {"bytes": encoded(0), "path": None},
        {"bytes": None, "path": "p.wav"},
        {"bytes": encoded(2), "path": "nowhere/b.flac"},
        {"bytes": None, "path": None},
        None,
        {"bytes": b"", "path": "e.flac"},
    ]
    table = pa.table({"id": ["o", "p", "b", "n", "null", "e"], "audio": pa.array(values, AUDIO)})
    pq.write_table(table, tmp_path / "t.parquet")
    for address in (tmp_path / "t.parquet", save_stream(tmp_path / "saved", table)):
        write_audio(tmp_path / "p.wav", 0.1, seed=1)
        write_audio(tmp_path / "saved" / "p.wav", 0.1, seed=1)
        target = tmp_path / f"out-{address.name}"
        summary = pack(address, target, from_="hf", max_errors=3, cluster=HERE, shards=2)
        assert (summary.utterances, summary.refused) == (3, 3)
        assert {error["key"] for error in read_errors(target)} == {"n", "null", "e"}
        found = loaded(target)
        for seed, key in enumerate(("o", "p", "b")):
            np.testing.assert_array_equal(found[key][0], noise(0.1, seed) / np.float32(32768))


def save_stream(folder: Path, table: pa.Table) -> Path:
    """Write what `save_to_disk` does: a stream of batches and its list of files."""
    folder.mkdir()
    with pa.ipc.new_stream(str(folder / "data-00000-of-00001.arrow"), table.schema) as stream:
        stream.write_table(table, max_chunksize=2)
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
    (folder / "state.json").write_text(json.dumps(state), "utf-8")
    return folder


@pytest.mark.parametrize("name", ["bytes", "path"])
def test_structs_of_one_field(tmp_path: Path, name: str) -> None:
    write_audio(tmp_path / "0.wav", 0.1)
    value = {"bytes": encoded(0), "path": "0.wav"}[name]
    kind = pa.struct([(name, {"bytes": pa.binary(), "path": pa.string()}[name])])
    table = pa.table({"id": ["a"], "audio": pa.array([{name: value}], kind)})
    pq.write_table(table, tmp_path / "t.parquet")
    for address in (tmp_path / "t.parquet", save_stream(tmp_path / "saved", table)):
        write_audio(tmp_path / "saved" / "0.wav", 0.1)
        assert_samples(rows_of(list_corpus(address, "hf"))["a"], noise(0.1))


def test_a_row_group_is_read_once_a_shard(tmp_path: Path) -> None:
    rows, groups, shards = 24, 6, 2
    audio = pa.array([{"bytes": encoded(row), "path": f"{row}.flac"} for row in range(rows)], AUDIO)
    pq.write_table(pa.table({"audio": audio}), tmp_path / "t.parquet", row_group_size=rows // groups)
    audio_files._row_group.cache_clear()
    one = ClusterSettings(n_workers=1, options={"processes": False})
    pack(tmp_path / "t.parquet", tmp_path / "out", cluster=one, shards=shards)
    assert audio_files._row_group.cache_info().misses <= groups * (1 + shards)
    found = loaded(tmp_path / "out")
    for row in range(rows):
        np.testing.assert_array_equal(found[str(row)][0], noise(0.1, row) / np.float32(32768))


def test_a_damaged_row_group_is_read_once_by_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*arguments: Any, **_: Any) -> Any:
        reads.append(arguments[1])
        raise pa.ArrowInvalid("damaged")

    reads: list[int] = []
    audio = pa.array([{"bytes": encoded(row), "path": f"{row}.flac"} for row in range(6)], AUDIO)
    pq.write_table(pa.table({"audio": audio}), tmp_path / "t.parquet", row_group_size=3)
    uris = list_corpus(tmp_path / "t.parquet").utterances["uri"].to_pylist()
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", read)
    reasons = probe_files(uris).reasons
    assert [f"row group {row // 3} of " in str(reasons[row]) for row in range(6)] == [True] * 6
    assert reads == [0, 1]


def test_a_damaged_row_group_costs_its_own_rows_only(tmp_path: Path) -> None:
    values = [{"bytes": encoded(row), "path": f"{row}.flac"} for row in range(6)]
    table = pa.table({"audio": pa.array(values, AUDIO)})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=2, compression="snappy", use_dictionary=False)
    whole = (tmp_path / "t.parquet").read_bytes()
    columns = pq.read_metadata(tmp_path / "t.parquet").row_group(1)

    def damage(column: int) -> None:
        data, about = bytearray(whole), columns.column(column)
        end = about.data_page_offset + about.total_compressed_size
        for place in range(about.data_page_offset, end):
            data[place] ^= 0xFF
        (tmp_path / "t.parquet").write_bytes(data)

    damage(0)
    summary = pack(tmp_path / "t.parquet", tmp_path / "out", max_errors=2, cluster=HERE, shards=2)
    assert (summary.utterances, summary.refused) == (4, 2)
    errors = {error["key"]: error["reason"] for error in read_errors(tmp_path / "out")}
    assert errors.keys() == {"2", "3"}
    assert all(f"row group 1 of {tmp_path / 't.parquet'} is damaged" in reason for reason in errors.values())
    damage(1)
    with pytest.raises(DataError, match=r"t\.parquet: row group 1 is damaged .*: download it again"):
        list_corpus(tmp_path / "t.parquet")


def test_damaged_text_and_a_cut_stream_are_named(tmp_path: Path) -> None:
    values = [{"bytes": encoded(row), "path": f"{row}.flac"} for row in range(4)]
    table = pa.table({"audio": pa.array(values, AUDIO), "text": [f"text {row}" for row in range(4)]})
    parquet, arrow = tmp_path / "t.parquet", save_stream(tmp_path / "saved", table) / "data-00000-of-00001.arrow"
    pq.write_table(table, parquet, row_group_size=2, compression="none", use_dictionary=False, write_statistics=False)
    whole = arrow.read_bytes()
    for file, place in ((parquet, "row group"), (arrow, "batch")):
        file.write_bytes(file.read_bytes().replace(b"text 3", b"tex\xff 3"))
        with pytest.raises(DataError, match=rf"{file.name}: {place} 1 is damaged .*Invalid UTF8.*: download it again"):
            list_corpus(file.parent if file is arrow else file, "hf")
    arrow.write_bytes(whole[: whole.rindex(b"fLaC")])
    with pytest.raises(DataError, match=rf"{arrow.name}: batch 1 is damaged .*: download it again"):
        list_corpus(arrow.parent, "hf")
    arrow.unlink()
    with pytest.raises(DataError, match=rf"{arrow.name}: does not exist"):
        list_corpus(arrow.parent, "hf")


def test_without_statistics_the_rows_say_where_their_audio_is(tmp_path: Path) -> None:
    write_audio(tmp_path / "p.wav", 0.1, seed=1)
    values = [{"bytes": encoded(0), "path": "b.flac"}, {"bytes": None, "path": "p.wav"}]
    pq.write_table(pa.table({"audio": pa.array(values, AUDIO)}), tmp_path / "t.parquet", write_statistics=False)
    rows = rows_of(list_corpus(tmp_path / "t.parquet"))
    assert_samples(rows["b"], noise(0.1, 0))
    assert_samples(rows["p"], noise(0.1, 1))


def test_in_a_store(written: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    filesystem = s3.filesystem()
    for folder in ("one", "splits", "saved", "dict"):
        filesystem.put(str(written / folder), f"{BUCKET}/hf/{folder}", recursive=True)
    address = f"s3://{BUCKET}/hf"
    check(f"{address}/one", from_="hf")
    check(f"{address}/splits", from_="hf", split="train")
    check(f"{address}/saved", from_="hf")
    check(f"{address}/dict", from_="hf", split="train")
    check(f"{address}/one/data/train-*.parquet")
    with pytest.raises(ConfigError, match="several splits"):
        list_corpus(f"{address}/splits", "hf")


def test_no_audio_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["hi"]}), tmp_path / "t.parquet")
    with pytest.raises(ConfigError, match="0 columns of audio"):
        list_corpus(tmp_path / "t.parquet")
