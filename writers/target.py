"""The place a dataset is packed into: what may be there already, and what is ours to remove."""

import re

from uttershard.pipeline.dataset.manifest import MANIFEST_NAME, Manifest, decode_manifest
from uttershard.pipeline.errors import ConfigError, DataError

from .quarantine import ERRORS_NAME
from .records import JobRecords
from .targets.base import JOB_FOLDER, Target

_SHARD_FILE = re.compile(r"shard-\d{6,}\.(tar|parquet)")
_SHOWN = 3


def check_target(target: Target, *, overwrite: bool) -> None:
    """See whether a target may be packed into.

    Raises:
        ConfigError: It holds files that no pack job has left there.
    """
    if overwrite or target.size(MANIFEST_NAME) is not None or JobRecords(target).exists():
        return
    tops = {name.partition("/")[0] for name in target.names()}
    foreign = sorted(tops - {JOB_FOLDER, ERRORS_NAME})
    if foreign:
        shown = ", ".join(foreign[:_SHOWN]) + (", …" if len(foreign) > _SHOWN else "")
        raise ConfigError(
            f"{target}: holds files but neither a dataset nor an unfinished pack job ({shown}): choose an empty or "
            "new folder. With overwrite it is used all the same: only files named as a dataset's are removed"
        )


def check_new(target: Target) -> None:
    """See whether a new dataset may be written into a target.

    Raises:
        ConfigError: It holds one, or a pack job that is unfinished.
    """
    if target.size(MANIFEST_NAME) is not None:
        raise ConfigError(f"{target}: holds a dataset already; choose another folder")
    if JobRecords(target).exists():
        raise ConfigError(f"{target}: an unfinished pack is in it; choose another folder")


def read_manifest(target: Target) -> Manifest | None:
    """Return the manifest of a finished dataset, None if there is none.

    Raises:
        DataError: It is damaged, or shards that it lists are not there in full.
    """
    data = target.read(MANIFEST_NAME)
    if data is None:
        return None
    manifest = decode_manifest(data, target.where(MANIFEST_NAME))
    for shard in manifest.shards:
        for name, nbytes in ((shard.tar, shard.tar_bytes), (shard.sidecar, shard.sidecar_bytes)):
            found = target.size(name)
            if found != nbytes:
                state = "is missing" if found is None else f"has {found} bytes"
                raise DataError(
                    f"{target.where(name)} {state}, dataset.json says {nbytes} bytes: pack again with overwrite"
                )
    return manifest


def remove_dataset(target: Target) -> None:
    """Remove what a pack job has left, the manifest first, so that no half of a dataset is ever taken for one.

    The lock stays: it is held.
    """
    target.delete(MANIFEST_NAME)
    target.forget_job()
    for name in target.names():
        if name == ERRORS_NAME or _SHARD_FILE.fullmatch(name):
            target.delete(name)
