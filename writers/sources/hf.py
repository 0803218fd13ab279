"""Hugging Face audio datasets on disk, read with pyarrow alone: no network, none of their library.

    *.parquet                                       a file, a folder of them, a pattern
    dataset_info.json + state.json + data-*.arrow   what `save_to_disk` writes
    dataset_dict.json + <split>/…                   the same for several splits

The audio is a column of `{bytes, path}` structs, whose bytes are an encoded file. The text is the first of `text`,
`transcription`, `transcript`, `sentence`, `normalized_text` that is there; the id the first of `id`, `utt_id`, `key`,
else the stem of the audio's path, else the file and row. All other plain columns are metadata.

Arrow files are not compressed: a listing holds where the bytes of each audio are. Parquet is, by row groups: to read
one audio, its row group is read (the last two are kept), so a file of few, large row groups packs slowly.
"""

import json
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from uttershard.pipeline.dataset.files import local_path
from uttershard.pipeline.errors import ConfigError, DataError

from ..archives import open_file
from ..listing import Listing, ListingBuilder, encode_metadata
from ..locators import cell_uri, range_uri
from ..parts import each
from ..patterns import expand, has_pattern
from .base import LocatorError, locate
from .records import ID_FIELDS

_TEXTS = ("text", "transcription", "transcript", "sentence", "normalized_text")
_BYTES, _PATH = "bytes", "path"


@dataclass(frozen=True)
class HfSource:
    """Parquet files, or a `save_to_disk` folder, with an audio column.

    Example:
        >>> HfSource("dataset/data/train-*.parquet").list_utterances()  # doctest: +SKIP
    """

    address: str
    audio: str | None = None
    """None: the only column of `{bytes, path}` structs."""
    text: str | None = None
    id: str | None = None
    split: str | None = None
    """Which split, if there are several: a folder of `save_to_disk`, or the beginning of a Parquet file's name."""

    name: ClassVar[str] = "hf"

    @classmethod
    def matches(cls, address: str) -> bool:
        """Whether it is a `.parquet` file or pattern, a folder of them, or one that `save_to_disk` wrote."""
        if address.endswith(".parquet"):
            return True
        path = local_path(address)
        if path is None or not Path(path).is_dir():
            return False
        return bool(_parquet_files(Path(path))) or any(
            Path(path, name).is_file() for name in ("dataset_dict.json", "state.json")
        )

    def list_utterances(self) -> Listing:
        """List the rows in their order."""
        builder = ListingBuilder()
        files = self._files()
        root = files[0].rpartition("/")[0]
        for part in each(partial(_list_file, self), files):
            builder.extend(part)
        return builder.finish(root, self.address)

    def _files(self) -> list[str]:
        path = local_path(self.address)
        if path is None or has_pattern(self.address) or not Path(path).is_dir():
            found = expand([self.address])
            return [file if local_path(file) is None else str(Path(str(local_path(file))).absolute()) for file in found]
        folder = self._split_folder(Path(path).absolute())
        if (folder / "state.json").is_file():
            state = json.loads((folder / "state.json").read_bytes())
            return [str(folder / entry["filename"]) for entry in state["_data_files"]]
        files = _parquet_files(folder)
        splits = sorted({file.name.partition("-")[0] for file in files})
        if len(splits) > 1 and self.split is None:
            raise ConfigError(f"{folder}: several splits ({', '.join(splits)}); say which with the option split")
        chosen = [str(file) for file in files if self.split is None or file.name.partition("-")[0] == self.split]
        if not chosen:
            raise ConfigError(f"{folder}: no Parquet file of the split {self.split!r}; there are {', '.join(splits)}")
        return chosen

    def _split_folder(self, folder: Path) -> Path:
        if not (folder / "dataset_dict.json").is_file():
            return folder
        splits = json.loads((folder / "dataset_dict.json").read_bytes())["splits"]
        split = self.split if self.split is not None else splits[0] if len(splits) == 1 else None
        if split is None or split not in splits:
            raise ConfigError(f"{folder}: say with the option split which of {', '.join(splits)}")
        return folder / split


@dataclass(frozen=True)
class _Columns:
    """Which columns of a file are what."""

    audio: str
    text: str | None
    id: str | None
    metadata: tuple[str, ...]

    @classmethod
    def find(cls, source: HfSource, schema: pa.Schema, file: str) -> "_Columns":
        audios = [field.name for field in schema if _is_audio(field.type)]
        if source.audio is None and len(audios) != 1:
            raise ConfigError(
                f"{file}: {len(audios)} columns of audio ({', '.join(audios) or 'none'}) among "
                f"{', '.join(schema.names)}; name one with the option audio"
            )
        audio = source.audio if source.audio is not None else audios[0]
        for option, name in (("audio", audio), ("text", source.text), ("id", source.id)):
            if name is not None and name not in schema.names:
                raise ConfigError(f"{file}: no column {name!r} (option {option}); there are {', '.join(schema.names)}")
        text = source.text or next((name for name in _TEXTS if name in schema.names), None)
        key = source.id or next((name for name in ID_FIELDS if name in schema.names), None)
        plain = [field.name for field in schema if not pa.types.is_nested(field.type) and not _is_binary(field.type)]
        return cls(audio, text, key, tuple(name for name in plain if name not in (audio, text, key)))

    @property
    def small(self) -> list[str]:
        """All that a listing reads, without the path of the audio."""
        return [name for name in (self.text, self.id, *self.metadata) if name is not None]


