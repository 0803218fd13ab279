"""Hugging Face audio datasets on disk, read with pyarrow alone: no network, none of their library.

    *.parquet                                       a file, a folder of them, a pattern
    dataset_info.json + state.json + data-*.arrow   what `save_to_disk` writes
    dataset_dict.json + <split>/…                   the same for several splits

The audio is a column of `{bytes, path}` structs, whose bytes are an encoded file. The text is the first of `text`,
`transcription`, `transcript`, `sentence`, `normalized_text` that is there; the id the first of `id`, `utt_id`, `key`,
else the stem of the audio's path, else the file and row. All other plain columns are metadata; a class is its name.

Arrow files are not compressed: a listing holds where the bytes of each audio are. Of those in a store that can only be
told by reading them, a batch at a time. Parquet is compressed, by row groups: see parquet_cells.py.
"""

import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from uttershard.pipeline.dataset.files import local_path
from uttershard.pipeline.errors import ConfigError, DataError

from ..archives import open_file
from ..corpus_path import CorpusPath, corpus_path, files_below, read_path
from ..listing import Listing, ListingBuilder, encode_metadata
from ..locators import cell_uri, range_uri
from ..parts import each
from ..patterns import expand, has_pattern
from .arrow_stream import arrow_damage, find_values, open_arrow, read_batches
from .base import LocatorError, locate
from .records import ID_FIELDS

_TEXTS = ("text", "transcription", "transcript", "sentence", "normalized_text")
_BYTES, _PATH = "bytes", "path"
_SPLITS, _STATE = "dataset_dict.json", "state.json"


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
        """Whether it is a `.parquet` file or pattern, a local folder of them, or one that `save_to_disk` wrote."""
        if address.endswith(".parquet"):
            return True
        path = local_path(address)
        if path is None or not Path(path).is_dir():
            return False
        return bool(_parquet_files(Path(path))) or any(Path(path, name).is_file() for name in (_SPLITS, _STATE))

    def list_utterances(self) -> Listing:
        """List the rows in their order."""
        builder = ListingBuilder()
        files = self._files()
        root = files[0].rpartition("/")[0]
        for part in each(partial(_list_file, self), files):
            builder.extend(part)
        return builder.finish(root, self.address)

    def _files(self) -> list[str]:
        path = corpus_path(self.address)
        if has_pattern(self.address) or not path.is_dir():
            found = expand([self.address])
            return [file if local_path(file) is None else str(Path(str(local_path(file))).absolute()) for file in found]
        folder = self._split_folder(path)
        if (folder / _STATE).is_file():
            state = _read_json(folder / _STATE)
            return [str(folder / entry["filename"]) for entry in state["_data_files"]]
        files = _parquet_files(folder)
        splits = sorted({_split_of(file) for file in files})
        if len(splits) > 1 and self.split is None:
            raise ConfigError(f"{folder}: several splits ({', '.join(splits)}); say which with the option split")
        chosen = [file for file in files if self.split is None or _split_of(file) == self.split]
        if not chosen:
            what = "no Parquet file" if self.split is None else f"no Parquet file of the split {self.split!r}"
            raise ConfigError(
                f"{folder}: {what}, and not a folder of save_to_disk; there are {', '.join(splits) or 'none'}"
            )
        return chosen

    def _split_folder(self, folder: CorpusPath) -> CorpusPath:
        if not (folder / _SPLITS).is_file():
            return folder
        splits = _read_json(folder / _SPLITS)["splits"]
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
    has_path: bool
    """Whether the structs have paths."""
    classes: Mapping[str, tuple[str, ...]]
    """The names of the classes of each column that holds their numbers."""

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
        kept = tuple(name for name in plain if name not in (audio, text, key))
        kind = schema.field(audio).type
        if not _is_audio(kind):
            raise ConfigError(f"{file}: the column {audio!r} is {kind}, and no struct of bytes and path")
        return cls(audio, text, key, kept, kind.get_field_index(_PATH) >= 0, _classes(schema))

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
        with arrow_damage(f"{file}: not a Parquet file, or a damaged one"):
            parquet = pq.ParquetFile(opened)
            schema = parquet.schema_arrow
        columns = _Columns.find(source, schema, file)
        first = 0
        for group in range(parquet.num_row_groups):
            wanted = [*columns.small, *([f"{columns.audio}.{_PATH}"] if columns.has_path else [])]
            count = parquet.metadata.row_group(group).num_rows
            with arrow_damage(f"{file}: row group {group} is damaged"):
                rows = parquet.read_row_group(group, columns=wanted, use_threads=False)
                rows.validate(full=True)
                has_bytes = _has_bytes(parquet, group, columns)
            paths = _paths(rows[columns.audio].combine_chunks()) if columns.has_path else [None] * count
            for row, record in enumerate(_records(rows, columns, count)):
                uri = cell_uri(file, group, row, f"{columns.audio}.{_BYTES}") if has_bytes[row] else None
                _add(builder, columns, record, paths[row], uri, f"{name}:{first + row}", file)
            first += count


