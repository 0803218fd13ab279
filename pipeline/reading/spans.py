"""What a decoder must know of the utterances of a batch, looked up by their ordinals in the dataset.

sidecar columns of all utterances --SpanIndex--> BatchSpec of one batch (a few KB, sent to whoever decodes it)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..storage.base import Spans

INDEX_COLUMNS = ("key", "offset", "nbytes", "num_samples", "sample_rate", "channels", "codec", "xxh3")
"""The sidecar columns that reading needs."""

TEXT_COLUMN = "text"
"""The sidecar column of adopted tars whose transcripts are in a manifest (NeMo's)."""


@dataclass(frozen=True)
class Ahead:
    """What whoever decodes a batch will read next."""

    groups: tuple[Spans, ...]
    """Of this batch and those after it, as far as they have not been named before; each group is best read together."""
    shards: tuple[int, ...] | None
    """Those of the window that begins with this batch, then those of the next; None where no window begins."""
    first: bool
    """Whether an iteration begins: what an earlier one has named will not be read."""


@dataclass(frozen=True)
class BatchSpec:
    """One batch of a plan, ready to be read: equally long columns, one entry an utterance."""

    epoch: int
    step: int
    filler: bool
    """Whether this batch repeats another of this rank, to make steps equal (`equal_steps="pad"`)."""
    keys: tuple[str, ...]
    codecs: tuple[str, ...]
    spans: Spans
    num_samples: NDArray[np.int64]
    sample_rate: NDArray[np.int32]
    channels: NDArray[np.int16]
    xxh3: NDArray[np.uint64]
    foreign: tuple[bool, ...]
    """Whether its tar is another tool's: text and metadata are where that tool puts them."""
    texts: tuple[str | None, ...] | None = None
    """Transcripts that are in no tar but in the sidecar; None if there are none."""
    datasets: tuple[str, ...] = ()
    """Names of the datasets that the utterances are of, in a mix of several."""
    ahead: Ahead | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def select(self, rows: Sequence[int]) -> "BatchSpec":
        """Return the spec of some of the utterances."""
        chosen = np.asarray(rows, np.intp)
        return replace(
            self,
            keys=tuple(self.keys[row] for row in rows),
            codecs=tuple(self.codecs[row] for row in rows),
            spans=Spans(self.spans.shard[chosen], self.spans.offset[chosen], self.spans.nbytes[chosen]),
            num_samples=self.num_samples[chosen],
            sample_rate=self.sample_rate[chosen],
            channels=self.channels[chosen],
            xxh3=self.xxh3[chosen],
            foreign=tuple(self.foreign[row] for row in rows),
            texts=None if self.texts is None else tuple(self.texts[row] for row in rows),
            datasets=tuple(self.datasets[row] for row in rows) if self.datasets else (),
        )


@dataclass(frozen=True)
class SpanIndex:
    """Columns of all utterances of a dataset, as plain arrays that processes can share."""

    first_row: NDArray[np.int64]
    """Ordinal of the first utterance of each shard, and the number of utterances, [number of shards + 1]."""
    key_bytes: NDArray[np.uint8]
    key_offsets: NDArray[np.int64]
    """Ids as UTF-8, one after the other; id i is key_bytes[key_offsets[i] : key_offsets[i + 1]]."""
    offset: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    num_samples: NDArray[np.int64]
    sample_rate: NDArray[np.int32]
    channels: NDArray[np.int16]
    codec: NDArray[np.int8]
    xxh3: NDArray[np.uint64]
    codec_names: tuple[str, ...]
    foreign: NDArray[np.bool_]
    """Whether each shard is another tool's."""
    text_bytes: NDArray[np.uint8]
    text_offsets: NDArray[np.int64]
    """Transcripts that are in no tar, as the ids are; empty if there are none."""
    has_text: NDArray[np.bool_]

    @classmethod
    def from_table(
        cls, table: pa.Table, rows_per_shard: NDArray[np.int64], *, foreign: NDArray[np.bool_] | None = None
    ) -> "SpanIndex":
        """Take the columns of INDEX_COLUMNS out of a table of the whole dataset, in dataset order.

        Args:
            table: The columns; of adopted tars with TEXT_COLUMN, if there is one.
            rows_per_shard: Utterances of each shard.
            foreign: Whether each shard is another tool's; none of them by default.
        """
        foreign = np.zeros(len(rows_per_shard), np.bool_) if foreign is None else foreign
        texts = table[TEXT_COLUMN] if foreign.any() and TEXT_COLUMN in table.column_names else None
        table = table.select(list(INDEX_COLUMNS)).combine_chunks()
        key_bytes, key_offsets = _string_arrays(table["key"])
        text_bytes, text_offsets = _string_arrays(pa.chunked_array([[]], pa.string()) if texts is None else texts)
        codec = _one_chunk(table["codec"])
        return cls(
            first_row=np.concatenate([[0], np.cumsum(rows_per_shard)]).astype(np.int64),
            key_bytes=key_bytes,
            key_offsets=key_offsets,
            foreign=foreign,
            text_bytes=text_bytes,
            text_offsets=text_offsets,
            has_text=np.empty(0, np.bool_) if texts is None else np.asarray(texts.is_valid().to_numpy(), np.bool_),
            codec=codec.indices.to_numpy(zero_copy_only=False).astype(np.int8),
            codec_names=tuple(codec.dictionary.to_pylist()),
            **{
                name: _one_chunk(table[name]).to_numpy(zero_copy_only=False)
                for name in ("offset", "nbytes", "num_samples", "sample_rate", "channels", "xxh3")
            },
        )

    def __len__(self) -> int:
        return len(self.offset)

    def key(self, row: int) -> str:
        """Return the id of one utterance."""
        return self.key_bytes[self.key_offsets[row] : self.key_offsets[row + 1]].tobytes().decode("utf-8")

    def text(self, row: int) -> str | None:
        """Return the transcript of one utterance, of those that are in no tar."""
        if not self.has_text[row]:
            return None
        return self.text_bytes[self.text_offsets[row] : self.text_offsets[row + 1]].tobytes().decode("utf-8")

    def spec(self, rows: NDArray[np.int64], *, epoch: int, step: int, filler: bool = False) -> BatchSpec:
        """Look up one batch by the ordinals of its utterances."""
        shard = np.searchsorted(self.first_row, rows, side="right").astype(np.int32) - 1
        return BatchSpec(
            epoch=epoch,
            step=step,
            filler=filler,
            keys=tuple(self.key(row) for row in rows.tolist()),
            codecs=tuple(self.codec_names[code] for code in self.codec[rows].tolist()),
            spans=Spans(shard, self.offset[rows], self.nbytes[rows]),
            num_samples=self.num_samples[rows],
            sample_rate=self.sample_rate[rows],
            channels=self.channels[rows],
            xxh3=self.xxh3[rows],
            foreign=tuple(self.foreign[shard].tolist()),
            texts=tuple(self.text(row) for row in rows.tolist()) if len(self.has_text) else None,
        )


def _string_arrays(column: pa.ChunkedArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return strings as UTF-8, one after the other, and where each begins."""
    strings = _one_chunk(column.cast(pa.large_string()))
    if not len(strings):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    _, offsets, data = strings.buffers()
    data_bytes = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return data_bytes, np.frombuffer(offsets, np.int64, count=len(strings) + 1, offset=8 * strings.offset)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Join the chunks of a column (an empty column may have none)."""
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined
