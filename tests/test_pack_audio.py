"""The audio of an utterance: bytes kept where nothing changes; cut, mixed, resampled and encoded where it does."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import soundfile
from corpora import noise, write_audio
from uttershard.pipeline.errors import StorageError
from uttershard.pipeline.reading.codecs import AudioError, decode
from uttershard.writers.audio import PackedAudio, fetch
from uttershard.writers.audio_files import raise_if_it_may_come_back
from uttershard.writers.settings import PackSettings

KEEP = PackSettings()


def samples(audio: PackedAudio) -> np.ndarray[Any, Any]:
    return decode(audio.info.codec, audio.data, audio.info.num_samples, audio.info.channels)


def write(path: Path, data: np.ndarray[Any, Any], subtype: str, rate: int = 16_000) -> Path:
    soundfile.write(path, data, rate, subtype=subtype)
    return path


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.mp3", "a.ogg"])
@pytest.mark.parametrize("settings", [KEEP, PackSettings(sample_rate=16_000, channels=1)])
def test_nothing_to_change_keeps_the_bytes(tmp_path: Path, name: str, settings: PackSettings) -> None:
    path = write_audio(tmp_path / name)
    assert fetch(str(path), None, None, settings).data == path.read_bytes()


def test_a_codec_that_is_there_already_is_not_encoded_again(tmp_path: Path) -> None:
    for name, subtype, codec in (("a.ogg", "OPUS", "opus"), ("a.flac", "PCM_16", "flac"), ("a.wav", "FLOAT", "wav")):
        path = write(tmp_path / name, noise(1.0), subtype)
        assert fetch(str(path), None, None, PackSettings(codec=codec)).data == path.read_bytes()


def test_a_segment_that_is_the_whole_recording_keeps_the_bytes(tmp_path: Path) -> None:
    path = write_audio(tmp_path / "a.mp3")
    length = fetch(str(path), None, None, KEEP).info.num_samples / 16_000
    for start, end in ((0.0, None), (0.0, length), (None, length + 0.009)):
        assert fetch(str(path), start, end, KEEP).data == path.read_bytes()


@pytest.mark.parametrize(("name", "subtype"), [("a.mp3", None), ("a.ogg", "VORBIS"), ("a.ogg", "OPUS")])
def test_a_cut_of_a_lossy_source_is_that_part_of_the_whole(tmp_path: Path, name: str, subtype: str | None) -> None:
    path = tmp_path / name
    soundfile.write(path, noise(20.0), 16_000, subtype=subtype)
    whole = samples(fetch(str(path), None, None, KEEP))
    for start, end in ((0.0, 0.5), (7.0, 8.0), (19.5, None)):
        cut = samples(fetch(str(path), start, end, KEEP))
        expected = whole[round(start * 16_000) : None if end is None else round(end * 16_000)]
        assert cut.dtype == np.int16
        assert np.abs(cut - np.clip(np.rint(expected * 32768), -32768, 32767)).max() <= 1


def test_rate_and_channels(tmp_path: Path) -> None:
    left = (8000 * np.sin(2 * np.pi * 440 * np.arange(48_000) / 48_000)).astype(np.int16)
    path = write(tmp_path / "a.wav", np.stack([left, np.zeros_like(left)], axis=1), "PCM_16", 48_000)
    audio = fetch(str(path), None, None, PackSettings(sample_rate=16_000, channels=1))
    assert (audio.info.codec, audio.info.sample_rate, audio.info.channels) == ("flac", 16_000, 1)
    assert audio.info.num_samples == 16_000
    expected = 4000 * np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    np.testing.assert_allclose(samples(audio)[200:-200], expected[200:-200], atol=3)


def test_loud_audio_is_clipped_and_does_not_wrap(tmp_path: Path) -> None:
    loud = np.array([1.5, -1.5, 0.5] * 3000, np.float32)
    path = write(tmp_path / "a.wav", loud, "FLOAT")
    audio = fetch(str(path), None, None, PackSettings(codec="flac"))
    np.testing.assert_allclose(samples(audio)[:3], [1.0, -1.0, 0.5], atol=1e-6)
    assert np.array_equal(samples(fetch(str(path), 0.1, 0.2, KEEP)), loud[1600:3200])


def test_opus(tmp_path: Path) -> None:
    path = write_audio(tmp_path / "a.wav", rate=24_000)
    audio = fetch(str(path), None, None, PackSettings(codec="opus"))
    assert (audio.info.codec, audio.info.num_samples) == ("opus", 24_000)
    odd = write_audio(tmp_path / "b.wav", rate=22_050)
    with pytest.raises(AudioError, match="no sampling rate of 22050 Hz: set sample_rate"):
        fetch(str(odd), None, None, PackSettings(codec="opus"))
    assert fetch(str(odd), None, None, PackSettings(codec="opus", sample_rate=24_000)).info.num_samples == 24_000


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [
        (0.5, 1.011, r"the segment ends at 1\.011 s, but the recording ends at 1\.000 s"),
        (1.0, 1.005, r"the segment starts at 1\.000 s, but the recording ends at 1\.000 s"),
        (0.5, 0.50001, "has no sample at 16000 Hz"),
    ],
)
def test_a_segment_beyond_the_recording(tmp_path: Path, start: float, end: float, message: str) -> None:
    path = write_audio(tmp_path / "a.wav")
    with pytest.raises(AudioError, match=message):
        fetch(str(path), start, end, KEEP)


def test_a_segment_that_ends_just_behind_the_recording_is_cut_there(tmp_path: Path) -> None:
    path = write_audio(tmp_path / "a.wav")
    assert fetch(str(path), 0.5, 1.0099, KEEP).info.num_samples == 8000


def test_pipes(tmp_path: Path) -> None:
    path = write_audio(tmp_path / "a.wav")
    assert fetch(f"pipe:cat {path}", None, None, KEEP).data == path.read_bytes()
    assert fetch(f"pipe:cat {path}", 0.5, None, KEEP).info.num_samples == 8000
    with pytest.raises(AudioError, match=r"the command failed with status 3: .*: out of tea"):
        fetch(f"pipe:cat {path}; echo out of tea >&2; exit 3", None, None, KEEP)
    with pytest.raises(AudioError, match="gave no audio"):
        fetch("pipe:true", None, None, KEEP)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(AudioError, match="No such file"):
        fetch(str(tmp_path / "none.wav"), None, None, KEEP)
    path = write_audio(tmp_path / "a.wav")
    path.write_bytes(path.read_bytes()[:-1000])
    for start in (None, 0.25):
        with pytest.raises(AudioError, match="truncated"):
            fetch(str(path), start, None, KEEP)


def test_remote_audio(tmp_path: Path) -> None:
    path = write_audio(tmp_path / "a.wav")
    with fsspec.open("memory://corpus/a.wav", "wb") as file:
        file.write(path.read_bytes())
    assert fetch("memory://corpus/a.wav", None, None, KEEP).data == path.read_bytes()
    assert fetch("memory://corpus/a.wav", 0.5, None, KEEP).info.num_samples == 8000


def test_a_folder_that_may_no_longer_be_entered_is_no_verdict_on_its_files() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        path = write_audio(folder / "a.wav")
        path.chmod(0)
        with as_anybody():
            raise_if_it_may_come_back(refusal(path), str(path))  # forbidden itself: a verdict
        folder.chmod(0)
        with as_anybody(), pytest.raises(StorageError, match="was there when the corpus was listed"):
            raise_if_it_may_come_back(refusal(path), str(path))
        folder.chmod(0o755)


def refusal(path: Path) -> AudioError:
    with pytest.raises(AudioError, match="Permission denied") as refused:
        fetch(str(path), None, None, KEEP)
    return refused.value


@contextlib.contextmanager
def as_anybody() -> Iterator[None]:
    """Without root's right to read whatever there is."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(54_321)
    try:
        yield
    finally:
        os.seteuid(before)
