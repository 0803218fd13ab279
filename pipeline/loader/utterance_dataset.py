"""UtteranceDataset: utterances by number or by id, for plain DataLoaders, any sampler, and ESPnet3."""

from __future__ import annotations

import copy
import operator
import sys
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset
from torch.utils.data._utils.collate import default_collate_fn_map

from ..dataset.files import StorageOptions
from ..dataset.shardset import ShardSet
from ..errors import ConfigError, ShardingError, UttershardError
from ..planning.settings import Batching, Filters, Sharding, parse_int
from ..reading.batch import Batch, fill_row
from ..reading.convert import to_float32
from ..reading.decoder import BatchDecoder
from ..reading.spans import SpanIndex
from ..reading.utterance import AudioForm
from ..remote.retry import Limits
from ..storage.open import open_storage
from ..storage.settings import DEFAULT_PREFETCH_BYTES, StorageSettings
from .columns import PlanSettings, load_columns, parse_stats
from .mix import Mix
from .shared import SharedColumns, share
from .world import find_world

ESPNET3_MODULE = "espnet3.components.data.dataset"
"""Where ESPnet3's ShardedDataset is, which it wants datasets with shards to be."""


class UtteranceItem(dict[str, Any]):
    """One utterance: `{"speech": float32 [n], or [n, C] with channels, "text": transcript}`, as ESPnet has samples.

    `text` is not there for an utterance without transcript.

    Attributes:
        key: Its id.
        sample_rate: Hz.
        meta: Metadata, as in its `.json` member.
    """

    key: str
    sample_rate: int
    meta: dict[str, Any]

    @classmethod
    def of(
        cls, key: str, speech: NDArray[np.float32], sample_rate: int, text: str | None, meta: dict[str, Any]
    ) -> UtteranceItem:
        """Return an item."""
        item = cls(speech=speech) if text is None else cls(speech=speech, text=text)
        item.key, item.sample_rate, item.meta = key, sample_rate, meta
        return item


