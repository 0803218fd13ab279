"""Hugging Face datasets on disk, written by `datasets` (in a process of its own: it is large)."""

import io
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from corpora import RATE, noise, write_audio
from source_checks import assert_samples, list_corpus, rows_of
from uttershard.pipeline.errors import ConfigError


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


def check(address: Path | str, **options: str) -> None:
    listing = list_corpus(address, **options)
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


def test_no_audio_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["hi"]}), tmp_path / "t.parquet")
    with pytest.raises(ConfigError, match="0 columns of audio"):
        list_corpus(tmp_path / "t.parquet")
