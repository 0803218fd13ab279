"""Several datasets as one corpus, each with its own share of an epoch.

A repeat factor says how often an utterance comes in an epoch that reads its logical shard: 2.25 is twice, and a
quarter of them, chosen by hash and by audio to within one utterance, a third time. Each time is an ordinal of its own,
so that all that holds of utterances elsewhere (once in an epoch, once over a resume) holds of copies here:

ordinals   | a, first | a, again | a, some  | b, first | b, some |        a has factor 2.25, b has 1.5
             logical shard i of each copy lies at the same place as in the first; that of the mix is all of these
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import ConfigError
from .corpus import Corpus
from .hashing import Stream, hash_ordinals, stream_key
from .partition import logical_bounds
from .windows import split_windows

PARTS_OF_COPY = 1 << 30
"""Repeat factors are counted in this part of a copy, so that no rounding depends on a machine."""

MOST_REPEATS = 1_000
"""More is a slip, or a dataset that no weight makes up for."""


@dataclass(frozen=True)
class PartNumbers:
    """What one dataset of a mix gives to an epoch, over all ranks.

    Attributes:
        name: Its name.
        repeat: How often an utterance comes.
        utterances: How many come, each as often as it comes.
        hours: Their audio.
        share: Their share of the audio of the epoch.
    """

    name: str
    repeat: float
    utterances: int
    hours: float
    share: float


@dataclass(frozen=True, eq=False, kw_only=True)
class MixedCorpus(Corpus):
    """A mix of datasets as planning sees it; an utterance is the ordinal of one of its copies.

    Attributes:
        bounds: int64[parts, T + 1], of the logical shards in each part, counted from its first utterance.
        names: of the parts.
        sizes: int64[parts], utterances of each.
        first_copies: int64[parts + 1], ordinal of the first copy of each part's first utterance, and of the end.
        first_rows: int64[parts + 1], place of each part's first utterance in the datasets one after the other.
        first_tars: int64[parts + 1], the same of its first tar.
        repeats: int64[parts], repeat factors in PARTS_OF_COPY.
        separate: whether batches keep to one part.
    """

    names: tuple[str, ...]
    sizes: NDArray[np.int64]
    first_copies: NDArray[np.int64]
    first_rows: NDArray[np.int64]
    first_tars: NDArray[np.int64]
    repeats: NDArray[np.int64]
    separate: bool = False

    def kept_rows(self, logical_shard: int) -> NDArray[np.int64]:
        """Return all copies in a logical shard that may come, ascending; `epoch_rows` says which do."""
        return np.concatenate([rows for part in range(len(self.names)) for rows in self._copies(part, logical_shard)])

    def epoch_rows(self, logical_shards: Sequence[int], *, seed: int, epoch: int) -> list[NDArray[np.int64]]:
        """Return the ordinals of each logical shard that come in an epoch that reads all of these."""
        chosen: list[list[NDArray[np.int64]]] = [[] for _ in logical_shards]
        for part in range(len(self.names)):
            whole, rest = divmod(int(self.repeats[part]), PARTS_OF_COPY)
            for copy, rows in enumerate(zip(*(self._copies(part, shard) for shard in logical_shards), strict=True)):
                if copy < whole:
                    coming = list(rows)
                else:
                    coming = self._draw(part, copy, list(rows), rest, stream_key(Stream.REPEATS, seed, epoch, part))
                for of_shard, more in zip(chosen, coming, strict=True):
                    of_shard.append(more)
        return [np.concatenate(of_shard) for of_shard in chosen]

    def count_parts(self, logical_shards: Sequence[int], *, seed: int, epoch: int) -> list[PartNumbers]:
        """Return what each dataset gives to an epoch that reads these logical shards."""
        rows = np.concatenate(self.epoch_rows(logical_shards, seed=seed, epoch=epoch))
        part = self.parts_of(rows)
        utterances = np.bincount(part, minlength=len(self.names)).tolist()
        frames = np.bincount(part, self.frames[rows], minlength=len(self.names)).tolist()
        hours = [audio * float(self.frame_shift) / 3600 for audio in frames]
        shares = [audio / max(1, sum(frames)) for audio in frames]
        repeats = [repeat / PARTS_OF_COPY for repeat in self.repeats.tolist()]
        return [PartNumbers(*part) for part in zip(self.names, repeats, utterances, hours, shares, strict=True)]

    def _copies(self, part: int, logical_shard: int) -> list[NDArray[np.int64]]:
        """Return the kept utterances of a part in a logical shard, for each copy."""
        first, size = int(self.first_copies[part]), int(self.sizes[part])
        start, end = self.bounds[part, logical_shard : logical_shard + 2]
        rows = np.flatnonzero(self.kept[first + start : first + end]) + (first + start)
        copies = (int(self.first_copies[part + 1]) - first) // size
        return [rows + copy * size for copy in range(copies)]

    def _draw(
        self, part: int, copy: int, rows: list[NDArray[np.int64]], rest: int, key: int
    ) -> list[NDArray[np.int64]]:
        """Return what comes of a copy that comes in part: `rest` of its audio, to within one utterance."""
        together = np.concatenate(rows)
        inside = together - (self.first_copies[part] + copy * self.sizes[part])
        order = np.argsort(hash_ordinals(key, inside), kind="stable")
        until = np.concatenate(([0], np.cumsum(self.frames[together[order]], dtype=np.int64)))
        wanted = int(until[-1]) * rest // PARTS_OF_COPY
        above = int(np.searchsorted(until, wanted))
        count = above - 1 if above and wanted - until[above - 1] <= until[above] - wanted else above
        coming = np.zeros(together.size, np.bool_)
        coming[order[:count]] = True
        ends = np.cumsum([of_shard.size for of_shard in rows])[:-1]
        return [of_shard[mask] for of_shard, mask in zip(rows, np.split(coming, ends), strict=True)]

    def split_parts(self, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the ordinals of each part; `rows` ascends."""
        return np.split(rows, np.searchsorted(rows, self.first_copies[1:-1]))

    def rows_of_rank(self, logical_shards: Sequence[int], rank: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
        """Return what `epoch_rows` does for one rank; what comes of a copy in part is drawn over all ranks."""
        return self.epoch_rows(logical_shards, seed=seed, epoch=epoch)[rank]

    def split_windows(self, rows: NDArray[np.int64], windows: int) -> list[NDArray[np.int64]]:
        """Return the ordinals of each window of one rank: a window of every dataset, copies where their tars are."""
        of_parts = []
        for of_part in self.split_parts(rows):
            real = self.real_rows(of_part)
            order = np.argsort(real, kind="stable")
            cut = split_windows(of_part[order], self.frames, self.tars, windows, real[order])
            of_parts.append([np.sort(of_window) for of_window in cut])
        return [np.concatenate(of_window) for of_window in zip(*of_parts, strict=True)]

    def split_groups(self, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return what is batched together: each part by itself, or all."""
        return self.split_parts(rows) if self.separate else [rows]

    def name_group(self, group: int) -> str:
        """Return how messages name a group, after "logical shard 3"."""
        return f" of dataset {self.names[group]!r}" if self.separate else ""

    def parts_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the part of each ordinal."""
        return np.searchsorted(self.first_copies, rows, side="right") - 1

    def real_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places of copies' utterances in the datasets one after the other."""
        part = self.parts_of(rows)
        return self.first_rows[part] + (rows - self.first_copies[part]) % self.sizes[part]

    def once(self, of_copies: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return a column of copies for the utterances, in the order of `real_rows`."""
        firsts = zip(self.first_copies[:-1].tolist(), self.sizes.tolist(), strict=True)
        return np.concatenate([of_copies[first : first + size] for first, size in firsts])

    def cut_into(
        self, total_shards: int, num_samples: NDArray[np.int64], sample_rate: NDArray[np.int32]
    ) -> MixedCorpus:
        """Return the mix with another number of logical shards; the columns are in the order of `real_rows`."""
        rows_per_tar = np.diff(self.tars)
        bounds = []
        for part in range(len(self.names)):
            tars = slice(*self.first_tars[part : part + 2])
            rows = slice(*self.first_rows[part : part + 2])
            bounds.append(logical_bounds(rows_per_tar[tars], num_samples[rows], sample_rate[rows], total_shards))
        return replace(self, bounds=np.stack(bounds))


def mix_corpora(parts: Sequence[tuple[str, Corpus, Fraction]], *, separate: bool) -> MixedCorpus:
    """Return several corpora as one.

    Args:
        parts: name, corpus (all with one frame shift and number of logical shards) and repeat factor of each.
        separate: whether batches keep to one part.

    Raises:
        ConfigError: a repeat factor is out of range.
    """
    names = tuple(name for name, _, _ in parts)
    repeats = [_parse_repeat(name, repeat) for name, _, repeat in parts]
    corpora = [corpus for _, corpus, _ in parts]
    copies = [-(-repeat // PARTS_OF_COPY) for repeat in repeats]
    sizes = np.array([corpus.frames.size for corpus in corpora], np.int64)
    first_rows = np.concatenate(([0], np.cumsum(sizes)))
    keys = [corpus.keys for corpus in corpora if corpus.keys is not None]
    lengths = [corpus.lengths for corpus in corpora if corpus.lengths is not None]
    return MixedCorpus(
        frames=np.concatenate([np.tile(corpus.frames, n) for corpus, n in zip(corpora, copies, strict=True)]),
        kept=np.concatenate([np.tile(corpus.kept, n) for corpus, n in zip(corpora, copies, strict=True)]),
        bounds=np.stack([corpus.bounds for corpus in corpora]),
        filtered=_count_filtered(names, corpora),
        frame_shift=corpora[0].frame_shift,
        tars=np.concatenate(
            [[0], *(corpus.tars[1:] + first for corpus, first in zip(corpora, first_rows, strict=False))]
        ).astype(np.int64),
        keys=_chain(keys) if len(keys) == len(corpora) else None,
        names=names,
        sizes=sizes,
        first_copies=np.concatenate(([0], np.cumsum(sizes * copies))),
        first_rows=first_rows,
        first_tars=np.cumsum([0, *(corpus.tars.size - 1 for corpus in corpora)]),
        repeats=np.array(repeats, np.int64),
        separate=separate,
        lengths=np.concatenate(lengths, axis=1) if len(lengths) == len(corpora) else None,
    )


def repeats_by_weight(corpora: Sequence[Corpus], weights: Sequence[Fraction]) -> list[Fraction]:
    """Return repeat factors that give each corpus its share of the audio, and the epoch as much as all of it has.

    Args:
        corpora: the parts; only what their filters keep counts.
        weights: shares of the hours, of any sum.
    """
    frames = [int(corpus.frames[corpus.kept].sum(dtype=np.int64)) for corpus in corpora]
    return [sum(frames) * weight / sum(weights) / own for weight, own in zip(weights, frames, strict=True)]


def repeats_by_temperature(corpora: Sequence[Corpus], temperature: float) -> list[Fraction]:
    """Return repeat factors by which a corpus of h hours has a share like `h ** (1 / temperature)`."""
    frames = [int(corpus.frames[corpus.kept].sum(dtype=np.int64)) for corpus in corpora]
    # Twelve digits are the same on every machine, the last one of a power may not be.
    weights = [Fraction(f"{(own / max(frames)) ** (1 / temperature):.12f}") for own in frames]
    return repeats_by_weight(corpora, weights)


def _chain(columns: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks], type=columns[0].type)


def _parse_repeat(name: str, repeat: Fraction) -> int:
    parts = round(repeat * PARTS_OF_COPY)
    if not 0 < parts <= MOST_REPEATS * PARTS_OF_COPY:
        raise ConfigError(
            f"dataset {name!r} would come {float(repeat):g} times in an epoch: give it a weight or repeat that makes "
            f"that more than 0 and at most {MOST_REPEATS}"
        )
    return parts


def _count_filtered(names: Sequence[str], corpora: Sequence[Corpus]) -> dict[str, int]:
    counts = {"kept": sum(corpus.filtered["kept"] for corpus in corpora)}
    for name, corpus in zip(names, corpora, strict=True):
        counts |= {f"{name}: {reason}": count for reason, count in corpus.filtered.items() if reason != "kept"}
    return counts
