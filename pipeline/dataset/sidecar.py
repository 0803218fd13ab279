"""The length sidecar: one Parquet file a shard, one row an utterance, in tar order.

    key           string               the id as written
    offset        int64                of the utterance's first tar header
    nbytes        int64                from there to the end of its last member, padding included
    num_samples   int64                of one channel, as decoded
    sample_rate   int32
    channels      int16
    codec         dictionary<string>   wav, flac, opus, vorbis, mp3; in adopted tars also aiff, sphere, ffmpeg
    text_chars    int32                characters of the transcript, 0 if there is none
    xxh3          uint64               xxh3_64 of the span; 0 if it has not been read (adopted from a store)
    …                                  metadata columns the user kept

File metadata, under the key `uttershard`: a JSON object, see SidecarInfo.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import ConfigError, DataError

FORMAT_VERSION = 1

SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("nbytes", pa.int64(), nullable=False),
        pa.field("num_samples", pa.int64(), nullable=False),
        pa.field("sample_rate", pa.int32(), nullable=False),
        pa.field("channels", pa.int16(), nullable=False),
        pa.field("codec", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        pa.field("text_chars", pa.int32(), nullable=False),
        pa.field("xxh3", pa.uint64(), nullable=False),
    ]
)
"""The fixed columns; metadata columns follow them."""

COLUMN_TYPES = {"string": pa.string(), "int64": pa.int64(), "float64": pa.float64(), "bool": pa.bool_()}
"""The types a metadata column can have, by the name that the manifest gives them."""

FOREIGN = "foreign"
"""Of SidecarInfo.naming, and of the manifest's fingerprint: the tars are another tool's."""

_METADATA_KEY = b"uttershard"


@dataclass(frozen=True)
class SidecarInfo:
    """What a sidecar says of itself and of its tar."""

    tar_bytes: int
    tar_digest: str
    fingerprint: str
    """Digest of what made the shard (inputs, options, seed); of the tar itself for an adopted one."""
    naming: str = "uttershard"
    """How members are named: `uttershard` (from the id, see members.py) or `foreign` (adopted: any)."""
    format_version: int = FORMAT_VERSION


def sidecar_schema(columns: dict[str, str]) -> pa.Schema:
    """Return the schema of a sidecar with these metadata columns (name -> a name in COLUMN_TYPES)."""
    for name, kind in columns.items():
        if name in SCHEMA.names or name in ("seconds", "frames", "shard"):
            raise ConfigError(f"the metadata column {name!r} has the name of a column of the format: rename it")
        if kind not in COLUMN_TYPES:
            raise ConfigError(f"column {name!r}: unknown type {kind!r} (known: {', '.join(COLUMN_TYPES)})")
    return pa.schema([*SCHEMA, *(pa.field(name, COLUMN_TYPES[kind]) for name, kind in columns.items())])


def encode_sidecar(table: pa.Table, info: SidecarInfo) -> bytes:
    """Return the bytes of a sidecar; equal tables give equal bytes (with one version of pyarrow)."""
    text = json.dumps(asdict(info), sort_keys=True, separators=(",", ":"))
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata({_METADATA_KEY: text.encode()}), sink, compression="zstd")
    return bytes(sink.getvalue())


def decode_sidecar(data: bytes, columns: Sequence[str] | None, where: str) -> tuple[pa.Table, SidecarInfo]:
    """Read a sidecar.

    Args:
        data: The whole file.
        columns: Names of the columns wanted, in this order; None for all.
        where: Its address, for error messages.

    Raises:
        DataError: It is no sidecar, or of a later format.
        ConfigError: A column that it does not have.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
    except (pa.ArrowException, OSError) as error:  # pyarrow calls some damage an OSError
        raise DataError(f"{where}: not a Parquet file ({error}); rebuild it with `uttershard index`") from error
    schema = file.schema_arrow
    info = _decode_info(schema.metadata or {}, where)
    names = schema.names if columns is None else list(columns)
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise ConfigError(f"{where}: no column {missing[0]!r}; it has {', '.join(schema.names)}")
    try:
        table = file.read(columns=names, use_threads=False).select(names).replace_schema_metadata(None)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{where}: damaged ({error}); rebuild it with `uttershard index`") from error
    if "codec" in names:  # Parquet gives dictionary indices back as int32
        position = names.index("codec")
        table = table.set_column(position, SCHEMA.field("codec"), table["codec"].cast(SCHEMA.field("codec").type))
    return table, info


def metadata_columns(table: pa.Table) -> dict[str, str]:
    """Return the metadata columns of a sidecar, name -> a name in COLUMN_TYPES."""
    names = {kind: name for name, kind in COLUMN_TYPES.items()}
    return {field.name: names[field.type] for field in table.schema if field.name not in SCHEMA.names}


def _decode_info(metadata: dict[bytes, bytes], where: str) -> SidecarInfo:
    text = metadata.get(_METADATA_KEY)
    if text is None:
        raise DataError(f"{where}: Parquet, but not an uttershard sidecar; rebuild it with `uttershard index`")
    fields = json.loads(text)
    if fields.get("format_version") != FORMAT_VERSION:
        raise DataError(
            f"{where}: format version {fields.get('format_version')}, this uttershard reads {FORMAT_VERSION}: "
            "install the version that wrote it, or a later one"
        )
    return SidecarInfo(**fields)
