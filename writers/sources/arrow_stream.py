"""Streams of Arrow batches, such as `datasets` saves: they are not compressed, so a value has a place in the file."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from uttershard.pipeline.dataset.files import local_path
from uttershard.pipeline.errors import DataError

from ..archives import open_file
from ..audio_files import is_damage


@contextmanager
def arrow_damage(what: str) -> Iterator[None]:
    """Turn what Arrow says of damaged bytes into an error that says what to do."""
    try:
        yield
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        if not is_damage(error):
            raise
        reason = " ".join(str(error).split())  # Arrow's has several lines
        raise DataError(f"{what} ({reason}): download it again, or write it anew") from error


@dataclass
class ArrowBlocks:
    """An Arrow stream, and where in its file the memory is from that Arrow has."""

    stream: Any
    places: list[tuple[int, int, int]]
    """Address, bytes and place in the file of what was read last."""

    def find(self, address: int) -> int | None:
        """Return the place in the file of an address."""
        return next((at + address - base for base, size, at in self.places if base <= address < base + size), None)


@contextmanager
def open_arrow(file: str) -> Iterator[ArrowBlocks]:
    """Open a stream, local or in a store."""
    with open_file(file) as opened:
        if local_path(file) is not None:
            mapped = pa.memory_map(file).read_buffer()
            yield ArrowBlocks(pa.BufferReader(mapped), [(mapped.address, mapped.size, 0)])
            return
        blocks = ArrowBlocks(None, [])
        blocks.stream = pa.PythonFile(_Noted(opened, blocks.places), mode="r")
        yield blocks


def read_batches(blocks: ArrowBlocks, file: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a stream.

    Raises:
        DataError: It is damaged or cut, or a text in it is no UTF-8.
    """
    with arrow_damage(f"{file}: not an Arrow stream, or a damaged one"):
        reader = pa.ipc.open_stream(blocks.stream)
    for number in itertools.count():
        with arrow_damage(f"{file}: batch {number} is damaged"):
            batch = next(reader, None)
            if batch is None:
                return
            # Arrow trusts what it reads, and looks wherever damaged offsets point.
            batch.validate(full=True)
        yield batch


def find_values(values: pa.Array, blocks: ArrowBlocks, file: str) -> list[tuple[int, int] | None]:
    """Return (offset in the file, bytes) of each binary value of the batch read last, None where it is null."""
    width, dtype = (8, np.int64) if pa.types.is_large_binary(values.type) else (4, np.int32)
    _, offsets_buffer, data = values.buffers()
    if data is None or not data.size or not len(values):
        return [None] * len(values)
    start = blocks.find(data.address)
    if start is None:
        raise DataError(f"{file}: its buffers are compressed; save it again without compression")
    offsets = np.frombuffer(offsets_buffer, dtype, len(values) + 1, values.offset * width).astype(np.int64)
    valid = values.is_valid().to_pylist()
    sizes = np.diff(offsets).tolist()
    return [
        (start + offset, nbytes) if there else None
        for offset, nbytes, there in zip(offsets[:-1].tolist(), sizes, valid, strict=True)
    ]


class _Noted:
    """A file that notes what it gave to Arrow, which takes it over without a copy: each batch is one read."""

    closed = False

    def __init__(self, file: BinaryIO, places: list[tuple[int, int, int]]) -> None:
        self._file, self._places = file, places

    def read(self, count: int = -1) -> bytes:
        """Read, and note where from."""
        at = self._file.tell()
        data = self._file.read(count)
        self._places[:] = [(pa.py_buffer(data).address, len(data), at)]
        return data

    def tell(self) -> int:
        """Return the place in the file."""
        return self._file.tell()
