"""Tars in several kinds of places: each place is read by a storage of its own."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from .base import Counts, Spans, Storage


class StorageOfPlaces(Storage):
    """Reads spans out of tars that are in several places.

    Args:
        places: Of each, the numbers of its shards, and what reads them: it counts them from 0.
    """

    def __init__(self, places: Sequence[tuple[Sequence[int], Storage]]) -> None:
        self._storages = [storage for _, storage in places]
        shards = sum(len(own) for own, _ in places)
        self._place_of, self._number_there = np.empty(shards, np.int32), np.empty(shards, np.int32)
        for place, (own, _) in enumerate(places):
            self._place_of[list(own)] = place
            self._number_there[list(own)] = np.arange(len(own))
        self.lookahead_bytes = max(storage.lookahead_bytes for storage in self._storages)

    def check_sizes(self) -> None:
        """Look in every place."""
        for storage in self._storages:
            storage.check_sizes()

    def forget(self) -> None:
        """Forget what was announced and not read."""
        for storage in self._storages:
            storage.forget()

    def begin(self, shards: Sequence[int]) -> None:
        """Begin a window in every place."""
        numbers = np.asarray(shards, np.int64)
        for place, storage in enumerate(self._storages):
            storage.begin(self._number_there[numbers[self._place_of[numbers] == place]].tolist())

    def will_need(self, spans: Spans) -> None:
        """Say so in every place that has some of them."""
        for storage, _, own in self._split(spans):
            storage.will_need(own)

    def read(self, spans: Spans) -> Sequence[memoryview]:
        """Return the bytes of each span, wherever it is."""
        found: list[memoryview] = [memoryview(b"")] * len(spans)
        for storage, rows, own in self._split(spans):
            for row, view in zip(rows.tolist(), storage.read(own), strict=True):
                found[row] = view
        return found

    def read_again(self, spans: Spans, row: int) -> memoryview | None:
        """Return one span from its origin."""
        alone = Spans(spans.shard[row : row + 1], spans.offset[row : row + 1], spans.nbytes[row : row + 1])
        [(storage, _, own)] = self._split(alone)
        return storage.read_again(own, 0)

    def take_counts(self) -> Counts:
        """Return what all did."""
        return sum((storage.take_counts() for storage in self._storages), Counter())

    def _split(self, spans: Spans) -> Iterator[tuple[Storage, NDArray[np.intp], Spans]]:
        """Yield each place that has some of the spans, which, and these as that place counts them."""
        places = self._place_of[spans.shard]
        for place in np.unique(places).tolist():
            rows = np.flatnonzero(places == place)
            own = Spans(self._number_there[spans.shard[rows]], spans.offset[rows], spans.nbytes[rows])
            yield self._storages[place], rows, own
