"""Nothing is lost without being told: what is packed holds every bit of its source, whole or cut, or is counted."""

import io
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from corpora import write_jsonl
from uttershard.pipeline.reading.codecs import measure, probe
from uttershard.writers import pack
from uttershard.writers.audio import fetch
from uttershard.writers.encode import encode
from uttershard.writers.settings import PackSettings

KEEP = PackSettings()
RATE = 16_000

DEPTHS = {
    # file, subtype of soundfile, bits that its samples have, what a cut of it becomes
    "8-bit": ("a.wav", "PCM_U8", 8, ("flac", "PCM_16")),
    "16-bit": ("a.wav", "PCM_16", 16, ("flac", "PCM_16")),
    "24-bit": ("a.wav", "PCM_24", 24, ("flac", "PCM_24")),
    "32-bit": ("a.wav", "PCM_32", 32, ("wav", "PCM_32")),
    "24 bits in 32": ("a.wav", "PCM_32", 24, ("flac", "PCM_24")),
    "float": ("a.wav", "FLOAT", 0, ("wav", "FLOAT")),
    "double": ("a.wav", "DOUBLE", 0, ("wav", "DOUBLE")),
    "mu-law": ("a.wav", "ULAW", 8, ("flac", "PCM_16")),
    "A-law": ("a.wav", "ALAW", 8, ("flac", "PCM_16")),
    "RF64": ("a.rf64", "DOUBLE", 0, ("wav", "DOUBLE")),
    "AIFF, 16-bit": ("a.aiff", "PCM_16", 16, ("flac", "PCM_16")),
    "AIFF, 32-bit": ("a.aiff", "PCM_32", 32, ("wav", "PCM_32")),
    "AIFF, float": ("a.aiff", "FLOAT", 0, ("wav", "FLOAT")),
    "AIFF, double": ("a.aiff", "DOUBLE", 0, ("wav", "DOUBLE")),
    "SPHERE, 16-bit": ("a.nist", "PCM_16", 16, ("flac", "PCM_16")),
    "SPHERE, 24-bit": ("a.nist", "PCM_24", 24, ("flac", "PCM_24")),
    "SPHERE, 32-bit": ("a.nist", "PCM_32", 32, ("wav", "PCM_32")),
    "SPHERE, mu-law": ("a.nist", "ULAW", 8, ("flac", "PCM_16")),
    "FLAC, 8-bit": ("a.flac", "PCM_S8", 8, ("flac", "PCM_16")),
    "FLAC, 16-bit": ("a.flac", "PCM_16", 16, ("flac", "PCM_16")),
    "FLAC, 24-bit": ("a.flac", "PCM_24", 24, ("flac", "PCM_24")),
}


def source(path: Path, subtype: str, bits: int, channels: int, rate: int) -> Path:
    rng = np.random.default_rng(0)
    if bits:
        samples: Any = rng.integers(-(1 << 31), 1 << 31, (RATE, channels)).astype(np.int32) >> 32 - bits << 32 - bits
    else:
        samples = rng.uniform(-1.5, 1.5, (RATE, channels))
    file_format = "RF64" if path.suffix == ".rf64" else None
    soundfile.write(path, samples, rate, subtype=subtype, format=file_format)
    return path


def exactly(data: bytes | Path, subtype: str) -> np.ndarray[Any, Any]:
    """All bits of a file, by libsndfile."""
    dtype = "float64" if subtype in ("FLOAT", "DOUBLE") else "int32"
    samples, _ = soundfile.read(io.BytesIO(data) if isinstance(data, bytes) else data, dtype=dtype, always_2d=True)
    return samples


@pytest.mark.parametrize("name", DEPTHS)
@pytest.mark.parametrize(("channels", "rate"), [(1, 8_000), (2, 48_000), (8, 44_100)])
def test_every_bit_is_kept(tmp_path: Path, name: str, channels: int, rate: int) -> None:
    file, subtype, bits, expected = DEPTHS[name]
    path = source(tmp_path / file, subtype, bits, channels, rate)
    exact = exactly(path, subtype)
    whole = fetch(str(path), None, None, KEEP)
    assert not whole.reduced
    if path.suffix in (".aiff", ".nist"):
        np.testing.assert_array_equal(exactly(whole.data, subtype), exact)
    else:
        assert whole.data == path.read_bytes()
    for codec in ("keep", "wav"):
        cut = fetch(str(path), 2000 / rate, 10_000 / rate, PackSettings(codec=codec))
        np.testing.assert_array_equal(exactly(cut.data, subtype), exact[2000:10_000])
        assert not cut.reduced
        if codec == "keep":
            assert (cut.info.codec, soundfile.info(io.BytesIO(cut.data)).subtype) == expected
        assert (cut.info.channels, cut.info.sample_rate) == (channels, rate)


@pytest.mark.parametrize("name", ["32-bit", "float", "double", "AIFF, double"])
def test_flac_of_what_it_cannot_hold_is_counted(tmp_path: Path, name: str) -> None:
    file, subtype, bits, _ = DEPTHS[name]
    source(tmp_path / file, subtype, bits, 1, RATE)
    soundfile.write(tmp_path / "plain.wav", np.zeros(RATE), RATE)
    write_jsonl(tmp_path / "m.jsonl", [{"audio_filepath": name} for name in (file, "plain.wav")])
    summary = pack(tmp_path / "m.jsonl", tmp_path / "out", codec="flac", workers=1, shards=1)
    assert (summary.utterances, summary.reduced) == (2, 1)
    reduced = fetch(str(tmp_path / file), None, None, PackSettings(codec="flac"))
    # Rounded and clipped; a sample that wrapped would be off by twice full scale.
    expected = np.clip(soundfile.read(tmp_path / file, dtype="float64")[0], -1, 1)
    np.testing.assert_allclose(soundfile.read(io.BytesIO(reduced.data))[0], expected, atol=2**-23)


