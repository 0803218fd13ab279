"""Encoding: depth kept, floats clipped, equal bytes for equal samples; changes of rate and channels."""

import io
import subprocess
import sys

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from uttershard.pipeline.errors import ConfigError, DataError
from uttershard.pipeline.reading.codecs import decode, measure
from uttershard.pipeline.reading.convert import mix_channels, resample, resampled_length, to_float32, to_int16
from uttershard.writers.encode import encode

RNG_SEED = 7


def noise(num_samples: int, channels: int = 1) -> np.ndarray:
    shape = num_samples if channels == 1 else (num_samples, channels)
    return np.random.default_rng(RNG_SEED).integers(-20_000, 20_000, shape).astype(np.int16)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("codec", ["flac", "wav"])
def test_int16_comes_back_bit_equal(codec: str, channels: int) -> None:
    samples = noise(5000, channels)
    data = encode(samples, 16_000, codec)
    info = measure(data)
    assert (info.codec, info.num_samples, info.channels, info.dtype) == (codec, 5000, channels, "int16")
    np.testing.assert_array_equal(decode(codec, data, 5000, channels), samples)


@pytest.mark.parametrize("codec", ["flac", "wav"])
def test_int32_keeps_its_upper_24_bits(codec: str) -> None:
    samples = np.random.default_rng(RNG_SEED).integers(-(2**31), 2**31, 5000).astype(np.int32)
    back, _ = soundfile.read(io.BytesIO(encode(samples, 16_000, codec)), dtype="int32")
    np.testing.assert_array_equal(back, samples >> 8 << 8)


@pytest.mark.parametrize(
    ("codec", "dtype", "subtype"),
    [
        ("flac", np.int16, "PCM_16"),
        ("flac", np.int32, "PCM_24"),
        ("flac", np.float32, "PCM_16"),
        ("wav", np.int16, "PCM_16"),
        ("wav", np.int32, "PCM_24"),
        ("wav", np.float32, "FLOAT"),
        ("opus", np.int16, "OPUS"),
    ],
)
def test_depth_as_the_samples_ask(codec: str, dtype: type, subtype: str) -> None:
    assert soundfile.info(io.BytesIO(encode(np.zeros(1000, dtype), 16_000, codec))).subtype == subtype


def test_float_wav_comes_back_bit_equal() -> None:
    samples = np.array([0.1, -1.5, 2.0, 1e-9], np.float32)
    np.testing.assert_array_equal(decode("wav", encode(samples, 16_000, "wav"), 4, 1), samples)


@pytest.mark.parametrize("codec", ["flac", "wav"])
@pytest.mark.parametrize(("subtype", "bits"), [("PCM_16", 16), ("PCM_24", 24)])
def test_floats_are_clipped_and_never_wrap(codec: str, subtype: str, bits: int) -> None:
    samples = np.array([1.0, 1.7, -1.0, -1.7, np.inf, -np.inf, 0.5], np.float32)
    back, _ = soundfile.read(io.BytesIO(encode(samples, 16_000, codec, subtype=subtype)), dtype="int32")
    top, bottom = 2 ** (bits - 1) - 1, -(2 ** (bits - 1))
    assert (back >> (32 - bits)).tolist() == [top, top, bottom, bottom, top, bottom, 2 ** (bits - 2)]


def test_nan_is_refused_where_it_would_become_an_integer() -> None:
    with pytest.raises(DataError, match="NaN"):
        encode(np.array([0.0, np.nan], np.float32), 16_000, "flac")


def test_loud_opus_does_not_wrap() -> None:
    loud = (3 * np.sin(np.arange(16_000) * 0.05)).astype(np.float32)
    data = encode(loud, 16_000, "opus")
    samples = decode("opus", data, 16_000, 1)
    # A wrapped sample would have the other sign than the tone it stands for.
    strong = np.abs(loud) > 1
    assert (np.sign(samples[strong]) == np.sign(loud[strong])).mean() > 0.99


@pytest.mark.parametrize("rate", [8_000, 12_000, 16_000, 24_000, 48_000])
def test_opus_keeps_rate_and_count(rate: int) -> None:
    info = measure(encode(noise(12_345), rate, "opus"))
    assert (info.num_samples, info.sample_rate) == (12_345, rate)


