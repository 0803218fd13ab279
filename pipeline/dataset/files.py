"""Small whole files by address, local or remote: what manifests and sidecars need.

An address is a local path, `file://…`, `s3://…`, `https://…` or anything else that fsspec knows.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import DataError, StorageError
from ..remote.retry import Limits
from ..remote.store import Store

StorageOptions = Mapping[str, Any]
"""Keyword arguments of the fsspec file system (credentials, endpoint); never logged, never stored."""


def join(base: str, name: str) -> str:
    """Resolve an address found in a manifest against the folder of the manifest."""
    if "://" in name or name.startswith("/"):
        return name
    return f"{base.rstrip('/')}/{name}"


def local_path(address: str) -> str | None:
    """Return the path of a local address, or None if it is remote.

    Example:
        >>> local_path("file:///data/train"), local_path("/data/train"), local_path("s3://bucket/train")
        ('/data/train', '/data/train', None)
    """
    if address.startswith("file://"):
        return address.removeprefix("file://")
    return None if "://" in address or "::" in address else address


def read_bytes(address: str, options: StorageOptions | None = None, limits: Limits | None = None) -> bytes:
    """Read a whole small file.

    Raises:
        DataError: It does not exist.
        StorageError: It could not be read, or not within the limits.
    """
    path = local_path(address)
    if path is None:
        return Store(options, limits).read(address)
    try:
        return Path(path).read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"{address}: does not exist") from error
    except OSError as error:
        raise StorageError(f"{address}: could not be read ({type(error).__name__}: {error})") from error


def file_size(address: str, options: StorageOptions | None = None, limits: Limits | None = None) -> int:
    """Return the size of a file in bytes.

    Raises:
        DataError: It does not exist.
        StorageError: It could not be asked for, or not within the limits.
    """
    path = local_path(address)
    if path is None:
        return Store(options, limits).head(address).size
    try:
        return Path(path).stat().st_size
    except FileNotFoundError as error:
        raise DataError(f"{address}: does not exist") from error
    except OSError as error:
        raise StorageError(f"{address}: could not be looked up ({type(error).__name__}: {error})") from error
