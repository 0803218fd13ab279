"""Files are read into the same memory one after the other, whatever size they are said to have."""

from pathlib import Path

import pytest
from uttershard.pipeline.reading.codecs import AudioError
from uttershard.writers.audio_files import read_audio
from uttershard.writers.byte_files import ReusedBuffer


@pytest.mark.parametrize("said", [0, 1, 4999, 5000, 5001, 100_000])
def test_whole_files_one_after_the_other(tmp_path: Path, said: int) -> None:
    buffer = ReusedBuffer()
    for number, size in enumerate((5000, 0, 1, 70_000, 5000)):
        path = tmp_path / f"{number}"
        path.write_bytes(bytes([number + 1]) * size)
        with path.open("rb", buffering=0) as file:
            assert bytes(buffer.read(file, said)) == bytes([number + 1]) * size


def test_what_can_not_be_read_is_a_verdict(tmp_path: Path) -> None:
    buffer = ReusedBuffer()
    with pytest.raises(AudioError, match=r"gone\.wav can't be read \(No such file"):
        read_audio(str(tmp_path / "gone.wav"), buffer)
    with pytest.raises(AudioError, match="can't be read"):
        read_audio(str(tmp_path), buffer)
