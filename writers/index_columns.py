"""The types of the metadata columns of tars that are indexed, found over all of them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from uttershard.pipeline.dataset.files import StorageOptions
from uttershard.pipeline.dataset.tar import TarError
from uttershard.pipeline.errors import DataError
from uttershard.pipeline.reading.members import read_metadata
from uttershard.pipeline.reading.spans import TEXT_COLUMN

from .cluster import Cluster
from .columns import infer_columns
from .foreign import group_members, read_texts
from .index_records import COLUMNS, read_record, record_key, write_record
from .index_request import IndexRequest
from .nemo_records import TarRecords
from .tar_files import walk_tar_file
from .tar_input import TarInput, open_tar
from .targets.limits import WriteLimits
from .targets.opening import open_target


@dataclass(frozen=True)
class _Task:
    target: str
    number: int
    tar: str
    columns: tuple[str, ...]
    naming: str
    records: bytes | None
    storage_options: StorageOptions | None = field(default=None, repr=False)


def find_columns(
    request: IndexRequest, records: Mapping[int, bytes], cluster: Cluster, options: StorageOptions | None
) -> dict[str, str]:
    """Return name and type of each metadata column.

    Args:
        request: Which columns of which tars.
        records: What NeMo's manifests say of each tar.
        cluster: Reads the tars, where columns are asked for.
        options: Keyword arguments of the fsspec file system.

    Raises:
        ConfigError: A column that no utterance has.
        DataError: A tar is damaged.
    """
    if request.known is not None:
        return request.known.columns
    rules = request.rules
    text = {TEXT_COLUMN: "string"} if rules is not None and rules.manifests is not None else {}
    wanted = tuple(name for name in request.columns if name not in text)
    if not wanted:
        return text
    naming = "webdataset" if rules is None else rules.naming
    tasks = [
        _Task(request.target, number, tar, wanted, naming, records.get(number), options)
        for number, tar in enumerate(request.tars)
    ]
    found = [value for _, values in cluster.run(_metadata, tasks) for value in values]
    return {**infer_columns(pa.chunked_array([pa.array(found, pa.string())]), wanted), **text}


def _metadata(task: _Task) -> list[str]:
    """Return the distinct values of some metadata fields in a tar, as JSON objects that have the others as null.

    They are kept, and not looked for again by a later run.
    """
    target, name = open_target(task.target, task.storage_options, WriteLimits()), f"{COLUMNS}{task.number:06d}.json"
    with open_tar(task.tar, task.storage_options, whole=False) as tar:
        key = record_key(tar, task.records, task.naming, list(task.columns))
        record = read_record(target, name, key)
        if record is None:
            record = {"values": _find(task, tar)}
            write_record(target, name, key, record)
        values: list[str] = record["values"]
        return values


def _find(task: _Task, tar: TarInput) -> list[str]:
    found: dict[str, None] = {}

    def note(metadata: Mapping[str, Any]) -> None:
        values = {name: value if name in task.columns else None for name, value in metadata.items() if name != "id"}
        found[json.dumps(values, sort_keys=True)] = None

    for fields in TarRecords.parse(task.records).fields() if task.records is not None else ():
        note(fields)
    try:
        for group in group_members(walk_tar_file(tar.file, tar.size, note=lambda _: None), task.naming):
            try:
                note(read_metadata(read_texts(tar.file, group)))
            except TarError:
                raise
            except DataError:
                continue  # refused, with its reason, when the tar is indexed
    except TarError as error:
        raise DataError(f"{task.tar}: {error}") from error
    return list(found)
