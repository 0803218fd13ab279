"""S3 through obstore (Rust), where it is installed: `pip install uttershard[obstore]`.

Measured on one local SeaweedFS, 16 requests at a time, on two busy cores, in turns (MB/s; CPU time of this process a
request, and of reading an epoch a GB):

    size of a request      128 KB              1 MB               8 MB               spans        16 windows
    s3fs                   36-40; 1.45 ms      151-184; 2.1 ms    324-337; 8.4 ms    54; 6.0 s    188-376; 1.2 s
    obstore                71-76; 0.28 ms      229-300; 0.9 ms    482-581; 8.5 ms    76; 2.0 s    319-323; 1.2 s

So it is used by itself, for tars, wherever the options of s3fs say the same to it. Two things it can't do:
- it hangs for ever in a process forked from one that has used it: such a process keeps to s3fs;
- it knows no profiles: credentials are those that s3fs finds, asked for again as they expire.
"""

import os
import re
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.util import find_spec
from typing import Any

from .client import run
from .faults import (
    AttemptError,
    DeniedError,
    HopelessError,
    MissingError,
    ReplacedError,
    TransientError,
    UnreachableError,
    redact,
)
from .retry import Limits
from .s3 import BUSY_STATUS, S3Client
from .transfer import OTHER_ETAG, Transfer

INSTALLED = find_spec("obstore") is not None
_KNOWN_OPTIONS = frozenset(
    {"key", "secret", "token", "anon", "profile", "endpoint_url", "client_kwargs", "config_kwargs", "use_ssl"}
)
_KNOWN_CONFIG = frozenset({"s3", "connect_timeout", "read_timeout", "retries", "max_pool_connections"})
_CHUNK = 1 << 20
"""What has arrived of a smaller chunk is lost with the connection."""
_CONNECT_SECONDS = 10.0
_CREDENTIALS_MINUTES = 10

_used = False
_forked_after_use = False


def _note_fork() -> None:
    global _forked_after_use
    _forked_after_use = _forked_after_use or _used


os.register_at_fork(after_in_child=_note_fork)


def is_usable(options: Mapping[str, Any]) -> bool:
    """Whether obstore can stand in for s3fs with these options, in this process."""
    return (
        INSTALLED
        and not _forked_after_use
        and _KNOWN_OPTIONS.issuperset(options)
        and {"endpoint_url", "region_name"}.issuperset(options.get("client_kwargs", {}))
        and _KNOWN_CONFIG.issuperset(options.get("config_kwargs", {}))
        and {"addressing_style"}.issuperset(options.get("config_kwargs", {}).get("s3", {}))
    )