def _list_arrow(source: HfSource, builder: ListingBuilder, file: str) -> None:
    name = posixpath.basename(file)
    columns: _Columns | None = None
    first = 0
    with open_arrow(file) as opened:
        for batch in read_batches(opened, file):
            columns = columns or _Columns.find(source, batch.schema, file)
            audio = batch.column(columns.audio)
            has_bytes = audio.type.get_field_index(_BYTES) >= 0
            places = find_values(audio.field(_BYTES), opened, file) if has_bytes else [None] * batch.num_rows
            paths = _paths(audio) if columns.has_path else [None] * batch.num_rows
            for row, record in enumerate(_records(pa.table(batch), columns, batch.num_rows)):
                place = places[row]
                uri = None if place is None else range_uri(file, *place)
                _add(builder, columns, record, paths[row], uri, f"{name}:{first + row}", file)
            first += batch.num_rows


def _paths(audio: pa.StructArray) -> list[str | None]:
    found: list[str | None] = audio.field(_PATH).to_pylist()
    return found


def _records(rows: pa.Table, columns: _Columns, count: int) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = rows.select(columns.small).to_pylist()
    for name in columns.classes.keys() & set(columns.small):
        names = columns.classes[name]
        for record in records:
            number = record[name]
            if number is not None and 0 <= number < len(names):  # -1 is what an unlabelled row has
                record[name] = names[number]
    return records if columns.small else [{} for _ in range(count)]


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
            uri = locate(path, corpus_path(file).parent) if path else None
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


def _classes(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Return the names of classes as `datasets` notes them in a schema: `{"info": {"features": {column: …}}}`."""
    noted = (schema.metadata or {}).get(b"huggingface")
    if noted is None:
        return {}
    try:
        features = json.loads(noted)["info"]["features"]
        return {
            name: tuple(feature["names"])
            for name, feature in features.items()
            if isinstance(feature, dict)
            and feature.get("_type") == "ClassLabel"
            and pa.types.is_integer(schema.field(name).type)
        }
    except (ValueError, KeyError, TypeError, AttributeError):  # another tool's note: the numbers stay
        return {}


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
    if _BYTES in names:
        return _is_binary(names[_BYTES])
    return names.keys() == {_PATH} and pa.types.is_string(names[_PATH])


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _has_bytes(parquet: pq.ParquetFile, group: int, columns: _Columns) -> list[bool]:
    """Say of each row of a row group whether it holds the bytes of its audio: by statistics, where they tell."""
    about, name = parquet.metadata.row_group(group), f"{columns.audio}.{_BYTES}"
    chunks = (about.column(number) for number in range(about.num_columns))
    chunk = next((chunk for chunk in chunks if chunk.path_in_schema == name), None)
    if chunk is None:
        return [False] * about.num_rows
    statistics = chunk.statistics
    if statistics is not None and statistics.has_null_count:
        if statistics.null_count == 0:
            return [True] * about.num_rows
        if statistics.null_count == about.num_rows:
            return [False] * about.num_rows
    values = parquet.read_row_group(group, columns=[name], use_threads=False)[columns.audio].combine_chunks()
    valid: list[bool] = values.field(_BYTES).is_valid().to_pylist()
    return valid


def _parquet_files(folder: CorpusPath) -> list[str]:
    """Return the Parquet files in a folder, or in its `data/`."""
    if isinstance(folder, Path):
        found = sorted(folder.glob("*.parquet")) or sorted(folder.glob("data/*.parquet"))
        return [str(file) for file in found]
    names = [name for name in files_below(folder) if name.endswith(".parquet")]
    chosen = [name for name in names if "/" not in name] or [name for name in names if name.count("/") == 1]
    return [str(folder / name) for name in chosen if "/" not in name or name.startswith("data/")]


def _split_of(file: str) -> str:
    return posixpath.basename(file).partition("-")[0]


def _read_json(path: CorpusPath) -> Any:
    try:
        return json.loads(read_path(path))
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}): save the dataset again") from error
