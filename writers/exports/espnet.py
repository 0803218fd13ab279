"""An ESPnet data directory: Kaldi's files, and the shape files that its batch samplers read, by utterance id.

speech_shape   <id> <samples>
feats_shape    <id> <frames>,80       frames of 25 ms every 10 ms that fit into the audio, as Kaldi's fbank counts
text_shape     <id> <characters>
"""

from collections.abc import Iterable
from pathlib import Path

from .files import write_table
from .kaldi import write_kaldi
from .utterances import Utterance

_WINDOW_MS, _SHIFT_MS, _DIMENSIONS = 25, 10, 80


def write_espnet(utterances: Iterable[Utterance], out: Path) -> list[Path]:
    """Write the directory's files."""
    shapes: dict[str, list[tuple[str, str]]] = {"speech_shape": [], "feats_shape": [], "text_shape": []}

    def noting_shapes() -> Iterable[Utterance]:
        for utterance in utterances:
            shapes["speech_shape"].append((utterance.key, str(utterance.num_samples)))
            shapes["feats_shape"].append((utterance.key, f"{_frames(utterance)},{_DIMENSIONS}"))
            if utterance.text is not None:
                shapes["text_shape"].append((utterance.key, str(len(utterance.text))))
            yield utterance

    written = write_kaldi(noting_shapes(), out)
    for name, rows in shapes.items():
        if rows:
            write_table(out / name, rows)
            written.append(out / name)
    return written


def _frames(utterance: Utterance) -> int:
    window = utterance.sample_rate * _WINDOW_MS // 1000
    shift = utterance.sample_rate * _SHIFT_MS // 1000
    return max(0, 1 + (utterance.num_samples - window) // shift)
