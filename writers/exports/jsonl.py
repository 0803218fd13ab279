"""A JSONL manifest, one that `uttershard pack` reads: audio_filepath, text, duration, id, and all metadata."""

from collections.abc import Iterable
from pathlib import Path

from .files import write_json_lines
from .places import as_range
from .utterances import Utterance

NAME = "manifest.jsonl"


def write_jsonl(utterances: Iterable[Utterance], out: Path) -> list[Path]:
    """Write `manifest.jsonl`."""
    path = out / NAME
    write_json_lines(
        path,
        (
            {
                **utterance.metadata,
                "id": utterance.key,
                "audio_filepath": as_range(utterance.audio),
                "duration": utterance.seconds,
                **({} if utterance.text is None else {"text": utterance.text}),
            }
            for utterance in utterances
        ),
    )
    return [path]
