"""A Kaldi data directory: wav.scp, text, utt2spk, spk2utt, utt2dur, utt2num_samples.

wav.scp points at extracted files, or into the tars by commands (`tail … | head … |`): Kaldi reads audio from a pipe,
and `uttershard pack --allow-pipes` does.
"""

from collections.abc import Iterable
from pathlib import Path

from uttershard.pipeline.errors import DataError

from .files import write_table
from .places import as_command
from .utterances import Utterance

BLANKS = " \t\n\v\f\r"
"""What separates the fields of a table."""


def write_kaldi(utterances: Iterable[Utterance], out: Path) -> list[Path]:
    """Write the directory's files.

    Raises:
        DataError: An id or a text that a Kaldi table can't hold.
    """
    tables: dict[str, list[tuple[str, str]]] = {
        name: [] for name in ("wav.scp", "text", "utt2spk", "utt2lang", "utt2dur", "utt2num_samples")
    }
    speakers: dict[str, list[str]] = {}
    for utterance in utterances:
        key = _field(utterance.key, utterance.key, "id")
        audio = utterance.audio
        tables["wav.scp"].append((key, audio.address if audio.offset is None else f"{as_command(audio)} |"))
        tables["utt2dur"].append((key, repr(utterance.seconds)))
        tables["utt2num_samples"].append((key, str(utterance.num_samples)))
        # Without a speaker an utterance is its own, as Kaldi's data preparation has it.
        speaker = _field(str(utterance.metadata.get("speaker", key)), key, "speaker")
        tables["utt2spk"].append((key, speaker))
        speakers.setdefault(speaker, []).append(key)
        if "language" in utterance.metadata:
            tables["utt2lang"].append((key, _field(str(utterance.metadata["language"]), key, "language")))
        if utterance.text is not None:
            tables["text"].append((key, _line(utterance.text, key)))
    tables["spk2utt"] = [(speaker, " ".join(sorted(keys))) for speaker, keys in speakers.items()]
    written = [out / name for name, rows in tables.items() if rows]
    for path in written:
        write_table(path, tables[path.name])
    return written


def _field(value: str, key: str, what: str) -> str:
    if not value or set(BLANKS).intersection(value):
        raise DataError(
            f"utterance {key!r}: the {what} {value!r} is empty or has a blank, which a Kaldi table can't hold"
        )
    return value


def _line(text: str, key: str) -> str:
    if "\n" in text or "\r" in text:
        raise DataError(f"utterance {key!r}: its text has several lines, which a Kaldi table can't hold")
    return text