class UtteranceDataset(Dataset[UtteranceItem]):
    """Utterances of a dataset by number or by id; a DataLoader over it makes a `Batch` of them.

    Reads any utterance at any time, each checked against its checksum. For training on whole epochs a ShardLoader is
    faster and pads less; this is for samplers of your own, for looking at single utterances, and for ESPnet3.

    Args:
        dataset: Address of the dataset, or a ShardSet.
        min_seconds: Shortest utterance kept.
        max_seconds: Longest utterance kept.
        where: Rules over sidecar columns, e.g. `'language == "de"'`.
        total_shards: Logical shards that `shard` gives, a multiple of the world size; None for none.
        dist_world_size: Number of ranks that share the shards, as ESPnet3 calls it; found if it is not given.
        sample_rate: Hz to resample to; None leaves each utterance as it is.
        channels: 1 to mix down, more to copy mono; None leaves each utterance as it is.
        stats: Address of a json of `uttershard stats`; rules may then name its columns.
        storage_options, cache, cache_bytes, read_timeout, read_deadline: As for ShardLoader.

    Raises:
        ConfigError: A filter does not fit the columns or keeps nothing.
        ShardingError: total_shards is no multiple of the world size.
        DataError: The dataset is missing, or a tar or sidecar is not what the manifest says.

    Example:
        >>> ds = UtteranceDataset("demo-shards/train")  # doctest: +SKIP
        >>> ds[0]["speech"].shape, ds["utt-17"]["text"]  # doctest: +SKIP
        >>> loader = DataLoader(ds, batch_size=32, sampler=RandomSampler(ds), num_workers=4)  # doctest: +SKIP
    """

    def __init__(
        self,
        dataset: str | PathLike[str] | ShardSet,
        *,
        min_seconds: float | None = None,
        max_seconds: float | None = None,
        where: str | pc.Expression | Sequence[str | pc.Expression] = (),
        total_shards: int | None = None,
        dist_world_size: int | None = None,
        sample_rate: int | None = None,
        channels: int | None = None,
        stats: str | PathLike[str] | None = None,
        storage_options: StorageOptions | None = None,
        cache: str | PathLike[str] | None = None,
        cache_bytes: int | None = None,
        read_timeout: float = 30.0,
        read_deadline: float = 120.0,
    ) -> None:
        limits = Limits(read_timeout, read_deadline)
        shards = dataset
        if isinstance(shards, Mix):
            raise ConfigError(
                "an UtteranceDataset is of one dataset, not of a Mix: make one for each, and join them with "
                "torch.utils.data.ConcatDataset; or iterate over a ShardLoader of the Mix"
            )
        if not isinstance(shards, ShardSet):
            shards = ShardSet.open(shards, storage_options, limits)
        _, self.dist_world_size = find_world(None if dist_world_size is None else 0, dist_world_size)
        self.total_shards = total_shards
        self.filters = Filters(min_seconds, max_seconds, where=where)
        self.stats = parse_stats(stats)
        self.form = AudioForm(sample_rate, channels)
        self.logical_shard: int | None = None
        sharding = Sharding(0, self.dist_world_size, total_shards)
        # The batching plays no part in which utterances there are.
        settings = PlanSettings(sharding, self.filters, Batching(batch_size=1), stats=self.stats)
        columns = load_columns(shards, settings)
        kept = np.flatnonzero(columns.corpus.kept).astype(np.int64)
        self._rows = share(torch.from_numpy(kept))
        self._bounds = np.searchsorted(kept, columns.corpus.bounds)
        index = SpanIndex.from_table(columns.table, columns.rows_per_tar, foreign=columns.foreign)
        self._shared: SharedColumns[SpanIndex] = SharedColumns(index)
        self._index: SpanIndex = self._shared.view()
        self._by_id: torch.Tensor | None = None
        storage = open_storage(
            shards, StorageSettings(None if cache is None else Path(cache), cache_bytes, DEFAULT_PREFETCH_BYTES, limits)
        )
        storage.check_sizes()
        tars = [shards.tar_address(number) for number in range(len(shards.manifest.shards))]
        self._decoder = BatchDecoder(storage, tars, self.form)
        self._shards: ShardSet | None = shards
        register_with_espnet3()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int | str) -> UtteranceItem:
        """Read an utterance by its number, or by its id.

        Raises:
            IndexError: There is none of this number.
            ConfigError: There is none of this id.
            DataError: It is damaged; the message names shard, id and offset.
        """
        return self._read(np.array([self._row(index)]))[0]

    def __getitems__(self, indices: Sequence[int | str]) -> list[UtteranceItem]:
        """Read several utterances at once, which a DataLoader does for a batch."""
        rows = np.array([self._row(index) for index in indices], np.int64)
        if self.form.channels is None and np.unique(self._index.channels[rows]).size > 1:
            return [item for row in rows for item in self._read(row[None])]
        return self._read(rows)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_index": None, "_shards": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._index = self._shared.view()

    def __repr__(self) -> str:
        part = "" if self.logical_shard is None else f", logical shard {self.logical_shard} of {self.total_shards}"
        return f"{type(self).__name__}({len(self)} utterances{part})"

    @property
    def shards(self) -> ShardSet:
        """The dataset that is read.

        Raises:
            ConfigError: This is a copy in a worker process, which has only what reading needs.
        """
        if self._shards is None:
            raise ConfigError(
                "a copy of an UtteranceDataset in another process has no ShardSet: use it where it was made"
            )
        return self._shards

    @property
    def rows(self) -> NDArray[np.int64]:
        """Places of the utterances in the whole dataset, int64 [len], ascending."""
        rows: NDArray[np.int64] = self._rows.numpy()
        return rows

    def shard(self, index: int) -> UtteranceDataset:
        """Return the utterances of one logical shard; numbers begin at 0 in it.

        Args:
            index: From 0 up to total_shards - 1; rank r reads `(epoch * world_size + r) % total_shards`.

        Raises:
            ShardingError: There is no total_shards, this is a shard already, or there is none of this number.
        """
        if self.total_shards is None or self.logical_shard is not None:
            raise ShardingError(
                f"shard({index}) of {self!r}: give total_shards= to the UtteranceDataset, and take a shard of it once"
            )
        index = parse_int("shard index", index, 0, self.total_shards - 1, ShardingError)
        part = copy.copy(self)
        part._shards, part._by_id = self._shards, None
        # A slice of shared memory is shared too.
        part._rows = self._rows[int(self._bounds[index]) : int(self._bounds[index + 1])]
        part.logical_shard = index
        return part

    def get_utt_id(self, index: int) -> str:
        """Return the id of an utterance, without reading it (ESPnet3 asks for it)."""
        return self._index.key(self._row(index))

    def get_text(self, index: int | str) -> str:
        """Return the transcript of an utterance (ESPnet3 asks for it, to train tokenizers).

        Raises:
            ConfigError: It has none.
        """
        item = self[index]
        if "text" not in item:
            raise ConfigError(f"utterance {item.key!r} has no transcript: leave such out with where='text_chars > 0'")
        return str(item["text"])

    def keys(self) -> Iterator[str]:
        """Yield the ids, in order."""
        return (self._index.key(row) for row in self.rows.tolist())

    def _row(self, index: int | str) -> int:
        if isinstance(index, str):
            return self._row_of_id(index)
        try:
            number = operator.index(index)
        except TypeError:
            raise TypeError(
                f"utterance {index!r} is a {type(index).__name__}: give a whole number or an id; for several at "
                "once, a torch.utils.data.Subset"
            ) from None
        size = len(self)
        if not -size <= number < size:
            raise IndexError(f"utterance {number} of {size}: give 0 up to {size - 1}, or an id")
        return int(self._rows[number])

    def _row_of_id(self, key: str) -> int:
        order, wanted = self._order_of_ids(), key.encode("utf-8")
        low, high = 0, len(order)
        while low < high:
            middle = (low + high) // 2
            if self._index.key(int(order[middle])).encode("utf-8") < wanted:
                low = middle + 1
            else:
                high = middle
        if low < len(order) and self._index.key(int(order[low])) == key:
            return int(order[low])
        where = self._shards.address if self._shards is not None else "the dataset"
        raise ConfigError(
            f"no utterance {key!r} among the {len(self)} of {where}: was it filtered, or in another shard?"
        )

    def _order_of_ids(self) -> NDArray[np.int64]:
        """Return the rows in the order of their ids as UTF-8.

        Made when an id is first asked for: before the DataLoader begins, its workers share it.
        """
        if self._by_id is None:
            index = self._index
            buffers = [None, pa.py_buffer(index.key_offsets), pa.py_buffer(index.key_bytes)]
            keys = pa.Array.from_buffers(pa.large_binary(), len(index), buffers).take(pa.array(self.rows))
            order = self.rows[pc.array_sort_indices(keys).to_numpy()]
            self._by_id = share(torch.from_numpy(order))
        by_id: NDArray[np.int64] = self._by_id.numpy()
        return by_id

    def _read(self, rows: NDArray[np.int64]) -> list[UtteranceItem]:
        spec = self._index.spec(rows, epoch=0, step=0)
        batch = self._decoder.packed(spec, _fresh)
        if batch.packed is None:
            raise UttershardError("a decoder's packed batch must be packed")
        samples = np.split(batch.packed.numpy(), np.cumsum(batch.audio_lengths.numpy())[:-1])
        return [
            UtteranceItem.of(key, to_float32(of_one), self.form.sample_rate or rate, text, meta)
            for key, of_one, rate, text, meta in zip(
                batch.keys, samples, spec.sample_rate.tolist(), batch.text, batch.meta, strict=True
            )
        ]


