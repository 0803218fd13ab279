"""Clipped samples are those at the full scale of their own format, which is less than 1 where it has few bits."""

import io

import numpy as np
import pytest
import soundfile
from corpora import RATE
from uttershard.pipeline.reading.codecs import decode, full_scale, measure
from uttershard.writers.stats.measures import count_clipped

FORMATS = [
    ("WAV", "PCM_U8", 127 / 128),
    ("WAV", "ULAW", 32124 / 32768),
    ("WAV", "ALAW", 32256 / 32768),
    ("WAV", "PCM_16", 32767 / 32768),
    ("WAV", "PCM_24", 32767 / 32768),
    ("WAV", "FLOAT", 32767 / 32768),
    ("FLAC", "PCM_S8", 127 / 128),
    ("FLAC", "PCM_16", 32767 / 32768),
    ("FLAC", "PCM_24", 32767 / 32768),
    ("AIFF", "PCM_S8", 127 / 128),
    ("AIFF", "PCM_16", 32767 / 32768),
    ("NIST", "ULAW", 32124 / 32768),
    ("NIST", "ALAW", 32256 / 32768),
]


@pytest.mark.parametrize(("container", "subtype", "largest"), FORMATS)
@pytest.mark.parametrize("channels", [1, 2])
def test_both_ends_of_each_format_count(container: str, subtype: str, largest: float, channels: int) -> None:
    loud = np.array([1.0] * 10 + [-1.0] * 5 + [0.93, -0.93] * 20 + [0.0] * 30)
    file = io.BytesIO()
    soundfile.write(file, np.repeat(loud[:, None], channels, axis=1), RATE, format=container, subtype=subtype)
    data = file.getvalue()
    info = measure(data)
    samples = decode(info.codec, data, info.num_samples, info.channels)
    assert full_scale(info.codec, data) == largest
    assert count_clipped(samples, largest) == 15 * channels


def test_one_step_less_is_not_clipped() -> None:
    steps = np.array([32767, 32766, -32766, -32767, -32768], np.int16)
    assert count_clipped(steps, 32767 / 32768) == 3
    assert count_clipped(steps.astype(np.float32) / 32768, 32767 / 32768) == 3
    assert count_clipped(np.array([126, 127, -126, -127, -128], np.float32) / 128, 127 / 128) == 3


def test_lossy_codecs_count_as_16_bits() -> None:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(RATE), RATE, format="OGG", subtype="VORBIS")
    assert full_scale("vorbis", file.getvalue()) == 32767 / 32768
