"""Many segments of one recording: cut in one pass, the same to the byte as one by one."""

import io
import mmap
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import soundfile
from corpora import noise
from uttershard.pipeline.reading.codecs import CODECS, AudioError, base, probe
from uttershard.writers import segments
from uttershard.writers.audio import fetch, fetch_spans
from uttershard.writers.segments import ShardAudio
from uttershard.writers.settings import PackSettings

SECONDS = 12.0
SPANS = [
    (3.0, 4.5),
    (0.0, 0.5),
    (3.2, 9.9),
    (None, 2.0),
    (11.0, None),
    (5.0, 99.0),
    (50.0, 51.0),
    (None, None),
    (3.0, 4.5),
]
RECORDINGS = [("a.mp3", None), ("a.ogg", "VORBIS"), ("a.ogg", "OPUS"), ("a.flac", None), ("a.wav", None)]


def plan_of(*recordings: Path) -> pa.Table:
    rows = [(str(path), start, end) for start, end in SPANS for path in recordings]
    uris, starts, ends = zip(*rows, strict=True)
    return pa.table({"uri": uris, "start": pa.array(starts, pa.float64()), "end": pa.array(ends, pa.float64())})


def audio_or_reason(function: object, *arguments: object) -> object:
    try:
        return function(*arguments)  # type: ignore[operator]
    except AudioError as error:
        return str(error)


@pytest.mark.parametrize("waiting_bytes", [0, 40_000, 1 << 30])
@pytest.mark.parametrize(("name", "subtype"), RECORDINGS)
@pytest.mark.parametrize("settings", [PackSettings(), PackSettings(codec="flac", sample_rate=8_000)])
def test_the_same_as_one_by_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    subtype: str | None,
    waiting_bytes: int,
    settings: PackSettings,
) -> None:
    paths = [tmp_path / f"{number}-{name}" for number in range(2)]
    for number, path in enumerate(paths):
        soundfile.write(path, noise(SECONDS, seed=number, channels=1 + number), 16_000, subtype=subtype)
    monkeypatch.setattr(segments, "_WAITING_BYTES", waiting_bytes)
    plan = plan_of(*paths)
    shard = ShardAudio(plan, settings)
    for row, utterance in enumerate(plan.to_pylist()):
        place = (utterance["uri"], utterance["start"], utterance["end"])
        found = audio_or_reason(shard.fetch, row, *place)
        assert found == audio_or_reason(fetch, *place, settings), (row, place)


@pytest.mark.parametrize(("name", "subtype"), [("a.mp3", None), ("a.ogg", "VORBIS")])
def test_blocks_are_all_samples(tmp_path: Path, name: str, subtype: str | None) -> None:
    path = tmp_path / name
    soundfile.write(path, noise(SECONDS, channels=2), 16_000, subtype=subtype)
    with path.open("rb") as file:
        info = probe(file)
        blocks = CODECS[info.codec].blocks
        assert blocks is not None
        whole = np.concatenate(list(blocks(file)))
        cut = CODECS[info.codec].cut
        assert cut is not None
        np.testing.assert_array_equal(whole, cut(file, 0, info.num_samples))


def test_a_pass_leaves_out_what_it_is_no_way_for(tmp_path: Path) -> None:
    path = tmp_path / "a.mp3"
    soundfile.write(path, noise(SECONDS), 16_000)
    places = [place for place, _ in fetch_spans(str(path), SPANS, PackSettings())]
    assert sorted(places) == [0, 1, 2, 3, 4, 8]
    assert list(fetch_spans(f"{path}#channels=0", SPANS, PackSettings())) == []


def test_a_large_recording_that_is_no_file_is_copied_to_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soundfile.write(tmp_path / "a.mp3", noise(SECONDS), 16_000)
    data = (tmp_path / "a.mp3").read_bytes()
    assert base.whole(io.BytesIO(data)).obj == data
    in_memory = probe(io.BytesIO(data))
    monkeypatch.setattr(base, "_LARGEST_IN_MEMORY", len(data) - 1)
    mapped = base.whole(io.BytesIO(data))
    assert isinstance(mapped.obj, mmap.mmap)
    assert mapped == data
    assert probe(io.BytesIO(data)) == in_memory


@pytest.mark.parametrize(("name", "subtype"), [("a.mp3", None), ("a.ogg", "VORBIS"), ("a.ogg", "OPUS")])
def test_memory_is_bounded_by_the_segment(tmp_path: Path, name: str, subtype: str | None) -> None:
    path = tmp_path / name
    with soundfile.SoundFile(path, "w", 16_000, 1, subtype=subtype) as file:
        for seed in range(10):
            file.write(noise(60.0, seed=seed))
    fetch(str(path), 1.0, 2.0, PackSettings())
    tracemalloc.start()
    try:
        fetch(str(path), 590.0, 591.0, PackSettings())
        spans = [(start, start + 0.5) for start in range(0, 600, 60)]
        for _ in fetch_spans(str(path), spans, PackSettings()):
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < path.stat().st_size / 2
