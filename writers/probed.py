"""What is known of audio files that were probed, kept beside the target until the plan is written, which holds it all.

    .uttershard/probed/000017-<xxh3_128 of this file>.parquet    one row an audio file

    key                uint64   of all that its length may depend on (see `file_keys`)
    seconds            float64
    values_per_second  float64  sampling rate times channels
    size               int64    bytes

Probing a large corpus takes hours, and the process that has it done may die. A later run takes over what has the key of
one of its own files; whatever else is there (another corpus, files that were changed since, a damaged record) is as if
it were not. Files that could not be probed are not kept: they may have been mended.
"""

import contextlib
import io
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray
from uttershard.pipeline.dataset.digest import PREFIX, digest_bytes
from uttershard.pipeline.planning.hashing import hash_ordinals

from .commit import NoSpaceError
from .source_store import source_identity
from .targets.base import PROBED_FOLDER, Target

SAVE_SECONDS = 10.0
"""So much work is lost at most, and what takes less is not worth a file."""
SAVE_FILES = 16_384
"""Audio files of a record: a corpus of ten million has some 600 records of 400 KB."""

_NAME = re.compile(re.escape(PROBED_FOLDER) + r"/(\d{6,})-([0-9a-f]{32})\.parquet")
_SCHEMA = pa.schema(
    [("key", pa.uint64()), ("seconds", pa.float64()), ("values_per_second", pa.float64()), ("size", pa.int64())]
)
_READERS = 16


@dataclass(frozen=True)
class FileFacts:
    """What a chunk of files says of itself, an entry a file; `reason` is None where the file is good."""

    seconds: NDArray[np.float64]
    values_per_second: NDArray[np.float64]
    """Sampling rate times channels."""
    sizes: NDArray[np.int64]
    reasons: tuple[str | None, ...]


def file_keys(
    addresses: NDArray[np.uint64], sizes: NDArray[np.int64], changed: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return the key of each audio file; the options of the corpus' store and this library's version count, too.

    Args:
        addresses: Hash of each address.
        sizes: Bytes as listed, -1 where unknown.
        changed: When each was last changed, 0 where unknown.
    """
    common = xxhash.xxh3_64_intdigest(f"{version('uttershard')} {source_identity()}".encode())
    keys = hash_ordinals(common, addresses.view(np.int64))
    for values in (sizes, changed):
        keys = hash_ordinals(common, keys.view(np.int64) ^ values)
    return keys


@dataclass
class ProbedFiles:
    """The records of a job, and what is to become the next of them."""

    target: Target
    wanted: int = 0
    """Files that this run needs."""
    kept: int = 0
    """Of those, how many are in records."""
    _next: int = 0
    _saved: float = field(default_factory=time.monotonic)
    _waiting: list[pa.Table] = field(default_factory=list)

    def exist(self) -> bool:
        """Whether there is a record."""
        return bool(self._names())

    def recall(self, keys: NDArray[np.uint64]) -> Iterator[tuple[NDArray[np.int64], FileFacts]]:
        """Yield places in `keys` and what is known of those files; a place that comes again is known better then."""
        names = self._names()
        if not names:
            return
        self._next = int(names[-1][1]) + 1
        if not len(keys):
            return
        order = np.argsort(keys)
        ordered = keys[order]
        with ThreadPoolExecutor(_READERS) as pool:
            for start in range(0, len(names), _READERS):  # the pool would run ahead of this loop, and hold all
                for table in pool.map(self._read, names[start : start + _READERS]):
                    found = table["key"].to_numpy()
                    places = np.searchsorted(ordered, found)
                    known = ordered[np.minimum(places, len(ordered) - 1)] == found
                    facts = table.filter(pa.array(known))
                    seconds, values_per_second, sizes = (facts[name].to_numpy() for name in _SCHEMA.names[1:])
                    reasons = (None,) * facts.num_rows
                    yield order[places[known]], FileFacts(seconds, values_per_second, sizes, reasons)

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Save what was added when the block fails or is stopped, and say then how much is kept."""
        try:
            yield
        except KeyboardInterrupt:
            self.save()
            raise KeyboardInterrupt(f"stopped: {self._words()}. Run the same command again to go on") from None
        except NoSpaceError as error:
            raise NoSpaceError(f"{error}: {self._words()}. Free space and run the same command again") from error
        except BaseException:
            self.save()
            raise
        if self._next:  # dealing and writing the plan of what took so long takes its time, too
            self.save()

    def add(self, keys: NDArray[np.uint64], facts: FileFacts) -> None:
        """Take in what a task has found."""
        good = ~np.isnan(facts.seconds)
        columns = (keys, facts.seconds, facts.values_per_second, facts.sizes)
        self._waiting.append(pa.table([column[good] for column in columns], schema=_SCHEMA))
        waiting = sum(table.num_rows for table in self._waiting)
        if waiting >= SAVE_FILES or time.monotonic() - self._saved >= SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write a record of what was added since the last one."""
        table = pa.concat_tables([_SCHEMA.empty_table(), *self._waiting])
        self._waiting = []
        self._saved = time.monotonic()
        if not table.num_rows:
            return
        sink = io.BytesIO()
        pq.write_table(table, sink, compression="zstd")
        data = sink.getvalue()
        digest = digest_bytes(data).removeprefix(PREFIX)
        self.target.put(f"{PROBED_FOLDER}/{self._next:06d}-{digest}.parquet", data)
        self._next += 1
        self.kept += table.num_rows

    def forget(self) -> None:
        """Remove all records."""
        with ThreadPoolExecutor(_READERS) as pool:
            list(pool.map(self.target.delete, (name[0] for name in self._names())))

    def _words(self) -> str:
        return f"the lengths of {self.kept:,} of {self.wanted:,} audio files are known and kept"

    def _names(self) -> list[re.Match[str]]:
        """Return the names of records, in the order in which they were written."""
        matches = (_NAME.fullmatch(name) for name in self.target.names())
        return sorted((match for match in matches if match is not None), key=lambda match: (int(match[1]), match[2]))

    def _read(self, name: re.Match[str]) -> pa.Table:
        data = self.target.read(name[0])
        if data is None or digest_bytes(data).removeprefix(PREFIX) != name[2]:
            return _SCHEMA.empty_table()
        try:
            table = pq.ParquetFile(io.BytesIO(data)).read(use_threads=False)
        except pa.ArrowException:
            return _SCHEMA.empty_table()
        return table if table.schema.equals(_SCHEMA) else _SCHEMA.empty_table()
