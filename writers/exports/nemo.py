"""NeMo manifests: a tarred one over our tars, or a plain one over extracted files.

    tarred_audio_manifest.json   audio_filepath is the member's name, shard_id the number of its tar
    manifest.json                with --extract: audio_filepath is a file

Train on the tarred one with `tarred_audio_filepaths` set to the tars: they are as NeMo wants them.
"""

from collections.abc import Iterable
from pathlib import Path

from .files import write_json_lines
from .utterances import Utterance


def write_nemo(utterances: Iterable[Utterance], out: Path) -> list[Path]:
    """Write the manifest of an extracted export."""
    path = out / "manifest.json"
    write_json_lines(path, (_record(utterance, utterance.audio.address) for utterance in utterances))
    return [path]


def write_nemo_tarred(utterances: Iterable[Utterance], out: Path) -> list[Path]:
    """Write the manifest of a tarred dataset."""
    path = out / "tarred_audio_manifest.json"
    records = ({**_record(utterance, utterance.member), "shard_id": utterance.shard} for utterance in utterances)
    write_json_lines(path, records)
    return [path]


def _record(utterance: Utterance, audio: str) -> dict[str, object]:
    return {
        **utterance.metadata,
        "id": utterance.key,
        "audio_filepath": audio,
        "duration": utterance.seconds,
        # NeMo's collections require the field.
        "text": utterance.text or "",
    }
