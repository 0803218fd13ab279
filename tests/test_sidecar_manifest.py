"""Sidecar and manifest say what was written; one that is stale, foreign, later or changed is refused by name (G12)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packed import Packed
from uttershard.pipeline import ShardSet
from uttershard.pipeline.dataset.manifest import Manifest, ShardEntry, decode_manifest, encode_manifest, shard_names
from uttershard.pipeline.dataset.sidecar import (
    FORMAT_VERSION,
    SidecarInfo,
    decode_sidecar,
    encode_sidecar,
    metadata_columns,
    sidecar_schema,
)
from uttershard.pipeline.errors import ConfigError, DataError, UttershardError

COLUMNS = {"speaker": "string", "take": "int64", "snr": "float64", "clean": "bool"}
INFO = SidecarInfo(tar_bytes=10_240, tar_digest="xxh3_128:" + "0" * 32, fingerprint="xxh3_128:" + "1" * 32)

rows = st.fixed_dictionaries(
    {
        "key": st.text(min_size=1, max_size=20),
        "offset": st.integers(0, 2**62),
        "nbytes": st.integers(0, 2**62),
        "num_samples": st.integers(0, 2**62),
        "sample_rate": st.integers(1, 2**31 - 1),
        "channels": st.integers(1, 2**15 - 1),
        "codec": st.sampled_from(["wav", "flac", "opus", "vorbis", "mp3"]),
        "text_chars": st.integers(0, 2**31 - 1),
        "xxh3": st.integers(0, 2**64 - 1),
        "speaker": st.none() | st.text(max_size=5),
        "take": st.none() | st.integers(-(2**63), 2**63 - 1),
        "snr": st.none() | st.floats(allow_nan=False),
        "clean": st.none() | st.booleans(),
    }
)


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    schema = sidecar_schema(COLUMNS)
    return pa.table([pa.array([row[name] for row in rows], schema.field(name).type) for name in schema.names], schema)


SIDECAR = encode_sidecar(
    table_of(
        [
            {
                **dict.fromkeys(
                    ("offset", "nbytes", "num_samples", "sample_rate", "channels", "text_chars", "xxh3"), 7
                ),
                **dict.fromkeys(COLUMNS),
                "key": f"utt {number}",
                "codec": "flac",
            }
            for number in range(50)
        ]
    ),
    INFO,
)


@given(rows=st.lists(rows, max_size=10))
@settings(max_examples=50)
def test_a_sidecar_comes_back_as_written(rows: list[dict[str, Any]]) -> None:
    table = table_of(rows)
    data = encode_sidecar(table, INFO)
    found, info = decode_sidecar(data, None, "here")
    assert info == INFO
    assert found.schema == table.schema
    assert found.to_pylist() == rows
    assert metadata_columns(found) == COLUMNS
    assert encode_sidecar(found, info) == data


def test_columns_come_in_the_order_asked_for() -> None:
    table, _ = decode_sidecar(SIDECAR, ["codec", "speaker", "key"], "here")
    assert table.column_names == ["codec", "speaker", "key"]
    assert table.schema.field("codec").type == pa.dictionary(pa.int8(), pa.string())


def test_an_unknown_column_is_named() -> None:
    with pytest.raises(ConfigError, match="here: no column 'speeker'; it has key, "):
        decode_sidecar(SIDECAR, ["speeker"], "here")


@pytest.mark.parametrize("name", ["key", "xxh3", "seconds", "frames", "shard"])
def test_a_metadata_column_may_not_hide_one_of_the_format(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}'.*rename"):
        sidecar_schema({name: "string"})


def test_an_unknown_column_type_is_named() -> None:
    with pytest.raises(ConfigError, match="'speaker': unknown type 'date32'"):
        sidecar_schema({"speaker": "date32"})


@given(length=st.integers(0, len(SIDECAR) - 1))
def test_a_cut_sidecar_is_refused(length: int) -> None:
    with pytest.raises(DataError, match=r"^here: .*uttershard index"):
        decode_sidecar(SIDECAR[:length], None, "here")


def _with_info(change: dict[str, Any]) -> bytes:
    table = pq.read_table(pa.BufferReader(SIDECAR))
    fields = json.loads(table.schema.metadata[b"uttershard"]) | change
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata({b"uttershard": json.dumps(fields)}), sink)
    return bytes(sink.getvalue())


def test_a_sidecar_of_a_later_format_is_refused() -> None:
    with pytest.raises(DataError, match="here: format version 2, this uttershard reads 1"):
        decode_sidecar(_with_info({"format_version": 2, "what": "new"}), None, "here")


def test_a_foreign_parquet_file_is_refused() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"key": ["a"]}), sink)
    with pytest.raises(DataError, match="here: Parquet, but not an uttershard sidecar"):
        decode_sidecar(bytes(sink.getvalue()), None, "here")


# Of a dataset on disk

Damage = Callable[[Packed], None]


def _stale(dataset: Packed) -> None:
    """The sidecar of a later packing of the same shard."""
    path = dataset.sidecar(1)
    table, info = decode_sidecar(path.read_bytes(), None, "")
    path.write_bytes(encode_sidecar(table.slice(1), info))


def _swap(dataset: Packed) -> None:
    first, second = dataset.sidecar(0), dataset.sidecar(1)
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)


def _flip(dataset: Packed) -> None:
    data = bytearray(dataset.sidecar(1).read_bytes())
    data[len(data) // 2] ^= 1
    dataset.sidecar(1).write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_stale, "shard-000001.parquet: not the sidecar that the manifest lists .*stale or was swapped"),
        (_swap, "shard-00000[01].parquet: not the sidecar that the manifest lists"),
        (_flip, "shard-000001.parquet: not the sidecar that the manifest lists"),
        (lambda dataset: dataset.sidecar(1).unlink(), "shard-000001.parquet: does not exist"),
        (lambda dataset: dataset.sidecar(1).write_bytes(b""), "shard-000001.parquet: not the sidecar"),
    ],
    ids=["stale", "swapped", "flipped", "missing", "empty"],
)
def test_a_sidecar_that_is_not_the_listed_one_is_refused(broken: Packed, damage: Damage, message: str) -> None:
    damage(broken)
    with pytest.raises(DataError, match=message):
        ShardSet.open(broken.address).index()


def test_a_sidecar_of_another_tar_is_refused_even_if_listed(broken: Packed) -> None:
    """The manifest was made for this very sidecar, but the sidecar for another tar."""
    manifest = ShardSet.open(broken.address).manifest
    first, second = manifest.shards[:2]
    wrong = replace(first, tar=second.tar, tar_bytes=second.tar_bytes, tar_digest=second.tar_digest)
    _write(broken, encode_manifest(replace(manifest, shards=(wrong, *manifest.shards[1:]))))
    with pytest.raises(DataError, match=r"shard-000000.parquet: describes another tar than shard-000001.tar"):
        ShardSet.open(broken.address).index()


def test_the_index_is_all_sidecars_one_after_the_other(flac: Packed) -> None:
    dataset = ShardSet.open(flac.address)
    table = dataset.index()
    assert sorted(table["key"].to_pylist()) == sorted(flac.sources)
    assert dataset.rows_per_shard.sum() == len(table) == dataset.manifest.utterances
    assert tuple(table.column_names) == dataset.columns
    speakers = dict(zip(table["key"].to_pylist(), table["speaker"].to_pylist(), strict=True))
    assert speakers == {key: source.meta["speaker"] for key, source in flac.sources.items()}
    with pytest.raises(ConfigError, match="no column 'speeker'; there are key, "):
        dataset.index(["speeker"])


@pytest.mark.parametrize("form", ["path", "string", "slash", "manifest", "file"])
def test_a_dataset_is_opened_by_any_form_of_its_address(flac: Packed, form: str) -> None:
    address = flac.address
    forms: dict[str, str | Path] = {
        "path": address,
        "string": str(address),
        "slash": f"{address}/",
        "manifest": f"{address}/dataset.json",
        "file": f"file://{address}",
    }
    assert len(ShardSet.open(forms[form]).index()) == len(flac.sources)


def test_no_manifest_no_dataset(broken: Packed) -> None:
    (broken.address / "dataset.json").unlink()
    with pytest.raises(DataError, match=r"no dataset at .*broken: there is no dataset.json, nor a job.*address right"):
        ShardSet.open(broken.address)


# The manifest


def _entry(number: int, **values: Any) -> ShardEntry:
    tar, sidecar = shard_names(number)
    facts: dict[str, Any] = {
        "tar": tar,
        "sidecar": sidecar,
        "tar_bytes": 10_240,
        "tar_digest": f"xxh3_128:{number:032x}",
        "sidecar_bytes": 100,
        "sidecar_digest": f"xxh3_128:{number:032x}",
        "utterances": 2,
        "samples": 24_000,
        "seconds": 1.5,
        "shortest_seconds": 0.5,
        "longest_seconds": 1.0,
    }
    return ShardEntry(**{**facts, **values})


MANIFEST = Manifest((_entry(0), _entry(1)), COLUMNS, {"digest": "xxh3_128:5", "seed": 0, "inputs": {"ids": "é"}})


def _write(dataset: Packed, manifest: bytes) -> None:
    (dataset.address / "dataset.json").write_bytes(manifest)


def test_a_manifest_comes_back_as_written() -> None:
    data = encode_manifest(MANIFEST)
    assert decode_manifest(data, "here") == MANIFEST
    assert encode_manifest(decode_manifest(data, "here")) == data
    body = json.loads(data)
    assert (body["format"], body["format_version"]) == ("uttershard", FORMAT_VERSION)
    assert body["totals"]["utterances"] == 4
    assert body["totals"]["seconds"] == 3.0


def test_an_empty_shard_does_not_count_as_the_shortest() -> None:
    empty = _entry(2, utterances=0, samples=0, seconds=0.0, shortest_seconds=0.0, longest_seconds=0.0)
    body = json.loads(encode_manifest(replace(MANIFEST, shards=(*MANIFEST.shards, empty))))
    assert body["totals"]["shortest_seconds"] == 0.5


@pytest.mark.parametrize("name", ["tar_digest", "sidecar_digest"])
def test_the_digest_is_of_every_file(name: str) -> None:
    changed = replace(MANIFEST, shards=(_entry(0), replace(_entry(1), **{name: "xxh3_128:f"})))
    assert changed.digest != MANIFEST.digest


def test_the_digest_is_of_nothing_else() -> None:
    renamed = tuple(replace(shard, tar=f"/elsewhere/{shard.tar}") for shard in MANIFEST.shards)
    assert replace(MANIFEST, shards=renamed, created_by="uttershard 99", fingerprint={}).digest == MANIFEST.digest


def _edited(**changes: Any) -> bytes:
    return json.dumps({**json.loads(encode_manifest(MANIFEST)), **changes}).encode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (encode_manifest(MANIFEST)[:-20], "not JSON"),
        (b"[]", "not an uttershard manifest"),
        (b'{"format": "mds"}', "not an uttershard manifest"),
        (_edited(format_version=2), "format version 2, this uttershard reads 1"),
        (_edited(shards=[asdict(_entry(0))]), "changed by hand"),
        (_edited(digest="xxh3_128:0"), "changed by hand"),
        (_edited(shards=[{**asdict(_entry(0)), "tar_digest": "xxh3_128:9"}, asdict(_entry(1))]), "changed by hand"),
        (_edited(shards=[{"tar": "a"}]), "damaged"),
        (_edited(shards=[{**asdict(_entry(0)), "colour": 1}]), "damaged"),
        (_edited(shards=[{**asdict(_entry(0)), "utterances": "2"}, asdict(_entry(1))]), "damaged.*utterances"),
        (_edited(shards=[{**asdict(_entry(0)), "tar_digest": None}, asdict(_entry(1))]), "damaged.*tar_digest"),
        (_edited(shards=3), "damaged"),
        (_edited(shards="ab"), "damaged"),
        (_edited(columns=["speaker"]), "damaged"),
        (_edited(columns={"speaker": "date32"}), "damaged.*date32"),
        (_edited(columns={"key": "string"}), "damaged.*'key'"),
        (_edited(fingerprint=None), "damaged"),
    ],
)
def test_a_manifest_that_is_none_or_was_changed_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"^here: .*{message}"):
        decode_manifest(data, "here")


def test_a_count_changed_by_hand_is_noticed_when_the_sidecar_is_read(broken: Packed) -> None:
    body = json.loads((broken.address / "dataset.json").read_bytes())
    body["shards"][0]["utterances"] += 1
    _write(broken, json.dumps(body).encode())
    with pytest.raises(DataError, match=r"shard-000000.parquet: describes another tar"):
        ShardSet.open(broken.address).index()


@given(position=st.integers(0, 10**9), bit=st.integers(0, 7))
def test_a_flipped_bit_in_the_manifest_is_a_named_error_or_no_loss(flac: Packed, position: int, bit: int) -> None:
    data = bytearray((flac.address / "dataset.json").read_bytes())
    data[position % len(data)] ^= 1 << bit
    try:
        manifest = decode_manifest(bytes(data), "here")
    except UttershardError as error:
        assert str(error).startswith("here: ")
    else:
        assert manifest.digest == ShardSet.open(flac.address).digest
