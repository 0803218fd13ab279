"""Opening a target by its address."""

from pathlib import Path

from uttershard.pipeline.dataset.files import StorageOptions, local_path
from uttershard.pipeline.errors import ConfigError

from .base import Target
from .limits import WriteLimits
from .local import LocalTarget


def open_target(address: str, options: StorageOptions | None, limits: WriteLimits) -> Target:
    """Return the target at an address.

    Args:
        address: Of the dataset's folder.
        options: Keyword arguments of the fsspec file system.
        limits: How long a store may take.

    Raises:
        ConfigError: It can't be written to, whatever it holds.
    """
    refuse_empty(address)
    path = local_path(address)
    if path is not None:
        return LocalTarget(Path(path).absolute())
    # Imported when needed: most targets are local.
    from .remote import RemoteTarget

    return RemoteTarget(address, dict(options or {}), limits)


def refuse_empty(address: str) -> None:
    """Refuse an address that says nothing, as of a variable that is not set: it would be the working directory.

    Raises:
        ConfigError: It is empty.
    """
    if local_path(address) == "":
        raise ConfigError("the address to write to is empty: give a folder (. is the working directory)")
