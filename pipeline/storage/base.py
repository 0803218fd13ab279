"""The protocol between decoding and the place where the tars are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Spans:
    """Byte ranges of utterances in tars: equally long arrays."""

    shard: NDArray[np.int32]
    offset: NDArray[np.int64]
    nbytes: NDArray[np.int64]


class Storage(Protocol):
    """Reads spans. Picklable: a copy in another process opens its own files there, on first use."""

    def will_need(self, spans: Spans) -> None:
        """Begin to bring these spans near, without waiting: they will be read soon."""

    def read(self, spans: Spans) -> Sequence[memoryview]:
        """Return the bytes of each span; raise DataError or StorageError, never fewer bytes than asked for."""
