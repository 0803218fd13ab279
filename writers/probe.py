"""Probing: how long each utterance is and how large the dataset will be, from the headers of the audio files.

Only files whose length the corpus does not state are opened; a few more if the size of what will be written can't be
told without their rate. Runs as Dask tasks over a few hundred files each. What is found is kept until the plan holds it
(`probed`).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from uttershard.pipeline.reading.codecs import AudioError

from .assign import shuffle
from .audio_files import raise_if_it_may_come_back, with_address
from .audio_rows import AudioRows
from .channels import probe_channels
from .listing import Listing, Refusal
from .parquet_cells import DamagedGroups, has_cells, sort_cells
from .probed import FileFacts, ProbedFiles, file_keys
from .progress import Done, Progress
from .settings import PackSettings
from .source_store import with_source

CHUNK_FILES = 256
"""Files of a task: enough to make the scheduler's share small, few enough that a lost worker costs little."""

TOLERANCE_SECONDS = 0.01
"""A segment may end this much behind its recording (times in corpora are rounded); it is then cut at the end."""

_SAMPLE_FILES = 256
_OVERHEAD_BYTES = 3072
"""Of an utterance in a tar beside its audio: three headers, two small members, padding."""
_SEED_OF_SAMPLE = 0x5A4D504C
_BYTES_PER_VALUE = {"keep": 1.1, "flac": 1.1, "wav": 2.0, "opus": 0.25}
"""Bytes that an encoded sample takes, about: FLAC 0.55 of 16-bit PCM on speech, Opus 32 kbit/s at 16 kHz."""
_FALLBACK_VALUES_PER_SECOND = 16_000.0


@dataclass(frozen=True)
class Probed:
    """The corpus with all durations known."""

    utterances: pa.Table
    """As listed, with `seconds` (float64, not null) and without what was refused."""
    refused: list[Refusal]
    estimated_bytes: int


RunChunks = Callable[[Callable[[list[str]], FileFacts], Iterable[list[str]]], Iterator[tuple[int, FileFacts]]]
"""Runs a function on chunks and yields (number of the chunk, result) in any order."""


def probe_corpus(
    listing: Listing, settings: PackSettings, run: RunChunks, kept: ProbedFiles, progress: Progress
) -> Probed:
    """Find the duration of every utterance and the size of the dataset.

    Args:
        listing: The corpus, with sizes and times (`take_inventory`); it gets the durations, and loses what is refused.
        settings: What will be packed.
        run: How chunks of files are run.
        kept: What earlier runs have found, and is to keep what this one finds.
        progress: Told of each utterance whose length is known, or why it can't be.
    """
    table = listing.utterances
    files = AudioRows.of(table["uri"])
    file_of_row = files.file_of_row
    wanted = _files_to_open(table, file_of_row, settings)
    with kept.collecting():
        facts = _open_files(table, files, wanted, run, kept, progress)
    seconds, reasons = _durations(table, file_of_row, facts)
    good = np.ones(table.num_rows, dtype=bool)
    good[list(reasons)] = False
    refused = [_refusal(table, row, reason) for row, reason in reasons.items()]
    estimate = _estimate_bytes(table, seconds, file_of_row, facts, settings)
    listing.utterances = table.drop_columns(["changed"]).append_column("seconds", pa.array(seconds))
    if reasons:
        del table
        mask = pa.array(good)
        listing.rebuild(lambda column: column.filter(mask))
    return Probed(listing.utterances, refused, int(estimate[good].sum()))


