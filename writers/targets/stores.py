"""The choice of how a store is written to, by address; one of each kind in a process."""

import os
import threading
from collections.abc import Mapping
from typing import Any

from fsspec.utils import tokenize
from uttershard.pipeline.errors import ConfigError
from uttershard.pipeline.remote.faults import redact

from .objects import Objects

_opened: dict[tuple[int, str, str, str], Objects] = {}
"""By process (connections do not survive a fork), kind of store, its name in the address, and options."""
_opening = threading.Lock()


def open_objects(address: str, options: Mapping[str, Any]) -> Objects:
    """Return what writes to a store.

    Raises:
        ConfigError: fsspec does not know the kind of address, its package is not installed, or it is read-only.
    """
    protocol, _, rest = address.partition("://")
    key = (os.getpid(), protocol, rest.partition("/")[0], tokenize(options))
    with _opening:
        if key not in _opened:
            try:
                _opened[key] = _new_objects(protocol, address, options)
            except (ValueError, ImportError, TypeError) as error:
                why = redact(str(error), options)
                raise ConfigError(f"{redact(address)}: {why} (look at the address and storage_options)") from None
        return _opened[key]


def _new_objects(protocol: str, address: str, options: Mapping[str, Any]) -> Objects:
    if protocol in ("http", "https") or "::" in address:
        raise ConfigError(f"{redact(address)}: can only be read; pack to s3:// or a local folder")
    # Imported when needed: s3fs brings aiohttp and botocore along.
    if protocol in ("s3", "s3a"):
        from .s3 import S3Objects

        return S3Objects(address, options)
    from .generic import GenericObjects

    return GenericObjects(address, options)
