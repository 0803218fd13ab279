"""S3 through the connections of s3fs (aiobotocore): GETs whose body is read piece by piece, so that they can resume.

s3fs's own calls are not used: they retry five times on top of botocore's five, whatever the error.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
    SSLError,
)

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
from .transfer import OTHER_ETAG, ObjectInfo, Transfer, size_in_content_range

Result = TypeVar("Result")

_CHUNK = 1 << 20
_CONNECT_SECONDS = 10.0
_READ_SECONDS = 3600.0
"""Never reached: the limits of each read are kept around the calls."""
BUSY_STATUS = frozenset({429, 500, 502, 503, 504})
_BUSY_CODES = frozenset({"SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "Throttling"})
_DENIED_CODES = frozenset(
    {"AccessDenied", "ExpiredToken", "InvalidToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
)


def s3_options(options: Mapping[str, Any], connections: int) -> dict[str, Any]:
    """Return options for s3fs that leave retries and waits to us; the user's own win."""
    config = {
        "connect_timeout": _CONNECT_SECONDS,
        "read_timeout": _READ_SECONDS,
        "max_pool_connections": connections,
        "retries": {"max_attempts": 0},
        **options.get("config_kwargs", {}),
    }
    return {**options, "config_kwargs": config}


async def within(waiting: Awaitable[Result], stall: float) -> Result:
    """Wait for something that a store has to do; TransientError if it takes longer than `stall` seconds."""
    try:
        return await asyncio.wait_for(waiting, stall)
    except TimeoutError:
        raise TransientError(f"no byte within {stall:g} s") from None


class S3Client(Client):
    """GET and HEAD of S3 objects."""

    def __init__(self, filesystem: Any, options: Mapping[str, Any]) -> None:
        self.filesystem = filesystem
        self.options = dict(options)
        self.contacted = False
        self.credentials_hint = _credentials_hint(options)

    async def get(self, transfer: Transfer, stall: float) -> None:
        """Append what is missing, as it arrives."""
        try:
            client, address = await self._object(transfer.path)
            if (header := transfer.range_header) is not None:
                address["Range"] = header
            answer = await within(client.get_object(**address), stall)
            self.contacted = True
            async with answer["Body"] as body:
                size = size_in_content_range(answer.get("ContentRange"))
                if size is None and header is None:
                    size = answer["ContentLength"]
                transfer.answered(size=size, etag=answer.get("ETag"))
                while chunk := await within(body.read(_CHUNK), stall):
                    transfer.add(chunk)
        except Exception as error:  # noqa: BLE001 - sorted by kind
            raise self._fault(error) from None
        transfer.check_complete()

    async def head(self, path: str, stall: float) -> ObjectInfo:
        """Ask for size and ETag of an object."""
        try:
            client, address = await self._object(path)
            answer = await within(client.head_object(**address), stall)
        except Exception as error:  # noqa: BLE001 - sorted by kind
            raise self._fault(error) from None
        self.contacted = True
        return ObjectInfo(int(answer["ContentLength"]), answer.get("ETag"))

    async def _object(self, path: str) -> tuple[Any, dict[str, str]]:
        bucket, key, version = self.filesystem.split_path(path)
        await self.filesystem.set_session()
        client = await self.filesystem.get_s3(bucket)
        address = {"Bucket": bucket, "Key": key}
        return client, address | {"VersionId": version} if version else address

    def _fault(self, error: Exception) -> AttemptError:
        """Sort an exception of any layer below."""
        if isinstance(error, AttemptError):
            return error
        said = redact(first_line(error), self.options)
        if isinstance(error, ClientError):
            self.contacted = True
            return _refusal(error, said)
        if isinstance(error, NoCredentialsError | PartialCredentialsError | CredentialRetrievalError):
            return DeniedError(said)
        if isinstance(error, EndpointConnectionError | ConnectTimeoutError | SSLError | aiohttp.ClientConnectorError):
            return UnreachableError(said)
        if isinstance(error, HTTPClientError | aiohttp.ClientError | OSError):
            return TransientError(said)
        if isinstance(error, BotoCoreError):
            # Bodies that end early are among these, and have no class of their own in every version.
            return TransientError(said) if "Incomplete" in said or "Streaming" in said else HopelessError(said)
        return HopelessError(said)


def _refusal(error: ClientError, said: str) -> AttemptError:
    meta = error.response.get("ResponseMetadata", {})
    status, code = meta.get("HTTPStatusCode", 0), error.response.get("Error", {}).get("Code", "")
    shown = f"HTTP {status} {code}".rstrip()
    if status in BUSY_STATUS or code in _BUSY_CODES:
        after = meta.get("HTTPHeaders", {}).get("retry-after", "")
        return TransientError(shown, float(after) if after.isdecimal() else None)
    if status in (401, 403) or code in _DENIED_CODES:
        return DeniedError(shown)
    if status == 404:
        return MissingError(shown)
    if status == 416:
        return ReplacedError("the object ends before the range that was asked for: it has been cut or replaced")
    if status == 412:
        return ReplacedError(OTHER_ETAG)
    return HopelessError(f"{shown}: {said}")


def _credentials_hint(options: Mapping[str, Any]) -> str:
    if options.get("anon"):
        tried = "The request was anonymous (anon=True in storage_options)"
    elif options.get("key"):
        tried = "The key of storage_options was used"
    elif options.get("profile"):
        tried = f"The profile {options['profile']!r} of storage_options was used"
    else:
        tried = (
            "Credentials were looked for in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE and "
            "~/.aws/credentials, then the role of the container or instance"
        )
    return (
        f"{tried}. Set those, or storage_options={{'key': …, 'secret': …}} (and 'endpoint_url' for a store that is not "
        "AWS), or {'anon': True} for public data; the identity needs s3:GetObject on the bucket"
    )
