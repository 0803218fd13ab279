"""NeMo manifests: a tarred one over our tars, or a plain one over extracted files.

    tarred_audio_manifest.json   audio_filepath is the member's name, shard_id the number of its tar
    manifest.json                with --extract: audio_filepath is a file

Train on the tarred one with `tarred_audio_filepaths` set to the tars: they are as NeMo wants them.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from uttershard.pipeline.errors import ConfigError

from ..patterns import shard_number
from .files import write_json_lines
from .utterances import Utterance


def write_nemo(utterances: Iterable[Utterance], out: Path) -> list[Path]:
    """Write the manifest of an extracted export."""
    path = out / "manifest.json"
    write_json_lines(path, (_record(utterance, utterance.audio.address) for utterance in utterances))
    return [path]


def write_nemo_tarred(utterances: Iterable[Utterance], out: Path) -> list[Path]:
    """Write the manifest of a tarred dataset.

    Raises:
        ConfigError: NeMo would take one utterance for another, as a merged dataset can have it.
    """
    path = out / "tarred_audio_manifest.json"
    write_json_lines(path, _tarred_records(utterances))
    return [path]


def _tarred_records(utterances: Iterable[Utterance]) -> Iterator[dict[str, object]]:
    """Yield the records, with what NeMo finds an utterance by: the number of its tar and its member's name."""
    tars: dict[int, str] = {}
    members: set[tuple[int, str]] = set()
    for utterance in utterances:
        tar, number = utterance.audio.address, shard_number(utterance.audio.address)
        number = utterance.shard if number is None else number
        if tars.setdefault(number, tar) != tar or (number, utterance.member) in members:
            raise ConfigError(
                f"{tar}: NeMo can't find the utterance {utterance.key!r} in it, since another tar has its number or "
                "another member its name, as in merged datasets; extract"
            )
        members.add((number, utterance.member))
        yield {**_record(utterance, utterance.member), "shard_id": number}


def _record(utterance: Utterance, audio: str) -> dict[str, object]:
    return {
        **utterance.metadata,
        "id": utterance.key,
        "audio_filepath": audio,
        "duration": utterance.seconds,
        # NeMo's collections require the field.
        "text": utterance.text or "",
    }