@pytest.mark.parametrize("codec", ["flac", "wav", "opus"])
def test_equal_samples_give_equal_bytes_in_every_process(codec: str) -> None:
    here = encode(noise(20_000), 16_000, codec)
    assert here == encode(noise(20_000), 16_000, codec)
    program = (
        "import sys, numpy as np; from uttershard.writers.encode import encode;"
        f"x = np.random.default_rng({RNG_SEED}).integers(-20_000, 20_000, 20_000).astype(np.int16);"
        f"sys.stdout.buffer.write(encode(x, 16_000, {codec!r}))"
    )
    there = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60)
    assert there.stdout == here


@pytest.mark.parametrize(
    ("samples", "rate", "codec", "subtype", "message"),
    [
        (np.zeros(10, np.int16), 22_050, "opus", None, "Opus has no sampling rate of 22050 Hz.*8000, 12000"),
        (np.zeros(10, np.int16), 16_000, "mp3", None, "cannot encode as 'mp3'.*flac, wav, opus"),
        (np.zeros(10, np.float16), 16_000, "wav", None, "float16"),
        (np.zeros((1, 1, 1), np.int16), 16_000, "wav", None, "shape"),
        (np.zeros(10, np.int16), 16_000, "flac", "FLOAT", "flac of subtype 'FLOAT'.*PCM_16, PCM_24"),
        (np.zeros((10, 9), np.int16), 16_000, "flac", None, "flac cannot hold 9 channels at 16000 Hz"),
    ],
)
def test_what_cannot_be_encoded(samples: np.ndarray, rate: int, codec: str, subtype: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        encode(samples, rate, codec, subtype=subtype)


@settings(max_examples=60, deadline=None)
@given(
    num_samples=st.integers(1, 30_000),
    rate_in=st.sampled_from([8_000, 11_025, 16_000, 22_050, 44_100, 48_000]),
    rate_out=st.sampled_from([8_000, 16_000, 22_050, 24_000, 48_000]),
)
def test_resampled_length_is_exact(num_samples: int, rate_in: int, rate_out: int) -> None:
    length = resampled_length(num_samples, rate_in, rate_out)
    assert abs(length - num_samples * rate_out / rate_in) <= 0.5
    assert len(resample(np.zeros(num_samples, np.float32), rate_in, rate_out)) == length


@pytest.mark.parametrize("dtype", [np.int16, np.float32])
def test_resampling_keeps_a_tone(dtype: type) -> None:
    def tone(rate: int) -> np.ndarray:
        return 0.5 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate)

    source = tone(48_000).astype(np.float32) if dtype is np.float32 else to_int16(tone(48_000).astype(np.float32))
    result = resample(np.stack([source, source], axis=1), 48_000, 16_000)
    assert result.dtype == dtype
    assert result.shape == (16_000, 2)
    np.testing.assert_allclose(to_float32(result)[500:-500, 1], tone(16_000)[500:-500], atol=1e-4)


def test_resampling_clips_loud_integers() -> None:
    square = np.where(np.arange(48_000) // 100 % 2, 32767, -32768).astype(np.int16)
    result = resample(square, 48_000, 16_000)
    middle = result[100:-100].astype(int)
    # A wrapped overshoot would be a jump of almost full range within a half period, and back.
    assert np.abs(np.diff(np.sign(middle))).sum() / 2 == pytest.approx(len(middle) / (100 / 3), abs=2)


def test_resampling_to_the_same_rate_changes_nothing() -> None:
    samples = noise(100)
    assert resample(samples, 16_000, 16_000) is samples
    with pytest.raises(ConfigError, match="from 0 Hz"):
        resample(samples, 0, 16_000)


def test_mixing_channels() -> None:
    stereo = np.array([[100, 300], [32767, 32767], [-32768, -32768], [1, 2]], np.int16)
    mono = mix_channels(stereo, 1)
    assert mono.dtype == np.int16
    assert mono.tolist() == [200, 32767, -32768, 2]
    assert mix_channels(mono, 3).tolist() == [[value] * 3 for value in mono.tolist()]
    assert mix_channels(stereo, 2) is stereo
    assert mix_channels(to_float32(stereo), 1).dtype == np.float32
    with pytest.raises(ConfigError, match="cannot make 3 channels of 2"):
        mix_channels(stereo, 3)
    with pytest.raises(ConfigError, match="channels=0"):
        mix_channels(stereo, 0)
