"""Tars and Parquet with bad samples of several kinds: what is packed or adopted and what is listed are together all."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import read_errors, write_jsonl, write_lines
from test_counts_add_up import NAMES, write_files
from uttershard.pipeline import ShardSet
from uttershard.writers import index_tars, pack
from uttershard.writers.cluster import ClusterSettings

HERE = ClusterSettings(n_workers=1, options={"processes": False})


def wenet(root: Path) -> tuple[Path, int]:
    """As WeNet's make_shard_list.py writes it: the text first, then the audio."""
    files = write_files(root / "audio")
    with tarfile.open(root / "shards_000000000.tar", "w") as tar:
        for name, file in files.items():
            add(tar, f"{name}.txt", b"hi")
            tar.add(root / file, f"{name}.flac")
        add(tar, "lost.txt", b"no audio")
        add(tar, "good0.txt", b"apart")
        add(tar, "bad.txt", b"\xff\xfe")
        tar.add(root / files["good1"], "bad.flac")
    # "good0" is in two places of the tar, so that it is none: its copy stands for it.
    with tarfile.open(root / "shards_000000001.tar", "w") as tar:
        tar.add(root / files["good0"], "again.flac")
        tar.add(root / files["good2"], "good2.flac")
    return write_lines(root / "data.list", *(str(path) for path in sorted(root.glob("*.tar")))), len(NAMES) + 4


def nemo(root: Path) -> tuple[Path, int]:
    """A tarred dataset as NeMo writes it: two tars, a manifest of all."""
    files = write_files(root / "audio")
    records = [{"audio_filepath": f"{name}.flac", "duration": 0.5, "text": "hi", "shard_id": 0} for name in files]
    with tarfile.open(root / "audio_0.tar", "w") as tar:
        for name, file in files.items():
            tar.add(root / file, f"{name}.flac")
    with tarfile.open(root / "audio_1.tar", "w") as tar:
        tar.add(root / files["good0"], "unlisted.flac")
        tar.add(root / files["good1"], "good1.flac")
    more = [
        {"audio_filepath": "gone.flac", "duration": 0.5, "text": "hi", "shard_id": 1},
        {"audio_filepath": "good1.flac", "duration": 0.5, "text": "the id is there twice", "shard_id": 1},
        {"audio_filepath": "good0.flac", "duration": 0.5, "text": "no such tar", "shard_id": 7},
        {"audio_filepath": 7, "shard_id": 0},
    ]
    path = write_jsonl(root / "tarred_audio_manifest.json", [*records, *more])
    path.write_text(path.read_text("utf-8") + "{\n", "utf-8")
    return path, len(NAMES) + 6


def hf(root: Path) -> tuple[Path, int]:
    files = write_files(root / "audio")
    values = [{"bytes": (root / file).read_bytes(), "path": f"{name}.flac"} for name, file in files.items()]
    more = [None, {"bytes": None, "path": "gone.flac"}, {"bytes": values[0]["bytes"], "path": "good1.flac"}]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pq.write_table(pa.table({"audio": pa.array([*values, *more], kind)}), root / "t.parquet", row_group_size=4)
    return root / "t.parquet", len(NAMES) + 3


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


MAKERS: dict[str, Callable[[Path], tuple[Path, int]]] = {"wenet": wenet, "nemo": nemo, "hf": hf}
GOOD = {"wenet": {"good1", "good2", "again"}, "nemo": {"good0", "good1", "good2"}, "hf": {"good0", "good1", "good2"}}


def check(target: Path, kind: str, summary: Any, count: int) -> None:
    errors = read_errors(target)
    assert set(ShardSet.open(str(target)).index(["key"])["key"].to_pylist()) == GOOD[kind]
    assert summary.utterances == 3
    assert summary.refused == len(errors) == count - 3, errors
    assert all(error["source"] and error["reason"] for error in errors)
    assert sum(shard["utterances"] for shard in json.loads((target / "dataset.json").read_bytes())["shards"]) == 3


@pytest.mark.parametrize("kind", MAKERS)
def test_packed(tmp_path: Path, kind: str) -> None:
    corpus, count = MAKERS[kind](tmp_path / "corpus")
    options = {"tars": str(tmp_path / "corpus" / "audio_{0..1}.tar")} if kind == "nemo" else {}
    target = tmp_path / "out"
    summary = pack(corpus, target, from_=kind, cluster=HERE, max_errors=count, shards=1, source_options=options)
    check(target, kind, summary, count)


@pytest.mark.parametrize("kind", ["wenet", "nemo"])
def test_adopted(tmp_path: Path, kind: str) -> None:
    corpus, count = MAKERS[kind](tmp_path / "corpus")
    tars, target = [str(tmp_path / "corpus" / "*.tar")], tmp_path / "out"
    manifests = str(corpus) if kind == "nemo" else None
    summary = index_tars(tars, out=str(target), naming=kind, manifests=manifests, cluster=HERE, max_errors=count)
    check(target, kind, summary, count)
