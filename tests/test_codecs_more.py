"""Codecs that are read but not packed as they are: AIFF, SPHERE, and what FFmpeg reads; and parts of any codec."""

import io
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from corpora import RATE, noise
from numpy.typing import NDArray
from uttershard.pipeline.reading.codecs import AudioError, decode, ffmpeg, measure, peek_dtype, probe
from uttershard.pipeline.reading.codecs.ogg_pages import with_serial
from uttershard.writers.audio import fetch
from uttershard.writers.settings import PackSettings

COUNT = 12_346


def made(kind: str, subtype: str, channels: int = 1, *, endian: str = "FILE") -> bytes:
    """What libsndfile writes of full-scale random samples."""
    samples = np.random.default_rng(0).uniform(-1, 1, (COUNT, channels))
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format=kind, subtype=subtype, endian=endian)
    return file.getvalue()


def by_ffmpeg(kind: str, codec: str, rate: int = RATE, sample_format: str = "fltp") -> bytes:
    """What FFmpeg encodes."""
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=rate, layout="mono", format=sample_format)
        samples = noise(1.0, rate=rate)
        planar = samples[None] if sample_format == "s16p" else (samples[None] / np.float32(32768)).astype(np.float32)
        frame = av.AudioFrame.from_ndarray(planar, format=sample_format, layout="mono")
        frame.sample_rate = rate
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    return file.getvalue()


PCM = [
    *(
        ("AIFF", subtype, "aiff")
        for subtype in ("PCM_S8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW")
    ),
    *(("NIST", subtype, "sphere") for subtype in ("PCM_S8", "PCM_16", "PCM_24", "PCM_32", "ULAW", "ALAW")),
]


@pytest.mark.parametrize(("kind", "subtype", "codec"), PCM)
@pytest.mark.parametrize("channels", [1, 2])
def test_as_libsndfile_decodes_it(kind: str, subtype: str, codec: str, channels: int) -> None:
    data = made(kind, subtype, channels)
    info = measure(data)
    assert info == probe(io.BytesIO(data))
    assert (info.codec, info.num_samples, info.sample_rate, info.channels) == (codec, COUNT, RATE, channels)
    assert peek_dtype(codec, data) == info.dtype == ("int16" if subtype == "PCM_16" else "float32")
    expected, _ = soundfile.read(io.BytesIO(data), dtype=info.dtype)
    np.testing.assert_array_equal(decode(codec, data, COUNT, channels), expected)


def test_endianness() -> None:
    for kind, codec in (("AIFF", "aiff"), ("NIST", "sphere")):
        big, little = (made(kind, "PCM_16", endian=endian) for endian in ("BIG", "LITTLE"))
        assert big != little
        np.testing.assert_array_equal(decode(codec, big, COUNT, 1), decode(codec, little, COUNT, 1))


@pytest.mark.parametrize(("kind", "codec"), [("AIFF", "aiff"), ("NIST", "sphere")])
def test_a_cut_file_is_refused(kind: str, codec: str) -> None:
    data = made(kind, "PCM_16")
    with pytest.raises(AudioError, match=f"truncated: the header promises {COUNT} samples, the file holds 12341"):
        measure(data[:-10])
    with pytest.raises(AudioError):
        measure(data[:30])


def test_compressed_sphere_says_what_to_do() -> None:
    data = made("NIST", "PCM_16").replace(b"sample_coding -s3 pcm", b"sample_coding -s27 pcm,embedded-shorten-v2.00")
    with pytest.raises(AudioError, match="unpack it with sph2pipe"):
        measure(data)


PACKED = [
    ("AIFF", "PCM_16", "flac", "int16"),
    ("AIFF", "PCM_24", "flac", "float32"),
    ("AIFF", "FLOAT", "wav", "float32"),
    ("NIST", "PCM_16", "flac", "int16"),
    ("NIST", "ULAW", "flac", "int16"),
    ("NIST", "PCM_24", "flac", "float32"),
]


