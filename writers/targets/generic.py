"""Writing through the calls that all of fsspec's file systems have (implements Objects): gs://, az://, hf://, …

They differ in what an interrupted write leaves, so a shard is written to a temporary file first and put in one call.
There are no conditions.
"""

import asyncio
import errno
import os
from collections.abc import Mapping
from typing import Any

import fsspec
from uttershard.pipeline.remote.faults import MissingError, TransientError
from uttershard.pipeline.remote.generic import GenericClient

from .base import Stored
from .objects import FullError, UnsupportedError


class GenericObjects(GenericClient):
    """`pipe_file`, `put_file`, `find`, `rm_file`."""

    def __init__(self, address: str, options: Mapping[str, Any]) -> None:
        protocol = address.partition("://")[0]
        super().__init__(fsspec.core.url_to_fs(address, **options)[0], options, protocol)

    async def put(self, path: str, data: bytes, seconds: float, before: str | None = None) -> str | None:
        """Put an object; conditions are refused."""
        if before is not None:
            raise UnsupportedError("conditional put")
        await self._ask("makedirs", seconds, path.rpartition("/")[0], exist_ok=True)
        await self._ask("pipe_file", seconds, path, data)
        return None

    async def put_file(self, path: str, file: str, seconds: float) -> None:
        """Put a local file."""
        await self._ask("makedirs", seconds, path.rpartition("/")[0], exist_ok=True)
        await self._ask("put_file", seconds, file, path)

    async def delete(self, path: str, seconds: float) -> None:
        """Remove an object."""
        try:
            await self._ask("rm_file", seconds, path)
        except MissingError:
            return

    async def list(self, folder: str, seconds: float) -> Mapping[str, Stored]:
        """List with what `find` knows."""
        self.filesystem.invalidate_cache()
        found = await self._ask("find", seconds, folder, detail=True)
        return {str(path): Stored(int(info["size"]), _tag(info)) for path, info in found.items()}

    async def _ask(self, name: str, seconds: float, *args: Any, **kwargs: Any) -> Any:
        try:
            answer = await asyncio.wait_for(self._call(name, *args, **kwargs), seconds)
        except TimeoutError:
            raise TransientError(f"no answer within {seconds:g} s") from None
        except Exception as error:  # noqa: BLE001 - sorted by kind
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise FullError(os.strerror(error.errno)) from None
            raise self._fault(error, seconds) from None
        self.contacted = True
        return answer


def _tag(info: Mapping[str, Any]) -> str | None:
    tag = info.get("ETag") or info.get("etag")
    return None if tag is None else str(tag)
