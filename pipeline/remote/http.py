"""HTTP and HTTPS through the session of fsspec (aiohttp); the server has to answer ranges, as nearly all do."""

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp

from .client import Client
from .faults import (
    AttemptError,
    DeniedError,
    HopelessError,
    MissingError,
    ReplacedError,
    TransientError,
    UnreachableError,
    first_line,
    redact,
)
from .transfer import ObjectInfo, Transfer, size_in_content_range

_CHUNK = 1 << 20


class HttpClient(Client):
    """GET and HEAD of web resources."""

    credentials_hint = (
        "Give what the server wants in storage_options, e.g. {'headers': {'Authorization': …}} or a signed address"
    )

    def __init__(self, filesystem: Any, options: Mapping[str, Any]) -> None:
        self.filesystem = filesystem
        self._options = dict(options)
        self.contacted = False

    async def get(self, transfer: Transfer, stall: float) -> None:
        """Append what is missing, as it arrives."""
        # What the server would compress has other offsets than the file.
        headers = {"Accept-Encoding": "identity"}
        if (header := transfer.range_header) is not None:
            headers["Range"] = header
        try:
            async with await self._request("GET", transfer.path, headers, stall) as answer:
                self.contacted = True
                _check_status(answer)
                if header is not None and answer.status != 206:
                    raise HopelessError("the server sends whole files where a range is asked for: use another")
                size = size_in_content_range(answer.headers.get("Content-Range"))
                transfer.answered(
                    size=answer.content_length if header is None else size, etag=answer.headers.get("ETag")
                )
                while chunk := await asyncio.wait_for(answer.content.read(_CHUNK), stall):
                    transfer.add(chunk)
        except Exception as error:  # noqa: BLE001 - sorted by kind
            raise self._fault(error, stall) from None
        transfer.check_complete()

    async def head(self, path: str, stall: float) -> ObjectInfo:
        """Ask for size and ETag of a resource."""
        try:
            async with await self._request("HEAD", path, {"Accept-Encoding": "identity"}, stall) as answer:
                self.contacted = True
                _check_status(answer)
                length = answer.headers.get("Content-Length", "")
                if not length.isdecimal():
                    raise HopelessError("the server does not say how long the file is")
                return ObjectInfo(int(length), answer.headers.get("ETag"))
        except Exception as error:  # noqa: BLE001 - sorted by kind
            raise self._fault(error, stall) from None

    async def _request(self, method: str, url: str, headers: dict[str, str], stall: float) -> aiohttp.ClientResponse:
        session = await self.filesystem.set_session()
        settings = dict(self.filesystem.kwargs)
        settings["headers"] = {**settings.get("headers", {}), **headers}
        settings["timeout"] = aiohttp.ClientTimeout(total=None, sock_connect=stall, sock_read=stall)
        answer: aiohttp.ClientResponse = await asyncio.wait_for(
            session.request(method, self.filesystem.encode_url(url), allow_redirects=True, **settings), stall
        )
        return answer

    def _fault(self, error: Exception, stall: float) -> AttemptError:
        if isinstance(error, AttemptError):
            return error
        said = redact(first_line(error), self._options)
        if isinstance(error, aiohttp.ClientConnectorError):
            return UnreachableError(said)
        if isinstance(error, TimeoutError):
            return TransientError(f"no byte within {stall:g} s")
        if isinstance(error, aiohttp.InvalidURL):
            return HopelessError(said)
        if isinstance(error, aiohttp.ClientError | OSError):
            return TransientError(said)
        return HopelessError(said)


def _check_status(answer: aiohttp.ClientResponse) -> None:
    status, shown = answer.status, f"HTTP {answer.status} {answer.reason or ''}".rstrip()
    if status < 300:
        return
    if status in (408, 425, 429, 500, 502, 503, 504):
        after = answer.headers.get("Retry-After", "")
        raise TransientError(shown, float(after) if after.isdecimal() else None)
    if status in (401, 403, 407):
        raise DeniedError(shown)
    if status in (404, 410):
        raise MissingError(shown)
    if status == 416:
        raise ReplacedError("the file ends before the range that was asked for: it has been cut or replaced")
    raise HopelessError(shown)
