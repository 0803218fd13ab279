"""The clients of this process: one for each store, chosen by the address."""

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import fsspec
from fsspec.utils import tokenize

from ..errors import ConfigError
from .client import CONNECTIONS, Client
from .faults import redact

_S3 = ("s3", "s3a")
_MOST_PLACES = 32
"""Each takes some 12 MB; credentials that are given anew every hour, in the options, make a place of their own."""


@dataclass(frozen=True)
class _Place:
    """A store, its name in the address, and options: what its clients have in common."""

    filesystem: Any
    """Of our own: fsspec would keep it for ever, and one for each thread."""
    clients: dict[bool, Client] = field(default_factory=dict)
    """By whether they are for bulk."""


_places: OrderedDict[tuple[str, str, str], _Place] = OrderedDict()
"""Of this process, the one that was used last at the end."""
_opening = threading.Lock()
_inherited: list[_Place] = []
"""Of the parent process. Kept, because letting go of them would close connections that are the parent's."""


def _start_anew() -> None:
    global _opening
    _inherited.extend(_places.values())
    _places.clear()
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
    # Of a chain (zip://a::s3://b/c.zip) every part says where it is.
    key = (protocol, rest if "::" in rest else rest.partition("/")[0], tokenize(options))
    try:
        client = _open(key, address, options, bulk=bulk)
    except (ValueError, ImportError, TypeError) as error:
        raise ConfigError(
            f"{redact(address)}: {redact(str(error), options)} (look at the address and storage_options)"
        ) from None
    if "::" in address:
        return client, fsspec.core.url_to_fs(address, **options)[1]
    return client, client.filesystem._strip_protocol(address)


def _open(key: tuple[str, str, str], address: str, options: Mapping[str, Any], *, bulk: bool) -> Client:
    dropped = None  # outside the lock: its connections are closed with it
    with _opening:
        place = _places.get(key)
        if place is None:
            place = _places[key] = _Place(_new_filesystem(key[0], address, options))
            if len(_places) > _MOST_PLACES:
                _, dropped = _places.popitem(last=False)
        _places.move_to_end(key)
        client = place.clients.get(bulk)
        if client is None:
            client = place.clients[bulk] = _new_client(key[0], place.filesystem, options, bulk=bulk)
    del dropped
    return client


def _new_filesystem(protocol: str, address: str, options: Mapping[str, Any]) -> Any:
    if protocol in _S3:
        from .s3 import s3_options

        options = s3_options(options, CONNECTIONS)
    return fsspec.core.url_to_fs(address, **{**options, "skip_instance_cache": True})[0]


def _new_client(protocol: str, filesystem: Any, options: Mapping[str, Any], *, bulk: bool) -> Client:
    # Imported when needed: they bring aiohttp and botocore along, and most datasets are local.
    if protocol in _S3:
        from . import obstore_s3
        from .s3 import S3Client, s3_options

        kind = obstore_s3.ObstoreClient if bulk and obstore_s3.is_usable(options) else S3Client
        return kind(filesystem, s3_options(options, CONNECTIONS))
    if protocol in ("http", "https"):
        from .http import HttpClient

        return HttpClient(filesystem, options)
    from .generic import GenericClient

    return GenericClient(filesystem, options, protocol)
