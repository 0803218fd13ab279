"""G15 plain formats: what pack wrote is ordinary WebDataset and ordinary Parquet to tools that know nothing of us."""

from __future__ import annotations

import json
import subprocess
import tarfile
from typing import Any

import pyarrow.parquet as pq
import pytest
import soundfile
import webdataset
from packed import Packed
from uttershard.pipeline.dataset.members import member_name


@pytest.fixture(params=["flac", "wav", "stereo"])
def dataset(request: pytest.FixtureRequest) -> Packed:
    found: Packed = request.getfixturevalue(request.param)
    return found


def tars(dataset: Packed) -> list[str]:
    return sorted(str(path) for path in dataset.address.glob("*.tar"))


def test_webdataset_reads_every_utterance(dataset: Packed) -> None:
    samples = list(webdataset.WebDataset(tars(dataset), shardshuffle=False))
    found = {}
    for sample in samples:
        record = json.loads(sample["json"])
        source = dataset.sources[record.pop("id")]
        found[sample["__key__"]] = source
        (audio,) = [sample[ending] for ending in ("flac", "wav") if ending in sample]
        assert audio == source.path.read_bytes()
        assert record == source.meta
        assert sample.get("txt", b"").decode() == (source.text or "")
        assert ("txt" in sample) == (source.text is not None)
    assert found == {member_name(key): source for key, source in dataset.sources.items()}


def test_plain_ids_come_back_as_keys(flac: Packed) -> None:
    keys = {sample["__key__"] for sample in webdataset.WebDataset(tars(flac), shardshuffle=False)}
    plain = {key for key in flac.sources if key.startswith("plain-")}
    assert len(plain) == 12
    assert plain <= keys


def test_webdataset_decodes(flac: Packed) -> None:
    """With nothing but the library's own handlers for text and JSON."""
    pipeline = webdataset.WebDataset(tars(flac), shardshuffle=False).decode().to_tuple("json", "txt;flac")
    records = [record for record, _ in pipeline]
    assert {record["id"] for record in records} == set(flac.sources)


def test_tar_lists_and_unpacks(dataset: Packed, tmp_path: Any) -> None:
    names: list[str] = []
    for tar in tars(dataset):
        listed = subprocess.run(["tar", "tf", tar], capture_output=True, text=True, check=True)
        assert listed.stderr == ""
        names += listed.stdout.splitlines()
        subprocess.run(["tar", "xf", tar, "-C", str(tmp_path)], check=True)
    assert len(names) == len(set(names))
    unpacked = {path.name for path in tmp_path.iterdir()}
    assert unpacked == set(names)
    for key, source in dataset.sources.items():
        path = tmp_path / f"{member_name(key)}{source.path.suffix}"
        samples, _ = soundfile.read(path, dtype="float32")
        assert (source.samples() == samples.T).all()


def test_tarfile_reads_and_headers_are_always_the_same(dataset: Packed) -> None:
    for path in tars(dataset):
        with tarfile.open(path) as tar:
            members = tar.getmembers()
            for member in members:
                assert member.isreg()
                assert (member.mtime, member.uid, member.gid, member.mode) == (0, 0, 0, 0o444)
                assert (member.uname, member.gname) == ("bigdata", "bigdata")
            stems = [member.name.partition(".")[0] for member in members]
        # Members of one utterance are adjacent: webdataset would make two samples of it otherwise.
        runs = [stem for number, stem in enumerate(stems) if number == 0 or stems[number - 1] != stem]
        assert len(runs) == len(set(runs))


def test_any_parquet_reader_reads_the_sidecars(dataset: Packed) -> None:
    for path in tars(dataset):
        table = pq.read_table(path.replace(".tar", ".parquet"))
        assert table.column_names == [
            *("key", "offset", "nbytes", "num_samples", "sample_rate", "channels", "codec", "text_chars", "xxh3"),
            "speaker",
        ]
        with open(path, "rb") as tar:  # noqa: PTH123 - as a stranger would
            for row in table.to_pylist():
                source = dataset.sources[row["key"]]
                info = soundfile.info(source.path)
                assert (row["num_samples"], row["sample_rate"], row["channels"], row["codec"]) == (
                    info.frames,
                    info.samplerate,
                    info.channels,
                    source.path.suffix[1:],
                )
                assert row["text_chars"] == len(source.text or "")
                tar.seek(row["offset"])
                with tarfile.open(fileobj=tar, mode="r:") as members:
                    first = members.next()
                assert first is not None
                assert first.name.partition(".")[0] == member_name(row["key"])