def _list_file(source: HfSource, file: str) -> Listing:
    builder = ListingBuilder()
    list_rows = _list_arrow if file.endswith(".arrow") else _list_parquet
    list_rows(source, builder, file)
    return builder.finish(file.rpartition("/")[0], file)


def _list_parquet(source: HfSource, builder: ListingBuilder, file: str) -> None:
    name = posixpath.basename(file)
    with open_file(file) as opened:
        try:
            parquet = pq.ParquetFile(opened)
        except pa.ArrowInvalid as error:
            raise DataError(f"{file}: not a Parquet file ({error})") from error
        columns = _Columns.find(source, parquet.schema_arrow, file)
        first = 0
        for group in range(parquet.num_row_groups):
            rows = parquet.read_row_group(
                group, columns=[*columns.small, f"{columns.audio}.{_PATH}"], use_threads=False
            )
            has_bytes = not _all_null(parquet.metadata.row_group(group), f"{columns.audio}.{_BYTES}")
            paths = rows[columns.audio].combine_chunks().field(_PATH).to_pylist()
            for row, record in enumerate(_records(rows, columns)):
                uri = cell_uri(file, group, row, f"{columns.audio}.{_BYTES}") if has_bytes else None
                _add(builder, columns, record, paths[row], uri, f"{name}:{first + row}", file)
            first += rows.num_rows


def _list_arrow(source: HfSource, builder: ListingBuilder, file: str) -> None:
    name = posixpath.basename(file)
    if local_path(file) is None:
        raise ConfigError(f"{file}: Arrow files are read from a disk; copy the folder to one")
    mapped = pa.memory_map(file).read_buffer()
    columns: _Columns | None = None
    first = 0
    try:
        for batch in pa.ipc.open_stream(pa.BufferReader(mapped)):
            columns = columns or _Columns.find(source, batch.schema, file)
            audio = batch.column(columns.audio)
            places = _places(audio.field(_BYTES), mapped.address, mapped.size, file)
            paths = audio.field(_PATH).to_pylist()
            for row, record in enumerate(_records(pa.table(batch), columns)):
                uri = None if places[row] is None else range_uri(file, *places[row])
                _add(builder, columns, record, paths[row], uri, f"{name}:{first + row}", file)
            first += batch.num_rows
    except pa.ArrowInvalid as error:
        raise DataError(f"{file}: not an Arrow stream, or a damaged one ({error})") from error


def _places(values: pa.Array, base: int, size: int, file: str) -> list[Any]:
    """Return (offset in the file, bytes) of each value, None for a null."""
    width, dtype = (8, np.int64) if pa.types.is_large_binary(values.type) else (4, np.int32)
    _, offsets_buffer, data = values.buffers()
    if data is None or not len(values):
        return [None] * len(values)
    start = data.address - base
    if not 0 <= start <= size:
        raise DataError(f"{file}: its buffers are compressed; save it again without compression")
    offsets = np.frombuffer(offsets_buffer, dtype, len(values) + 1, values.offset * width).astype(np.int64)
    valid = values.is_valid().to_pylist()
    sizes = np.diff(offsets).tolist()
    return [
        (start + offset, nbytes) if there else None
        for offset, nbytes, there in zip(offsets[:-1].tolist(), sizes, valid, strict=True)
    ]


def _records(rows: pa.Table, columns: _Columns) -> Iterator[dict[str, Any]]:
    yield from rows.select(columns.small).to_pylist()


def _add(
    builder: ListingBuilder,
    columns: _Columns,
    record: dict[str, Any],
    path: str | None,
    uri: str | None,
    origin: str,
    file: str,
) -> None:
    key = record.get(columns.id) if columns.id is not None else None
    if key is None:
        stem = posixpath.splitext(posixpath.basename(path or ""))[0]
        key = stem or posixpath.splitext(origin.replace(".parquet:", "-").replace(".arrow:", "-"))[0]
    text = record.get(columns.text) if columns.text is not None else None
    if text is not None and not isinstance(text, str):
        builder.refuse(str(key), origin, f"{columns.text!r} must be a string, found {text!r}")
        return
    if uri is None:
        try:
            uri = locate(path, Path(file).parent) if path else None
        except LocatorError as error:
            builder.refuse(str(key), origin, str(error))
            return
    if uri is None:
        builder.refuse(str(key), origin, "neither bytes nor a path of audio")
        return
    fields = {name: record[name] for name in columns.metadata if record[name] is not None}
    try:
        metadata = encode_metadata(fields)
    except (TypeError, ValueError):  # dates, decimals, NaN
        metadata = encode_metadata({name: _as_json(value) for name, value in fields.items()})
    builder.add(str(key), uri, origin=origin, text=text, metadata=metadata)


def _as_json(value: Any) -> Any:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return str(value)
    return value


def _is_audio(kind: pa.DataType) -> bool:
    if not pa.types.is_struct(kind):
        return False
    names = {kind.field(number).name: kind.field(number).type for number in range(kind.num_fields)}
    return _BYTES in names and _is_binary(names[_BYTES]) and _PATH in names


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _all_null(group: Any, column: str) -> bool:
    """Say by its statistics whether a column of a row group holds nothing."""
    for number in range(group.num_columns):
        chunk = group.column(number)
        if chunk.path_in_schema == column:
            statistics = chunk.statistics
            return statistics is not None and statistics.has_null_count and statistics.null_count == chunk.num_values
    return False


def _parquet_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet")) or sorted(folder.glob("data/*.parquet"))
