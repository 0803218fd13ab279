"""`export`: a dataset as other tools read it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from uttershard.pipeline.dataset.files import StorageOptions
from uttershard.pipeline.dataset.shardset import ShardSet
from uttershard.pipeline.errors import ConfigError

from ..commit import local_folder
from ..progress import Done, Progress, Silent
from ..targets.opening import refuse_empty
from .espnet import write_espnet
from .jsonl import write_jsonl
from .kaldi import BLANKS, write_kaldi
from .lhotse import write_lhotse
from .nemo import write_nemo, write_nemo_tarred
from .utterances import Utterance, absolute, read_utterances
from .webdataset import write_webdataset

LAYOUTS = ("kaldi", "espnet", "lhotse", "nemo", "jsonl", "webdataset")

_WRITERS = {"kaldi": write_kaldi, "espnet": write_espnet, "lhotse": write_lhotse, "jsonl": write_jsonl}
_AUDIO_FOLDER = "audio"
_WITH_TABLES = frozenset({"kaldi", "espnet"})


@dataclass(frozen=True)
class ExportSummary:
    """What `export` has written."""

    dataset: str
    to: str
    files: tuple[str, ...]
    utterances: int
    extracted: bool
    trimmed: int = 0
    """Texts that lost blanks at their ends, for which the tables of Kaldi and ESPnet have no place."""


def export(
    dataset: str,
    to: str,
    out: str,
    *,
    extract: bool = False,
    progress: Progress | None = None,
    storage_options: StorageOptions | None = None,
) -> ExportSummary:
    """Write manifests of another tool that point into the shards of a dataset.

    Args:
        dataset: Address of the dataset.
        to: Which tool, one of LAYOUTS.
        out: Folder for the manifests; made, and must hold nothing.
        extract: Write the audio as files below `out` and point at those; for webdataset copy the tars.
        progress: Told how far it is.
        storage_options: Keyword arguments of the dataset's fsspec file system.

    Raises:
        ConfigError: An unknown layout, or a folder that holds something.
        DataError: An utterance is damaged, or has an id or text that the layout can't hold.
    """
    if to not in LAYOUTS:
        raise ConfigError(f"can't export to {to!r}; known are {', '.join(LAYOUTS)}")
    refuse_empty(out)
    opened, folder = ShardSet.open(dataset, storage_options), local_folder(out, "an export is")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: holds something already; choose another folder, or empty it")
    folder.mkdir(parents=True, exist_ok=True)
    listener, trimmed = progress or Silent(), list[str]()
    listener.begin("export", utterances=opened.manifest.utterances, seconds=opened.manifest.seconds)
    try:
        if to == "webdataset":
            tars = [absolute(opened.tar_address(shard)) for shard in range(len(opened.manifest.shards))]
            files = write_webdataset(opened, tars, folder, extract=extract)
        else:
            utterances = read_utterances(opened, folder.absolute() / _AUDIO_FOLDER if extract else None)
            write = _WRITERS.get(to) or (write_nemo if extract else write_nemo_tarred)
            watched = _watched(utterances, listener)
            files = write(_trimmed(watched, trimmed) if to in _WITH_TABLES else watched, folder)
    finally:
        listener.end()
    return ExportSummary(opened.address, to, tuple(map(str, files)), opened.manifest.utterances, extract, len(trimmed))


def _trimmed(utterances: Iterable[Utterance], noted: list[str]) -> Iterator[Utterance]:
    """Take the blanks off the ends of texts, and note whose."""
    for utterance in utterances:
        text = utterance.text.strip(BLANKS) if utterance.text else utterance.text
        if text != utterance.text:
            noted.append(utterance.key)
        yield replace(utterance, text=text)


def _watched(utterances: Iterable[Utterance], listener: Progress) -> Iterator[Utterance]:
    for utterance in utterances:
        listener.advance(Done(utterances=1, seconds=utterance.seconds))
        yield utterance