@pytest.mark.parametrize(("subtype", "bits", "least"), [("PCM_24", 24, 120), ("PCM_32", 32, 160), ("DOUBLE", 0, 160)])
def test_a_change_of_rate_keeps_the_depth(tmp_path: Path, subtype: str, bits: int, least: int) -> None:
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(48_000) / 48_000)
    stereo = np.stack([tone, tone], axis=1)
    path = tmp_path / "a.wav"
    soundfile.write(path, np.rint(stereo * 2**31).astype(np.int32) if bits else stereo, 48_000, subtype=subtype)
    audio = fetch(str(path), None, None, PackSettings(channels=1))
    assert soundfile.info(io.BytesIO(audio.data)).subtype == subtype
    error = soundfile.read(io.BytesIO(audio.data))[0] - tone
    assert 10 * np.log10(np.mean(tone**2) / np.mean(error**2 + 1e-300)) > least
    halved = fetch(str(path), None, None, PackSettings(sample_rate=24_000))
    assert soundfile.info(io.BytesIO(halved.data)).subtype == subtype


def test_channels_of_different_depths(tmp_path: Path) -> None:
    integers = source(tmp_path / "a.wav", "PCM_32", 32, 1, RATE)
    floats = source(tmp_path / "b.wav", "FLOAT", 0, 1, RATE)
    audio = fetch(f'join:["{integers}","{floats}"]', None, None, KEEP)
    assert soundfile.info(io.BytesIO(audio.data)).subtype == "DOUBLE"
    expected = np.stack([soundfile.read(path, dtype="float64")[0] for path in (integers, floats)], axis=1)
    np.testing.assert_array_equal(soundfile.read(io.BytesIO(audio.data), dtype="float64")[0], expected)


def test_more_channels_than_flac_has(tmp_path: Path) -> None:
    path = source(tmp_path / "a.wav", "PCM_16", 16, 10, RATE)
    cut = fetch(str(path), 0.25, 0.5, KEEP)
    assert (cut.info.codec, cut.info.channels) == ("wav", 10)
    np.testing.assert_array_equal(exactly(cut.data, "PCM_16"), exactly(path, "PCM_16")[4000:8000])


def by_ffmpeg(container: str, codec: str, sample_format: str, samples: np.ndarray[Any, Any]) -> bytes:
    target = io.BytesIO()
    with av.open(target, "w", format=container) as file:
        stream = file.add_stream(codec, rate=RATE, layout="mono")
        stream.format = sample_format
        step = stream.codec_context.frame_size or 4096
        for start in range(0, len(samples), step):
            frame = av.AudioFrame.from_ndarray(samples[None, start : start + step], format=sample_format, layout="mono")
            frame.sample_rate, frame.pts = RATE, start
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return target.getvalue()


@pytest.mark.parametrize(
    ("container", "codec", "sample_format", "bits", "expected"),
    [
        ("caf", "pcm_s32be", "s32", 32, ("wav", "PCM_32")),
        ("caf", "pcm_s24be", "s32", 24, ("flac", "PCM_24")),
        ("caf", "pcm_f32be", "flt", 0, ("wav", "FLOAT")),
        ("au", "pcm_f64be", "dbl", 0, ("wav", "DOUBLE")),
        ("ipod", "alac", "s32p", 24, ("flac", "PCM_24")),
        ("ipod", "alac", "s16p", 16, ("flac", "PCM_16")),
        ("wv", "wavpack", "fltp", 0, ("wav", "FLOAT")),
        ("ogg", "flac", "s16", 16, ("flac", "PCM_16")),
    ],
)
def test_what_ffmpeg_reads(
    tmp_path: Path, container: str, codec: str, sample_format: str, bits: int, expected: tuple[str, str]
) -> None:
    rng = np.random.default_rng(0)
    width = sample_format.rstrip("p")
    if bits == 16:
        samples: Any = rng.integers(-(1 << 15), 1 << 15, RATE).astype(np.int16)
    elif bits:
        samples = rng.integers(-(1 << 31), 1 << 31, RATE).astype(np.int32) >> 32 - bits << 32 - bits
    else:
        samples = rng.uniform(-1, 1, RATE).astype(np.float32 if width == "flt" else np.float64)
    path = tmp_path / "a"
    path.write_bytes(by_ffmpeg(container, codec, sample_format, samples))
    dtype = samples.dtype.name
    for start, end in ((None, None), (0.25, 0.75)):
        audio = fetch(str(path), start, end, KEEP)
        assert (audio.info.codec, soundfile.info(io.BytesIO(audio.data)).subtype) == expected
        found = soundfile.read(io.BytesIO(audio.data), dtype=dtype)[0]
        np.testing.assert_array_equal(found, samples if start is None else samples[4000:12_000])


@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE"])
def test_equal_floats_give_equal_bytes(subtype: str) -> None:
    first = encode(np.linspace(-1, 1, 100), RATE, "wav", subtype=subtype)
    peaks = first.index(b"PEAK")
    assert first[peaks + 12 : peaks + 16] == bytes(4)  # where libsndfile puts the time
    assert measure(first) == probe(io.BytesIO(first))
