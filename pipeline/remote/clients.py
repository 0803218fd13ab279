"""The clients of this process: one for each store, chosen by the address."""

import os
import threading
from collections.abc import Mapping
from typing import Any

import fsspec
from fsspec.utils import tokenize

from ..errors import ConfigError
from .client import CONNECTIONS, Client
from .faults import redact

_clients: dict[tuple[str, str, str, bool], Client] = {}
"""Of this process, by kind of store, its name in the address, and options. fsspec keeps one for each thread instead."""
_opening = threading.Lock()


_inherited: list[Client] = []
"""Of the parent process. Kept, because letting go of them would close connections that are the parent's."""


def _start_anew() -> None:
    global _opening
    _inherited.extend(_clients.values())
    _clients.clear()
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_start_anew)


def open_client(address: str, options: Mapping[str, Any], *, bulk: bool = False) -> tuple[Client, str]:
    """Return the client for an address, and the path of the address in it.

    Args:
        address: Any object.
        options: Keyword arguments of the fsspec file system.
        bulk: Whether much will be read: then the fastest client there is, which may not survive a fork.

    Raises:
        ConfigError: fsspec does not know the kind of address, or its package is not installed.
    """
    protocol, _, rest = address.partition("://")
    key = (protocol, rest.partition("/")[0], tokenize(options), bulk)
    with _opening:
        client = _clients.get(key)
        if client is None:
            try:
                client = _clients[key] = _new_client(protocol, address, options, bulk=bulk)
            except (ValueError, ImportError, TypeError) as error:
                why = redact(str(error), options)
                raise ConfigError(f"{redact(address)}: {why} (look at the address and storage_options)") from None
    if "::" in address:
        return client, fsspec.core.url_to_fs(address, **options)[1]
    return client, client.filesystem._strip_protocol(address)


def _new_client(protocol: str, address: str, options: Mapping[str, Any], *, bulk: bool) -> Client:
    # Imported when needed: they bring aiohttp and botocore along, and most datasets are local.
    if protocol in ("s3", "s3a"):
        from . import obstore_s3
        from .s3 import S3Client, s3_options

        kind = obstore_s3.ObstoreClient if bulk and obstore_s3.is_usable(options) else S3Client
        options = s3_options(options, CONNECTIONS)
        return kind(fsspec.core.url_to_fs(address, **options)[0], options)
    filesystem, _ = fsspec.core.url_to_fs(address, **options)
    if protocol in ("http", "https"):
        from .http import HttpClient

        return HttpClient(filesystem, options)
    from .generic import GenericClient

    return GenericClient(filesystem, options, protocol)
