"""Writing to S3 through the connections of s3fs (implements PartsObjects)."""

import asyncio
import base64
import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import fsspec
from botocore.exceptions import ClientError
from uttershard.pipeline.remote.client import CONNECTIONS
from uttershard.pipeline.remote.faults import AttemptError, TransientError
from uttershard.pipeline.remote.s3 import S3Client, s3_options

from .base import Stored
from .objects import ABSENT, ConditionError, FullError, GoneUploadError, UnsupportedError, UploadId

_FULL_CODES = frozenset({"InsufficientStorage", "QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded"})
"""AWS is never full; these are what MinIO, Ceph and their like say."""


class S3Objects(S3Client):
    """PUT, LIST, DELETE and multipart uploads.

    Bodies carry their MD5, so that the store refuses what was damaged on the way. (The CRC trailers that botocore
    would send instead are unknown to many stores.)
    """

    def __init__(self, address: str, options: Mapping[str, Any]) -> None:
        options = s3_options(options, CONNECTIONS)
        config = {"request_checksum_calculation": "when_required", **options["config_kwargs"]}
        options = {**options, "config_kwargs": config}
        super().__init__(fsspec.core.url_to_fs(address, **options)[0], options)
        self.credentials_hint += (
            "; to pack into it also s3:ListBucket, s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload and "
            "s3:ListBucketMultipartUploads"
        )

    async def put(self, path: str, data: bytes, seconds: float, before: str | None = None) -> str | None:
        """Put an object, under a condition if `before` is given."""
        conditions = {None: {}, ABSENT: {"IfNoneMatch": "*"}}.get(before, {"IfMatch": before})
        arguments = {"Body": data, "ContentMD5": _md5(data), **conditions}
        answer = await self._call("put_object", path, seconds, arguments)
        return _text(answer.get("ETag"))

    async def delete(self, path: str, seconds: float) -> None:
        """Remove an object."""
        await self._call("delete_object", path, seconds)

    async def list(self, folder: str, seconds: float) -> Mapping[str, Stored]:
        """List page by page."""
        found: dict[str, Stored] = {}
        more: dict[str, Any] = {}
        while True:
            page = await self._call("list_objects_v2", folder, seconds, more, is_folder=True)
            for entry in page.get("Contents", ()):
                path = f"{_bucket(folder)}/{entry['Key']}"
                # Markers of folders, which consoles and some servers make, are no files.
                if not path.endswith("/"):
                    found[path] = Stored(int(entry["Size"]), _text(entry.get("ETag")))
            if not page.get("IsTruncated"):
                return found
            more = {"ContinuationToken": page["NextContinuationToken"]}

    async def begin(self, path: str, seconds: float) -> UploadId:
        """Begin a multipart upload."""
        return UploadId(path, (await self._call("create_multipart_upload", path, seconds))["UploadId"])

    async def send(self, upload: UploadId, part: int, data: bytes, seconds: float) -> str:
        """Send a part."""
        arguments = {"UploadId": upload.number, "PartNumber": part, "Body": data, "ContentMD5": _md5(data)}
        return str((await self._call("upload_part", upload.path, seconds, arguments))["ETag"])

    async def complete(self, upload: UploadId, etags: Sequence[str], seconds: float) -> str | None:
        """Complete a multipart upload."""
        parts = [{"ETag": etag, "PartNumber": number} for number, etag in enumerate(etags, 1)]
        arguments = {"UploadId": upload.number, "MultipartUpload": {"Parts": parts}}
        return _text((await self._call("complete_multipart_upload", upload.path, seconds, arguments)).get("ETag"))

    async def abort(self, upload: UploadId, seconds: float) -> None:
        """Abort a multipart upload."""
        await self._call("abort_multipart_upload", upload.path, seconds, {"UploadId": upload.number})

    async def uploads(self, folder: str, seconds: float) -> Sequence[UploadId]:
        """List multipart uploads page by page."""
        found: list[UploadId] = []
        more: dict[str, Any] = {}
        while True:
            page = await self._call("list_multipart_uploads", folder, seconds, more, is_folder=True)
            found += [UploadId(f"{_bucket(folder)}/{one['Key']}", one["UploadId"]) for one in page.get("Uploads", ())]
            if not page.get("IsTruncated"):
                return found
            more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    async def _call(
        self,
        operation: str,
        path: str,
        seconds: float,
        arguments: Mapping[str, Any] = MappingProxyType({}),
        *,
        is_folder: bool = False,
    ) -> dict[str, Any]:
        try:
            client, address = await self._object(path)
            if is_folder:
                key = address.pop("Key")
                address["Prefix"] = f"{key}/" if key else ""
            calling = getattr(client, operation)(**address, **arguments)
            answer: dict[str, Any] = await asyncio.wait_for(calling, seconds)
        except Exception as error:  # noqa: BLE001 - sorted by kind
            raise self._sort(error, seconds) from None
        self.contacted = True
        return answer

    def _sort(self, error: Exception, seconds: float) -> AttemptError:
        """Tell the answers that only writers get; the others are those of readers."""
        if isinstance(error, ClientError):
            self.contacted = True
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            code = error.response.get("Error", {}).get("Code", "")
            shown = f"HTTP {status} {code}"
            if status == 412:
                return ConditionError(shown)
            if status == 409:
                return TransientError(shown)  # two conditional puts at the same moment
            if status == 507 or code in _FULL_CODES:
                return FullError(shown)
            if status == 501 or code == "NotImplemented":
                return UnsupportedError(shown)
            if code == "NoSuchUpload":
                return GoneUploadError(shown)
            if code == "BadDigest":
                return TransientError(f"{shown}: the body was damaged on its way")
        if isinstance(error, TimeoutError):
            return TransientError(f"no answer within {seconds:g} s")
        return self._fault(error)


def _bucket(folder: str) -> str:
    return folder.partition("/")[0]


def _md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
