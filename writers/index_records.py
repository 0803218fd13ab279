"""What an unfinished `index` keeps of each tar, in the job's folder: it is what a later run goes on from.

A record is of this very tar (size, time or ETag), read in this way: that is its key.
"""

import json
from typing import Any

from uttershard.pipeline.dataset.digest import digest_bytes

from .tar_input import TarInput
from .targets.base import JOB_FOLDER, Target

DONE = f"{JOB_FOLDER}/done/"
COLUMNS = f"{JOB_FOLDER}/columns-"
"""What the names of records begin with: of finished tars, and of the values of metadata fields."""


def record_key(tar: TarInput, records: bytes | None, *asked: Any) -> list[Any]:
    """Return the key of a record.

    Args:
        tar: The tar.
        records: What NeMo's manifest says of it.
        asked: How it is read: values of JSON.
    """
    return [tar.address, tar.size, tar.version, None if records is None else digest_bytes(records), *asked]


def write_record(target: Target, name: str, key: list[Any], body: dict[str, Any]) -> None:
    """Keep something under a name."""
    target.put(name, json.dumps({"key": key, **body}, ensure_ascii=False).encode("utf-8"))


def read_record(target: Target, name: str, key: list[Any]) -> dict[str, Any] | None:
    """Return what was kept, None if there is nothing of this key."""
    data = target.read(name)
    try:
        body = json.loads(data or b"null")
    except ValueError:
        return None  # cut
    if not isinstance(body, dict) or body.pop("key", None) != key:
        return None
    return body