@pytest.mark.parametrize(("kind", "subtype", "codec", "dtype"), PACKED)
def test_keep_makes_a_lossless_file_of_them(tmp_path: Path, kind: str, subtype: str, codec: str, dtype: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(made(kind, subtype))
    packed = fetch(str(path), None, None, PackSettings())
    assert (packed.info.codec, packed.info.dtype) == (codec, dtype)
    expected, _ = soundfile.read(path, dtype="float64")
    found, _ = soundfile.read(io.BytesIO(packed.data), dtype="float64")
    np.testing.assert_array_equal(found, expected)


LOSSY = [("ipod", "aac", 16_000), ("adts", "aac", 16_000), ("webm", "libopus", 48_000)]


@pytest.mark.parametrize(("kind", "codec", "rate"), LOSSY)
def test_what_ffmpeg_reads(tmp_path: Path, kind: str, codec: str, rate: int) -> None:
    data = by_ffmpeg(kind, codec, rate)
    info = measure(data)
    assert (info.codec, info.sample_rate, info.channels, info.dtype) == ("ffmpeg", rate, 1, "float32")
    assert rate * 0.95 < info.num_samples < rate * 1.2
    assert len(decode("ffmpeg", data, info.num_samples, 1)) == info.num_samples
    (tmp_path / "a").write_bytes(data)
    packed = fetch(str(tmp_path / "a"), None, None, PackSettings())
    assert (packed.info.codec, packed.info.num_samples) == ("flac", info.num_samples)


def test_lossless_m4a(tmp_path: Path) -> None:
    (tmp_path / "a.m4a").write_bytes(by_ffmpeg("ipod", "alac", sample_format="s16p"))
    packed = fetch(str(tmp_path / "a.m4a"), None, None, PackSettings())
    np.testing.assert_array_equal(decode("flac", packed.data, RATE, 1), noise(1.0))


def test_a_cut_m4a_is_refused() -> None:
    data = by_ffmpeg("ipod", "aac")
    with pytest.raises(AudioError):
        measure(data[: len(data) // 2])


def test_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    data = by_ffmpeg("ipod", "aac")
    monkeypatch.setattr(ffmpeg, "av", None)
    with pytest.raises(AudioError, match=r"pip install 'uttershard\[av\]'"):
        measure(data)


def whole(kind: str) -> bytes:
    samples = noise(3.0)
    if kind in ("ipod", "webm"):
        return by_ffmpeg(kind, "aac" if kind == "ipod" else "libopus", 16_000 if kind == "ipod" else 48_000)
    file = io.BytesIO()
    subtype = {"OGG": "VORBIS", "OPUS": "OPUS", "MP3": "MPEG_LAYER_III"}.get(kind, "PCM_16")
    soundfile.write(file, samples, RATE, format="OGG" if kind == "OPUS" else kind, subtype=subtype)
    data = file.getvalue()
    return with_serial(data, 1) + with_serial(data, 2) if kind == "OGG" else data


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "OPUS", "MP3", "AIFF", "NIST", "ipod", "webm"])
def test_a_part_is_the_part_of_the_whole(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(whole(kind))
    info = measure(path.read_bytes())
    samples: NDArray[Any] = decode(info.codec, path.read_bytes(), info.num_samples, 1)
    end = info.num_samples / info.sample_rate
    for start, stop in ((0.0, 0.25), (0.5, 0.75), (end - 0.25, end)):
        packed = fetch(str(path), start, stop, PackSettings(codec="wav"))
        found = decode("wav", packed.data, packed.info.num_samples, 1)
        first = round(start * info.sample_rate)
        expected = samples[first : first + len(found)]
        assert len(found) == round((stop - start) * info.sample_rate)
        # Lossy sources are taken for 16-bit: half a step, where nothing is clipped.
        scale = 32768 if samples.dtype == np.float32 else 1
        assert np.abs(np.clip(expected * scale, -32768, 32767) - found).max() <= (0.5001 if scale > 1 else 0)
