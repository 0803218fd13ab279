"""The folder a dataset is packed into: what may be there already, and what is ours to remove."""

import re
from pathlib import Path

from uttershard.pipeline.dataset.files import local_path
from uttershard.pipeline.dataset.manifest import MANIFEST_NAME, Manifest, decode_manifest
from uttershard.pipeline.errors import ConfigError, DataError

from .commit import storage_errors
from .job import JOB_FOLDER, JobFolder
from .quarantine import ERRORS_NAME

_SHARD_FILE = re.compile(r"shard-\d{6,}\.(tar|parquet)")
_SHOWN = 3


def open_target(address: str, *, overwrite: bool) -> JobFolder:
    """Return the job folder of a target that may be packed into.

    Raises:
        ConfigError: It is not local, no folder, or holds files that no pack job has left there.
    """
    path = local_path(address)
    if path is None:
        raise ConfigError(
            f"{address}: pack into a local folder, then copy it there (the store must get dataset.json last)"
        )
    target = Path(path).absolute()
    if target.exists() and not target.is_dir():
        raise ConfigError(f"{target}: a file; the target must be a folder, or not there yet")
    folder = JobFolder(target)
    if not overwrite and not (target / MANIFEST_NAME).exists() and not (folder.path / "job.json").exists():
        foreign = sorted(name for name in _names(target) if name not in (JOB_FOLDER, ERRORS_NAME))
        if foreign:
            shown = ", ".join(foreign[:_SHOWN]) + (", …" if len(foreign) > _SHOWN else "")
            raise ConfigError(
                f"{target}: holds files but neither a dataset nor an unfinished pack job ({shown}): choose an empty or "
                "new folder. With overwrite it is used all the same: only files named as a dataset's are removed"
            )
    return folder


def read_manifest(target: Path) -> Manifest | None:
    """Return the manifest of a finished dataset, None if there is none.

    Raises:
        DataError: It is damaged, or shards that it lists are not there in full.
    """
    path = target / MANIFEST_NAME
    if not path.exists():
        return None
    manifest = decode_manifest(path.read_bytes(), str(path))
    for shard in manifest.shards:
        for name, nbytes in ((shard.tar, shard.tar_bytes), (shard.sidecar, shard.sidecar_bytes)):
            file = target / name
            found = file.stat().st_size if file.exists() else None
            if found != nbytes:
                state = "is missing" if found is None else f"has {found} bytes"
                raise DataError(f"{file} {state}, dataset.json says {nbytes} bytes: pack again with overwrite")
    return manifest


def remove_dataset(folder: JobFolder) -> None:
    """Remove what a pack job has left, the manifest first, so that no half of a dataset is ever taken for one.

    The lock stays: it is held.
    """
    with storage_errors(folder.target):
        (folder.target / MANIFEST_NAME).unlink(missing_ok=True)
        folder.forget()
        for name in _names(folder.target):
            if name == ERRORS_NAME or _SHARD_FILE.fullmatch(name):
                (folder.target / name).unlink()


def _names(target: Path) -> list[str]:
    return [path.name for path in target.iterdir()] if target.exists() else []
