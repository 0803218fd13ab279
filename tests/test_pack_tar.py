"""The tar is webdataset's, byte for byte, and its spans are what the sidecar will say."""

import io
from pathlib import Path

import pytest
import webdataset
from hypothesis import given
from hypothesis import strategies as st
from uttershard.pipeline.dataset.digest import digest_bytes, span_checksum
from uttershard.pipeline.dataset.tar import walk_span, walk_tar
from uttershard.writers.tar_writer import ShardTar

NAMES = st.text(alphabet="abcXYZ019_-%", min_size=1, max_size=80)
MEMBERS = st.dictionaries(st.sampled_from(["flac", "wav", "json", "txt", "ogg"]), st.binary(max_size=2000), min_size=1)


@given(samples=st.lists(st.tuples(NAMES, MEMBERS), max_size=12, unique_by=lambda sample: sample[0]))
def test_bytes_are_those_of_webdataset(samples: list[tuple[str, dict[str, bytes]]]) -> None:
    theirs, ours = io.BytesIO(), io.BytesIO()
    with webdataset.TarWriter(theirs, mtime=0, encoder=False) as writer:
        for name, members in samples:
            writer.write({"__key__": name, **members})
    tar = ShardTar(ours)
    spans = [tar.add(name, members) for name, members in samples]
    digest = tar.close()
    data = ours.getvalue()
    assert data == theirs.getvalue()
    assert digest == digest_bytes(data)
    assert tar.nbytes == len(data)
    for span, (name, members) in zip(spans, samples, strict=True):
        part = memoryview(data)[span.offset : span.offset + span.nbytes]
        assert span.checksum == span_checksum(part)
        assert [member.name for member in walk_span(part)] == [f"{name}.{ending}" for ending in sorted(members)]


@pytest.mark.parametrize("size", [0, 511, 512, 513, 10_240 - 1024 - 512, 10_240])
def test_every_end_of_record(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.tar"
    with path.open("wb") as stream:
        tar = ShardTar(stream)
        tar.add("a", {"wav": bytes(size)})
        tar.close()
    assert [member.size for member in walk_tar(memoryview(path.read_bytes()))] == [size]
    assert path.stat().st_size % 10_240 == 0
