"""Audio of a shard's utterances in the order of packing, with each recording decoded as seldom as can be.

A shard holds utterances in shuffled order, so the segments of a recording lie apart in it. Where a codec can't seek,
the first one that is packed decodes the recording; the others are cut on the way, and wait, encoded, for their turn.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from uttershard.pipeline.reading.codecs import AudioError

from .audio import PackedAudio, fetch, fetch_spans
from .byte_files import ReusedBuffer
from .parquet_cells import ShardCells
from .settings import PackSettings

_WAITING_BYTES = 256 << 20
"""Encoded audio that may wait in memory: three hours of FLAC at 16 kHz. What finds no room is cut in another pass."""


@dataclass
class ShardAudio:
    """Fetches the audio of a shard's rows, which have to be asked for in their order."""

    plan: pa.Table
    settings: PackSettings
    reduced: int = 0
    """How many of those returned so far have lost depth."""
    _buffer: ReusedBuffer = field(default_factory=ReusedBuffer)
    _segments: dict[str, list[int]] = field(default_factory=dict)
    _waiting: dict[int, PackedAudio] = field(default_factory=dict)
    _waiting_bytes: int = 0
    _cells: ShardCells = field(init=False)

    def __post_init__(self) -> None:
        """Find the recordings of which there are several segments, and what is in Parquet files."""
        self._cells = ShardCells.of(self.plan["uri"])
        is_part = pc.or_(pc.is_valid(self.plan["start"]), pc.is_valid(self.plan["end"])).to_numpy()
        rows = np.flatnonzero(is_part)
        segments: dict[str, list[int]] = defaultdict(list)
        for row, uri in zip(rows.tolist(), self.plan["uri"].take(pa.array(rows)).to_pylist(), strict=True):
            segments[uri].append(row)
        self._segments = {uri: found for uri, found in segments.items() if len(found) > 1}

    def fetch(self, row: int, uri: str, start: float | None, end: float | None) -> PackedAudio:
        """Return the audio of a row (see `audio.fetch`), to be used before the next row's is asked for."""
        if row not in self._waiting and uri in self._segments:
            self._cut_ahead(row, uri)
        audio = self._waiting.pop(row, None)
        if audio is None:
            audio = fetch(self._cells.address(uri), start, end, self.settings, self._buffer)
        else:
            self._waiting_bytes -= len(audio.data)
        self.reduced += audio.reduced
        return audio

    def _cut_ahead(self, row: int, uri: str) -> None:
        """Cut a row and those after it out of their recording, as many as there is room for."""
        rows = [other for other in self._segments.pop(uri) if other >= row and other not in self._waiting]
        if len(rows) < 2:
            return
        spans = self.plan.select(["start", "end"]).take(pa.array(rows)).to_pylist()
        left_over = []
        try:
            for place, audio in fetch_spans(uri, [(span["start"], span["end"]) for span in spans], self.settings):
                if rows[place] != row and self._waiting_bytes + len(audio.data) > _WAITING_BYTES:
                    left_over.append(rows[place])
                    continue
                self._waiting[rows[place]] = audio
                self._waiting_bytes += len(audio.data)
        except AudioError:
            return  # those that are not there yet are fetched one by one, and say what is wrong with them
        if left_over:
            self._segments[uri] = sorted(left_over)