def probe_files(uris: list[str]) -> FileFacts:
    """Read the headers of some files (the task that a worker runs)."""
    count = len(uris)
    facts = FileFacts(np.full(count, np.nan), np.full(count, np.nan), np.zeros(count, np.int64), (None,) * count)
    reasons: list[str | None] = []
    damaged = DamagedGroups()
    for number, uri in enumerate(uris):
        try:
            damaged.raise_if_known(uri)
            info, facts.sizes[number] = probe_channels(uri)
        except (AudioError, OSError) as error:
            raise_if_it_may_come_back(error, uri)
            damaged.note(uri, error)
            reasons.append(str(error))
            continue
        facts.seconds[number] = info.num_samples / info.sample_rate
        facts.values_per_second[number] = info.sample_rate * info.channels
        reasons.append(None)
    return FileFacts(facts.seconds, facts.values_per_second, facts.sizes, tuple(reasons))


def _files_to_open(table: pa.Table, file_of_row: NDArray[np.int32], settings: PackSettings) -> NDArray[np.int64]:
    unknown = pc.and_(pc.is_null(table["duration"]), pc.is_null(table["end"]))
    unsized = pc.is_null(table["size"])
    wanted = np.unique(file_of_row[pc.or_(unknown, unsized).to_numpy()])
    if not len(wanted) and (_transcodes(settings) or not _is_whole(table).all()):
        # The rate decides how large the result is: ask a sample of the files, the same one whenever this is run.
        files = np.unique(file_of_row)
        keys = [str(file) for file in files.tolist()]
        wanted = np.sort(files[shuffle(keys, _SEED_OF_SAMPLE)[:_SAMPLE_FILES]])
    return wanted.astype(np.int64)


def _open_files(
    table: pa.Table,
    files: AudioRows,
    wanted: NDArray[np.int64],
    run: RunChunks,
    kept: ProbedFiles,
    progress: Progress,
) -> "_Facts":
    facts = _Facts.unknown(len(files))
    rows = np.bincount(files.file_of_row, minlength=len(files))
    keys = _keys(table, files, wanted)
    known = _recall(table, files, wanted, keys, facts, kept)
    progress.advance(Done(utterances=int(rows[wanted[known]].sum()), kept=True))
    missing = np.flatnonzero(~known)
    if has_cells(files.uris):
        missing = missing[sort_cells(files.addresses(wanted[missing]))]
    chunks = [missing[start : start + CHUNK_FILES] for start in range(0, len(missing), CHUNK_FILES)]
    for number, result in run(with_source(probe_files), (files.addresses(wanted[chunk]) for chunk in chunks)):
        opened = wanted[chunks[number]]
        facts.put(opened, result)
        kept.add(keys[chunks[number]], result)
        progress.advance(Done(utterances=int(rows[opened].sum())))
    progress.advance(Done(utterances=int(rows.sum() - rows[wanted].sum())))
    return facts


def _keys(table: pa.Table, files: AudioRows, wanted: NDArray[np.int64]) -> NDArray[np.uint64]:
    rows = files.first_rows[wanted]
    sizes, changed = (pc.fill_null(table[name], -1).to_numpy()[rows] for name in ("size", "changed"))
    return file_keys(files.hashes[wanted], sizes, changed)


def _recall(
    table: pa.Table,
    files: AudioRows,
    wanted: NDArray[np.int64],
    keys: NDArray[np.uint64],
    facts: "_Facts",
    kept: ProbedFiles,
) -> NDArray[np.bool_]:
    """Take over what was kept, and say of each file that is wanted whether it need not be opened."""
    known = np.zeros(len(wanted), dtype=bool)
    for places, found in kept.recall(keys):
        facts.put(wanted[places], found)
        known[places] = True
    if known.any():
        # What would refuse an utterance is looked at again: in a store, nothing tells that a recording was replaced.
        measured = facts.seconds[files.file_of_row]
        outside = _outside(_floats(table, "start", 0.0), _floats(table, "end", np.nan), measured)
        known &= ~np.isin(wanted, files.file_of_row[outside])
    kept.wanted, kept.kept = len(wanted), int(known.sum())
    return known


