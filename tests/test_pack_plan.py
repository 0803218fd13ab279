"""The plan of a job that is lost or damaged while it is packed by: told at once, with what to do, after no retry."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from corpora import jsonl_corpus
from s3_server import BUCKET, S3Server
from uttershard.pipeline.errors import DataError
from uttershard.writers import pack
from uttershard.writers.cluster import ClusterSettings
from uttershard.writers.listing import SCHEMA
from uttershard.writers.plan import read_shard, write_plan
from uttershard.writers.progress import Done, Silent
from uttershard.writers.records import PLAN_NAME
from uttershard.writers.targets.base import Target
from uttershard.writers.targets.limits import WriteLimits
from uttershard.writers.targets.local import LocalTarget
from uttershard.writers.targets.opening import open_target

HERE = ClusterSettings(n_workers=2, options={"processes": False})
SHARDS = 12


def remove(plan: Path) -> None:
    plan.unlink()


def move_the_folder(plan: Path) -> None:
    plan.parent.rename(plan.parents[2] / "elsewhere")


def cut(plan: Path) -> None:
    plan.write_bytes(plan.read_bytes()[:-1])


def replace(plan: Path) -> None:
    write_plan(LocalTarget(plan.parents[1]), utterances(1), [np.array([0])])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (remove, "is gone, and nothing else says .*: bring it back as it was, or pack again with overwrite"),
        (move_the_folder, "is gone, and nothing else says .*: bring it back as it was, or pack again with overwrite"),
        (cut, "damaged .*; pack again with overwrite"),
        (replace, "damaged .*; pack again with overwrite"),
    ],
)
def test_told_at_once(tmp_path: Path, spoil: Callable[[Path], None], words: str) -> None:
    class Spoil(Silent):
        def advance(self, done: Done) -> None:
            if done.nbytes and not spoiled:
                spoil(tmp_path / "out" / PLAN_NAME)
                spoiled.append(spoil)

    spoiled: list[object] = []
    corpus = jsonl_corpus(tmp_path / "corpus", 24)
    with pytest.raises(DataError, match=rf"plan\.parquet: {words}"):
        pack(corpus, tmp_path / "out", shards=SHARDS, cluster=HERE, progress=Spoil())
    assert spoiled


def utterances(count: int) -> pa.Table:
    words = [f"number {number}" for number in range(count)]
    table = pa.table([words if field.type == pa.string() else [1.0] * count for field in SCHEMA], SCHEMA)
    return table.append_column("seconds", pa.array([1.0] * count))


def planned(target: Target) -> None:
    """Write a plan of two shards."""
    write_plan(target, utterances(64), [np.arange(32), np.arange(32, 64)])


def test_no_flipped_byte_gives_other_utterances(tmp_path: Path) -> None:
    (tmp_path / ".uttershard" / "tmp").mkdir(parents=True)
    target = LocalTarget(tmp_path)
    planned(target)
    expected, plan = read_shard(target, 1, None), tmp_path / PLAN_NAME
    data = plan.read_bytes()
    told = 0
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for place in range(4, footer, 23):
        spoiled = bytearray(data)
        spoiled[place] ^= 0x10
        plan.write_bytes(spoiled)
        try:
            assert read_shard(target, 1, None).equals(expected)  # it was in the other shard
        except DataError:
            told += 1
    assert told


def test_a_file_server_that_is_away_may_come_back(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_shard(LocalTarget(tmp_path / "not-mounted"), 0, None)


def test_in_a_store(s3: S3Server) -> None:
    address = f"s3://{BUCKET}/planned"
    target = open_target(address, s3.options(), WriteLimits())
    planned(target)
    listing = target.listing()
    assert listing is not None
    data = target.read(PLAN_NAME)
    assert data is not None
    worker = open_target(address, s3.options(), WriteLimits())
    assert read_shard(worker, 1, listing[PLAN_NAME]).num_rows == 32
    target.put(PLAN_NAME, data[:-20])
    with pytest.raises(DataError, match=r"plan\.parquet: is gone or was replaced .* or pack again with overwrite"):
        read_shard(worker, 1, listing[PLAN_NAME])
    target.delete(PLAN_NAME)
    for stored in (listing[PLAN_NAME], None):
        other = open_target(address, s3.options(), WriteLimits())
        with pytest.raises(DataError, match=r"plan\.parquet: is gone or was replaced .* or pack again with overwrite"):
            read_shard(other, 1, stored)
