"""Any other store that fsspec knows (gs://, az://, hf://, …), by the calls that all its file systems have.

An attempt is all or nothing here, so that the next one asks for the whole range again.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp
from fsspec.asyn import AsyncFileSystem

from .client import Client
from .faults import AttemptError, DeniedError, HopelessError, MissingError, TransientError, first_line, redact
from .transfer import ObjectInfo, Transfer


class GenericClient(Client):
    """Reads through `cat_file` and `info`."""

    def __init__(self, filesystem: Any, options: Mapping[str, Any], protocol: str) -> None:
        self.filesystem = filesystem
        self._options = dict(options)
        self.contacted = False
        self.credentials_hint = (
            f"Credentials are found as fsspec's package for {protocol}:// does it; storage_options are passed on to it"
        )

    async def get(self, transfer: Transfer, stall: float) -> None:
        """Append all that is missing at once."""
        stop = transfer.stop
        limits = {} if transfer.range_header is None else {"start": transfer.position, "end": stop}
        try:
            transfer.add(await asyncio.wait_for(self._call("cat_file", transfer.path, **limits), stall))
        except Exception as error:  # noqa: BLE001 - sorted by kind
            raise self._fault(error, stall) from None
        self.contacted = True
        transfer.check_complete()

    async def head(self, path: str, stall: float) -> ObjectInfo:
        """Ask for the size of an object."""
        try:
            info = await asyncio.wait_for(self._call("info", path), stall)
        except Exception as error:  # noqa: BLE001 - sorted by kind
            raise self._fault(error, stall) from None
        self.contacted = True
        etag = info.get("ETag") or info.get("etag")
        return ObjectInfo(int(info["size"]), None if etag is None else str(etag))

    async def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.filesystem, AsyncFileSystem):
            return await getattr(self.filesystem, f"_{name}")(*args, **kwargs)
        return await asyncio.to_thread(getattr(self.filesystem, name), *args, **kwargs)

    def _fault(self, error: Exception, stall: float) -> AttemptError:
        said = redact(first_line(error), self._options)
        if isinstance(error, AttemptError):
            return error
        if isinstance(error, FileNotFoundError):
            return MissingError("no such file")
        if isinstance(error, PermissionError):
            return DeniedError(said)
        if isinstance(error, TimeoutError):
            return TransientError(f"no answer within {stall:g} s")
        if isinstance(error, OSError | aiohttp.ClientError):
            return TransientError(said)
        return HopelessError(said)