@dataclass
class _Facts:
    """What is known of all files, an entry a file; NaN where a file was not opened."""

    seconds: NDArray[np.float64]
    values_per_second: NDArray[np.float64]
    sizes: NDArray[np.int64]
    reasons: dict[int, str]

    @classmethod
    def unknown(cls, files: int) -> "_Facts":
        return cls(np.full(files, np.nan), np.full(files, np.nan), np.zeros(files, np.int64), {})

    def put(self, files: NDArray[np.int64], found: FileFacts) -> None:
        self.seconds[files] = found.seconds
        self.values_per_second[files] = found.values_per_second
        self.sizes[files] = found.sizes
        self.reasons.update({int(file): why for file, why in zip(files, found.reasons, strict=True) if why})


def _durations(
    table: pa.Table, file_of_row: NDArray[np.int32], facts: _Facts
) -> tuple[NDArray[np.float64], dict[int, str]]:
    start = _floats(table, "start", 0.0)
    end = _floats(table, "end", np.nan)
    stated = _floats(table, "duration", np.nan)
    measured = facts.seconds[file_of_row]
    # Measured wins; a segment has its own end; what is left is what the corpus states.
    to_end = np.where(np.isnan(end), measured, np.minimum(end, measured)) - start
    seconds = np.where(np.isnan(measured), np.where(np.isnan(end), stated, end - start), to_end)
    reasons: dict[int, str] = {}
    if facts.reasons:
        for row in np.flatnonzero(np.isin(file_of_row, list(facts.reasons))).tolist():
            reasons[row] = facts.reasons[int(file_of_row[row])]
    for row in np.flatnonzero(_outside(start, end, measured)).tolist():
        reasons.setdefault(row, segment_problem(float(start[row]), float(end[row]), float(measured[row])))
    return np.nan_to_num(seconds), reasons


def _outside(start: NDArray[np.float64], end: NDArray[np.float64], recording: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Say of segments whether they lie outside their recordings; unknown (NaN) ends do not."""
    return np.asarray((end > recording + TOLERANCE_SECONDS) | (start >= recording))


def segment_problem(start: float, end: float, recording: float) -> str:
    """Say that a segment lies outside its recording."""
    if start >= recording:
        return f"the segment starts at {start:.3f} s, but the recording ends at {recording:.3f} s"
    return f"the segment ends at {end:.3f} s, but the recording ends at {recording:.3f} s"


def _estimate_bytes(
    table: pa.Table, seconds: NDArray[np.float64], file_of_row: NDArray[np.int32], facts: _Facts, settings: PackSettings
) -> NDArray[np.float64]:
    known = facts.values_per_second[~np.isnan(facts.values_per_second)]
    mean = float(known.mean()) if len(known) else _FALLBACK_VALUES_PER_SECOND
    if settings.sample_rate is not None:
        mean = float(settings.sample_rate * (settings.channels or 1))
    encoded = seconds * mean * _BYTES_PER_VALUE[settings.codec]
    sizes = pc.coalesce(table["size"], pa.array(facts.sizes[file_of_row])).to_numpy()
    copied = _is_whole(table) & (not _transcodes(settings))
    return np.where(copied, sizes, encoded) + _OVERHEAD_BYTES


def _refusal(table: pa.Table, row: int, reason: str) -> Refusal:
    key, origin, uri = (table[name][row].as_py() for name in ("key", "origin", "uri"))
    return Refusal(key, origin, with_address(reason, uri))


def _is_whole(table: pa.Table) -> NDArray[np.bool_]:
    """Say of each utterance whether it is a whole file."""
    return np.asarray((_floats(table, "start", 0.0) == 0.0) & pc.is_null(table["end"]).to_numpy())


def _transcodes(settings: PackSettings) -> bool:
    return settings.codec != "keep" or settings.sample_rate is not None or settings.channels is not None


def _floats(table: pa.Table, name: str, missing: float) -> NDArray[np.float64]:
    return np.asarray(pc.fill_null(table[name], missing).to_numpy(), dtype=np.float64)