class ObstoreClient(S3Client):
    """GET of S3 objects by obstore, in the thread that asks; all else as S3Client."""

    def __init__(self, filesystem: Any, options: Mapping[str, Any]) -> None:
        super().__init__(filesystem, options)
        self._stores: dict[tuple[str, Limits], Any] = {}
        self._opening = threading.Lock()
        self._keeps_out = False

    def fetch(self, transfer: Transfer, limits: Limits, seconds: float) -> None:
        """Append what is missing, as it arrives."""
        bucket, key, version = self.filesystem.split_path(transfer.path)
        # An attempt of obstore can't be stopped from outside: near the deadline those of s3fs can.
        late = seconds < _longest_attempt(limits)
        if self._keeps_out or version or transfer.stop is None or late:
            super().fetch(transfer, limits, seconds)
            return
        try:
            self._get(self.store(bucket, limits), key, transfer, transfer.stop, limits)
        except HopelessError:
            # A redirect to the region of the bucket, say: s3fs follows, or knows a better reason.
            self._keeps_out = True
            super().fetch(transfer, limits, seconds)

    def _get(self, store: Any, key: str, transfer: Transfer, stop: int, limits: Limits) -> None:
        import obstore

        try:
            answer = obstore.get(store, key, options={"range": (transfer.position, stop)})
            self.contacted = True
            transfer.answered(size=answer.meta["size"], etag=answer.meta["e_tag"])
            if stop - transfer.position <= _CHUNK:
                transfer.add(memoryview(answer.bytes()))
            else:
                for chunk in answer.stream(min_chunk_size=_CHUNK):
                    transfer.add(memoryview(chunk))
        except Exception as error:  # noqa: BLE001 - sorted by kind
            raise self._obstore_fault(error, limits) from None
        transfer.check_complete()

    def store(self, bucket: str, limits: Limits) -> Any:
        """Return the store of obstore for a bucket."""
        global _used
        with self._opening:
            store = self._stores.get((bucket, limits))
            if store is None:
                _used = True
                try:
                    store = self._stores[bucket, limits] = self._new_store(bucket, limits)
                except Exception as error:  # noqa: BLE001 - sorted by kind
                    raise self._obstore_fault(error, limits) from None
            return store

    def _new_store(self, bucket: str, limits: Limits) -> Any:
        from obstore.store import S3Store

        meta = run(self.filesystem.set_session(), limits.read_timeout).meta
        style = self.options.get("config_kwargs", {}).get("s3", {}).get("addressing_style", "auto")
        amazon = "amazonaws.com" in meta.endpoint_url
        virtual = style == "virtual" or (style == "auto" and amazon and "." not in bucket)
        # Not a method: obstore would hold this object, and it obstore's, for ever.
        credentials: Any = (
            None if self.options.get("anon") else partial(_credentials, self.filesystem, limits.read_timeout)
        )
        return S3Store(
            bucket,
            endpoint=_endpoint(meta.endpoint_url, bucket, virtual=virtual),
            region=meta.region_name,
            virtual_hosted_style_request=virtual,
            skip_signature=credentials is None,
            credential_provider=credentials,
            client_options={
                "allow_http": meta.endpoint_url.startswith("http:"),
                "connect_timeout": timedelta(seconds=min(_CONNECT_SECONDS, limits.read_timeout)),
                "read_timeout": timedelta(seconds=limits.read_timeout),
                "timeout": timedelta(seconds=_longest_attempt(limits)),
            },
            retry_config={"max_retries": 0},
        )

    def _obstore_fault(self, error: Exception, limits: Limits) -> AttemptError:
        """Sort an exception; obstore says what it was in its text only."""
        if isinstance(error, AttemptError):
            return error
        text = str(error)
        found = re.search(r"status code: (\d{3}[\w ]*)", text)
        if found is not None:
            self.contacted = True
            return _refusal(int(found[1][:3]), f"HTTP {found[1].strip()}{_code(text)}")
        first = redact(text.partition("\n")[0][:300], self.options)
        if "kind: Timeout" in text:
            longest = _longest_attempt(limits)
            return TransientError(f"no byte within {limits.read_timeout:g} s, or not all within {longest:g} s")
        if "error sending request" in text:
            return UnreachableError(first)
        if type(error).__module__.startswith("obstore"):
            return TransientError(first)
        return HopelessError(f"{type(error).__name__}: {first}")


def _credentials(filesystem: Any, seconds: float) -> dict[str, Any]:
    """Return the credentials that s3fs uses; its session renews them in time."""
    found, expiry = run(_current_credentials(filesystem), seconds)
    soon = datetime.now(UTC) + timedelta(minutes=_CREDENTIALS_MINUTES)
    return {
        "access_key_id": found.access_key,
        "secret_access_key": found.secret_key,
        "token": found.token,
        "expires_at": soon if expiry is None else min(soon, expiry.astimezone(UTC)),
    }


async def _current_credentials(filesystem: Any) -> tuple[Any, datetime | None]:
    """Return the credentials and, of temporary ones, when they expire."""
    credentials = (await filesystem.set_session())._request_signer._credentials
    return await credentials.get_frozen_credentials(), getattr(credentials, "_expiry_time", None)


def _longest_attempt(limits: Limits) -> float:
    """Return the seconds that an attempt may take while bytes come: half of the deadline, so that one can follow."""
    return limits.read_deadline / 2


def _code(text: str) -> str:
    found = re.search(r"<Code>(\w+)</Code>", text)
    return "" if found is None else f" {found[1]}"


def _refusal(status: int, shown: str) -> AttemptError:
    if status in BUSY_STATUS:
        return TransientError(shown)
    if status in (401, 403):
        return DeniedError(shown)
    if status == 404:
        return MissingError(shown)
    if status == 412:
        return ReplacedError(OTHER_ETAG)
    if status == 416:
        return ReplacedError("the object ends before the range that was asked for: it has been cut or replaced")
    return HopelessError(shown)


def _endpoint(address: str, bucket: str, *, virtual: bool) -> str:
    """Return the endpoint as obstore wants it: with the bucket in it for virtual-hosted requests."""
    scheme, _, host = address.partition("://")
    return f"{scheme}://{bucket}.{host}" if virtual else address
