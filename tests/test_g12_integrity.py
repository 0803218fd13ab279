"""G12 integrity: whatever is cut, flipped, swapped or lost is named with shard, id and offset; never fewer samples."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packed import Packed, keys_of
from uttershard.pipeline import ShardSet
from uttershard.pipeline.dataset.digest import digest_bytes, span_checksum
from uttershard.pipeline.dataset.manifest import ShardEntry, encode_manifest
from uttershard.pipeline.dataset.sidecar import decode_sidecar, encode_sidecar
from uttershard.pipeline.errors import DataError
from uttershard.writers import verify

HANDS: tuple[dict[str, Any], ...] = (
    {"threads": 2},
    {"num_workers": 1, "multiprocessing_context": "fork"},
)
# The copy is brought back to what it was after each example.
RESTORED = settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def row_at(dataset: Packed, shard: int, position: int) -> dict[str, Any] | None:
    """The sidecar's row of the utterance that a byte of a tar belongs to."""
    table, _ = ShardSet.open(dataset.address).sidecar(shard)
    for row in table.to_pylist():
        if row["offset"] <= position < row["offset"] + row["nbytes"]:
            return dict(row)
    return None


def flip(path: Path, position: int, bit: int = 0) -> None:
    """Flip a bit in place; doing it again undoes it."""
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@RESTORED
def test_verify_finds_every_flipped_bit_of_a_tar(broken: Packed, place: float, bit: int) -> None:
    tar = broken.tar(1)
    position = int(place * tar.stat().st_size)
    flip(tar, position, bit)
    report = verify(str(broken.address), workers=1)
    flip(tar, position, bit)
    row = row_at(broken, 1, position)
    (problem,) = report.problems
    assert not report.ok
    assert problem.shard == tar.name
    assert (problem.key, problem.offset) == ((row["key"], row["offset"]) if row else (None, None))


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@RESTORED
def test_the_loader_refuses_every_flipped_bit_that_it_reads(broken: Packed, place: float, bit: int) -> None:
    tar = broken.tar(1)
    row = row_at(broken, 1, int(place * tar.stat().st_size))
    if row is None:  # the end mark
        return
    position = row["offset"] + int(place * row["nbytes"])
    flip(tar, position, bit)
    try:
        with pytest.raises(DataError) as caught:
            list(broken.loader(threads=1))
    finally:
        flip(tar, position, bit)
    message = str(caught.value)
    assert str(tar) in message
    assert repr(row["key"]) in message
    assert f"offset {row['offset']}" in message


@pytest.mark.parametrize("hands", HANDS, ids=str)
def test_batches_before_the_damaged_one_arrive_whole(broken: Packed, hands: dict[str, Any]) -> None:
    whole = keys_of(broken.loader())
    bad = whole[3][0]
    ((shard, row),) = [
        (shard, row)
        for shard in range(4)
        for row in ShardSet.open(broken.address).sidecar(shard)[0].to_pylist()
        if row["key"] == bad
    ]
    flip(broken.tar(shard), row["offset"] + 600)
    loader = broken.loader(**hands)
    received = []
    with pytest.raises(DataError, match=r"bytes are damaged .*checksum"):
        for batch in loader:
            received.append(tuple(batch.keys))
    assert received == whole[:3]
    assert loader.state_dict()["step"] == 3
    flip(broken.tar(shard), row["offset"] + 600)
    loader.load_state_dict(loader.state_dict())
    assert keys_of(loader) == whole[3:]  # the same loader, once the tar is mended


def test_verify_and_the_loader_like_what_is_whole(flac: Packed) -> None:
    report = verify(str(flac.address), deep=True, workers=2)
    assert (report.ok, report.problems, report.utterances) == (True, (), len(flac.sources))


Damage = Callable[[Packed], None]


def _cut(dataset: Packed) -> None:
    os.truncate(dataset.tar(1), dataset.tar(1).stat().st_size // 2)


def _cut_end_mark(dataset: Packed) -> None:
    os.truncate(dataset.tar(1), dataset.tar(1).stat().st_size - 1)


def _append(dataset: Packed) -> None:
    with dataset.tar(1).open("ab") as file:
        file.write(bytes(10_240))


def _swap_sidecars(dataset: Packed) -> None:
    first, second = dataset.sidecar(0), dataset.sidecar(1)
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)


