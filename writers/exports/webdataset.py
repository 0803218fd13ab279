"""For WebDataset the shards are what it reads already: a list of them, and with --extract copies of the tars."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import fsspec
from uttershard.pipeline.dataset.manifest import shard_names

from ..commit import storage_errors
from ..sources.webdataset import LIST_NAME
from .files import new_file

_COPY_BYTES = 8 << 20


def write_webdataset(tars: Sequence[str], out: Path, *, extract: bool) -> list[Path]:
    """Write `shards.list`, one address a line; with `extract` of copies made in `out`."""
    listed, written = list(tars), []
    if extract:
        for index, tar in enumerate(tars):
            copy = out / shard_names(index)[0]  # parts of a merged dataset have tars of one name
            with storage_errors(copy), fsspec.open(tar, "rb") as source, copy.open("wb") as target:
                shutil.copyfileobj(source, target, _COPY_BYTES)
            listed[index] = copy.name
            written.append(copy)
    path = out / LIST_NAME
    with new_file(path) as file:
        file.writelines(f"{tar}\n" for tar in listed)
    return [path, *written]