def collate_utterances(items: Sequence[UtteranceItem], *, collate_fn_map: Any = None) -> Batch:
    """Return items as a Batch. A DataLoader does this by itself, since torch's default collation knows UtteranceItem.

    Raises:
        ConfigError: Some are mono and some are not.
    """
    shapes = {item["speech"].shape[1:] for item in items}
    if len(shapes) > 1:
        raise ConfigError("utterances with different channels in one batch: give channels=1 to the UtteranceDataset")
    lengths = [len(item["speech"]) for item in items]
    padded = torch.empty((len(items), *shapes.pop(), max(lengths)), dtype=torch.float32)
    for row, item in zip(padded.numpy(), items, strict=True):
        fill_row(row, item["speech"])
    return Batch(
        keys=[item.key for item in items],
        audio_lengths=torch.tensor(lengths, dtype=torch.int64),
        text=[item.get("text") for item in items],
        meta=[item.meta for item in items],
        epoch=0,
        step=0,
        padded=padded,
    )


default_collate_fn_map[UtteranceItem] = collate_utterances


def register_with_espnet3() -> None:
    """Make UtteranceDataset one of ESPnet3's sharded datasets, if ESPnet3 has been imported."""
    module = sys.modules.get(ESPNET3_MODULE)
    if module is not None:
        module.ShardedDataset.register(UtteranceDataset)


def _fresh(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)