def _stale_sidecar(dataset: Packed) -> None:
    table, info = decode_sidecar(dataset.sidecar(1).read_bytes(), None, "")
    dataset.sidecar(1).write_bytes(encode_sidecar(table.slice(0, table.num_rows - 1), info))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_cut, r"shard-000001.tar: \d+ bytes, the manifest says \d+: it has been cut"),
        (_cut_end_mark, r"shard-000001.tar: \d+ bytes, the manifest says \d+: it has been cut"),
        (_append, r"shard-000001.tar: \d+ bytes, the manifest says \d+: it was replaced or appended to"),
        (lambda dataset: dataset.tar(1).unlink(), r"shard-000001.tar: (missing|does not exist)"),
        (lambda dataset: dataset.tar(1).write_bytes(b""), r"shard-000001.tar: 0 bytes"),
        (lambda dataset: dataset.sidecar(1).unlink(), r"shard-000001.parquet: does not exist"),
        (_swap_sidecars, r"shard-00000[01].parquet: not the sidecar that the manifest lists"),
        (_stale_sidecar, r"shard-000001.parquet: not the sidecar that the manifest lists"),
    ],
    ids=["cut", "cut end mark", "appended", "no tar", "empty tar", "no sidecar", "swapped sidecars", "stale sidecar"],
)
def test_what_shows_without_reading_is_refused_before_the_first_step(
    broken: Packed, damage: Damage, message: str
) -> None:
    damage(broken)
    with pytest.raises(DataError, match=message):
        broken.loader()
    report = verify(str(broken.address), workers=1)
    assert not report.ok
    assert {problem.shard for problem in report.problems} <= {"shard-000000.tar", "shard-000001.tar"}


def test_no_manifest_is_no_dataset(broken: Packed) -> None:
    (broken.address / "dataset.json").unlink()
    for opened in (broken.loader, lambda: verify(str(broken.address))):
        with pytest.raises(DataError, match="no dataset at"):
            opened()


def rewrite(dataset: Packed, shard: int, change: Callable[[bytearray, list[dict[str, Any]]], None]) -> None:
    """Change a tar, and rows of its sidecar, so that all digests and sizes agree again."""
    opened = ShardSet.open(dataset.address)
    table, info = opened.sidecar(shard)
    rows, tar = table.to_pylist(), bytearray(dataset.tar(shard).read_bytes())
    change(tar, rows)
    info = replace(info, tar_digest=digest_bytes(bytes(tar)))
    sidecar = encode_sidecar(type(table).from_pylist(rows, table.schema), info)
    entry: ShardEntry = replace(
        opened.manifest.shards[shard],
        tar_digest=info.tar_digest,
        sidecar_bytes=len(sidecar),
        sidecar_digest=digest_bytes(sidecar),
    )
    shards = tuple(entry if number == shard else other for number, other in enumerate(opened.manifest.shards))
    dataset.tar(shard).write_bytes(tar)
    dataset.sidecar(shard).write_bytes(sidecar)
    (dataset.address / "dataset.json").write_bytes(encode_manifest(replace(opened.manifest, shards=shards)))


@pytest.mark.parametrize("hands", HANDS, ids=str)
def test_a_tar_of_the_same_size_that_was_put_in_its_place(broken: Packed, hands: dict[str, Any]) -> None:
    """The sidecar's utterances are not there; somebody else's are."""
    tar, rows = bytearray(broken.tar(1).read_bytes()), ShardSet.open(broken.address).sidecar(1)[0].to_pylist()
    first = tar[: rows[0]["nbytes"]]
    tar[: len(tar) - len(first)] = tar[len(first) :]
    broken.tar(1).write_bytes(tar)
    with pytest.raises(DataError, match=r"not the one that the sidecar describes.*uttershard index"):
        list(broken.loader(**hands))
    report = verify(str(broken.address), workers=1)
    # The last one is still where it was, since the tar has to keep its size.
    assert {problem.key for problem in report.problems} >= {row["key"] for row in rows[:-1]}


def test_the_utterance_of_another_id_is_found(broken: Packed) -> None:
    def rename(tar: bytearray, rows: list[dict[str, Any]]) -> None:
        rows[0]["key"] = "somebody else"

    rewrite(broken, 1, rename)
    report = verify(str(broken.address), workers=1)
    assert {problem.key for problem in report.problems} == {"somebody else"}
    assert any("belongs to another id" in problem.what for problem in report.problems)


def test_a_gap_between_utterances_is_found(broken: Packed) -> None:
    def leave_out(tar: bytearray, rows: list[dict[str, Any]]) -> None:
        rows[1]["offset"] += 512
        rows[1]["nbytes"] -= 512
        span = tar[rows[1]["offset"] : rows[1]["offset"] + rows[1]["nbytes"]]
        rows[1]["xxh3"] = span_checksum(bytes(span))

    rewrite(broken, 1, leave_out)
    problems = verify(str(broken.address), workers=1).problems
    assert [problem.what for problem in problems if "does not follow from its rows" in problem.what]


@pytest.mark.parametrize("hands", HANDS, ids=str)
@pytest.mark.parametrize("change", [-1, 1, 160])
def test_audio_that_decodes_to_another_length_is_refused(broken: Packed, change: int, hands: dict[str, Any]) -> None:
    """All checksums are right; only decoding tells."""

    def mislabel(tar: bytearray, rows: list[dict[str, Any]]) -> None:
        rows[2]["num_samples"] += change

    rewrite(broken, 1, mislabel)
    row = ShardSet.open(broken.address).sidecar(1)[0].to_pylist()[2]
    with pytest.raises(DataError) as caught:
        list(broken.loader(**hands))
    assert repr(row["key"]) in str(caught.value)
    assert f"offset {row['offset']}" in str(caught.value)
    shallow, deep = (verify(str(broken.address), deep=deep, workers=1) for deep in (False, True))
    assert not any("decode" in problem.what for problem in shallow.problems)
    assert [problem.key for problem in deep.problems if "does not decode" in problem.what] == [row["key"]]


@pytest.mark.parametrize("member", ["json", "audio"])
def test_a_member_without_sense_is_named(broken: Packed, member: str) -> None:
    """Not damage on the way, since all checksums are right: it was written so."""

    def spoil(tar: bytearray, rows: list[dict[str, Any]]) -> None:
        span = slice(rows[0]["offset"], rows[0]["offset"] + rows[0]["nbytes"])
        mark = b'{"id"' if member == "json" else b"fLaC"
        start = tar.index(mark, span.start, span.stop)
        tar[start : start + 4] = b"\xff\xff\xff\xff"
        rows[0]["xxh3"] = span_checksum(bytes(tar[span]))

    rewrite(broken, 1, spoil)
    row = ShardSet.open(broken.address).sidecar(1)[0].to_pylist()[0]
    with pytest.raises(DataError) as caught:
        list(broken.loader(threads=1))
    assert repr(row["key"]) in str(caught.value)
    assert {problem.key for problem in verify(str(broken.address), deep=True, workers=1).problems} == {row["key"]}


@pytest.mark.parametrize("name", ["samples", "seconds", "longest_seconds"])
def test_numbers_changed_in_the_manifest_are_found(broken: Packed, name: str) -> None:
    body = json.loads((broken.address / "dataset.json").read_bytes())
    body["shards"][1][name] *= 2
    (broken.address / "dataset.json").write_text(json.dumps(body))
    (problem,) = verify(str(broken.address), workers=1).problems
    assert (problem.shard, problem.key) == ("shard-000001.tar", None)
    assert name in problem.what


# While the loader runs


@pytest.mark.parametrize("hands", HANDS, ids=str)
def test_a_tar_that_loses_its_end_while_the_loader_runs(broken: Packed, hands: dict[str, Any]) -> None:
    """Only the end mark is cut, so no byte that is read is missing: the size alone gives it away."""
    loader = broken.loader(**hands, prefetch_factor=1)
    batches = iter(loader)
    next(batches)
    for shard in range(4):
        os.truncate(broken.tar(shard), broken.tar(shard).stat().st_size - 512)
    with pytest.raises(DataError, match=r"shard-00000\d.tar: \d+ bytes, the manifest says \d+: it has been cut"):
        list(batches)


@pytest.mark.parametrize("replacement", ["gone", "renamed over"])
def test_a_tar_that_is_replaced_while_the_loader_runs(broken: Packed, tmp_path: Path, replacement: str) -> None:
    loader = broken.loader(threads=1, prefetch_factor=1)
    batches = iter(loader)
    next(batches)
    for shard in range(4):
        if replacement == "gone":
            broken.tar(shard).unlink()
        else:
            (tmp_path / "other").write_bytes(b"other")
            (tmp_path / "other").rename(broken.tar(shard))
    with pytest.raises(DataError, match=r"shard-00000\d.tar"):
        list(batches)


def test_a_worker_that_dies_of_a_cut_tar_says_so(broken: Packed) -> None:
    """A map of a file that was cut kills whoever touches it (SIGBUS): a worker, with the cause told by the trainer."""
    script = """
import os, sys
from pathlib import Path
from uttershard.pipeline import ShardLoader
from uttershard.pipeline.storage.local import LocalTars
read = LocalTars.read
def cut_then_read(storage, spans):
    spans = read(storage, spans)
    for tar in Path(sys.argv[1]).glob("*.tar"):
        os.truncate(tar, 0)
    return spans
LocalTars.read = cut_then_read
loader = ShardLoader(sys.argv[1], batch_bins=600, rank=0, world_size=1, num_workers=1, multiprocessing_context="fork")
try:
    list(loader)
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(broken.address)], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.startswith("DataError ")
    assert "0 bytes, the manifest says" in done.stdout
