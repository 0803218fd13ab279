"""Lhotse manifests: recordings.jsonl and supervisions.jsonl.

A recording's source is the extracted file, or a command (`tail … | head …`) that prints the bytes out of the tar.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .files import new_file
from .places import as_command
from .utterances import Utterance

_FIELDS = ("speaker", "language", "gender")
"""Metadata that a supervision has fields of its own for; what else there is becomes `custom`."""


def write_lhotse(utterances: Iterable[Utterance], out: Path) -> list[Path]:
    """Write the two manifests."""
    recordings, supervisions = out / "recordings.jsonl", out / "supervisions.jsonl"
    with new_file(recordings) as first, new_file(supervisions) as second:
        for utterance in utterances:
            first.write(json.dumps(_recording(utterance), ensure_ascii=False) + "\n")
            second.write(json.dumps(_supervision(utterance), ensure_ascii=False) + "\n")
    return [recordings, supervisions]


def _recording(utterance: Utterance) -> dict[str, Any]:
    audio = utterance.audio
    kind, source = ("file", audio.address) if audio.offset is None else ("command", as_command(audio))
    channels = list(range(utterance.channels))
    return {
        "id": utterance.key,
        "sources": [{"type": kind, "channels": channels, "source": source}],
        "sampling_rate": utterance.sample_rate,
        "num_samples": utterance.num_samples,
        "duration": utterance.seconds,
        "channel_ids": channels,
    }


def _supervision(utterance: Utterance) -> dict[str, Any]:
    metadata = dict(utterance.metadata)
    known = {name: metadata.pop(name) for name in _FIELDS if isinstance(metadata.get(name), str)}
    return {
        "id": utterance.key,
        "recording_id": utterance.key,
        "start": 0.0,
        "duration": utterance.seconds,
        "channel": 0 if utterance.channels == 1 else list(range(utterance.channels)),
        **({} if utterance.text is None else {"text": utterance.text}),
        **known,
        **({"custom": metadata} if metadata else {}),
    }
