"""Which rows of a listing are of the same audio file, and where its address is."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .ids import hash_strings


@dataclass(frozen=True)
class AudioRows:
    """The files of a listing, numbered in the order in which they come."""

    uris: pa.ChunkedArray
    """Of the rows."""
    file_of_row: NDArray[np.int32]
    first_rows: NDArray[np.int64]
    """A row of each file."""
    hashes: NDArray[np.uint64]
    """Of the address of each file."""

    @classmethod
    def of(cls, uris: pa.ChunkedArray) -> "AudioRows":
        """Group rows by the address of their audio.

        By 64 bits of it, for the addresses of ten million files and a hash table of them do not fit beside the
        listing. Two of so many are taken for one file in one of 400,000 corpora; then the size and length of one count
        for both when shards are balanced. What is packed is read by its own address.
        """
        hashes, first_rows, file_of_row = np.unique(hash_strings(uris), return_index=True, return_inverse=True)
        order = np.argsort(first_rows)
        number = np.empty(len(order), np.int32)
        number[order] = np.arange(len(order), dtype=np.int32)
        return cls(uris, number[file_of_row], first_rows[order], hashes[order])

    def __len__(self) -> int:
        return len(self.first_rows)

    def addresses(self, files: NDArray[np.int64]) -> list[str]:
        """Return the addresses of some files."""
        found: list[str] = self.uris.take(pa.array(self.first_rows[files])).to_pylist()
        return found
