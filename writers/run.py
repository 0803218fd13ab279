"""`pack`: from a corpus to a dataset.

list -> ids -> inventory -> fingerprint -> [probe -> assign -> plan] -> pack -> commit
                                           once a job; a later run of the same job goes on from its plan
"""

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from typing import Any

from uttershard.pipeline.dataset.manifest import MANIFEST_NAME, Manifest, ShardEntry, encode_manifest, shard_names
from uttershard.pipeline.errors import ConfigError, DataError

from .assign import assign, shard_count
from .cluster import Cluster, ClusterSettings, cluster_settings, start_cluster
from .columns import infer_columns
from .commit import NoSpaceError, write_atomically
from .fingerprint import differences, fingerprint
from .ids import refuse_bad_ids
from .inventory import take_inventory
from .job import FinishedShard, JobFolder, JobState, lock
from .listing import Listing
from .pack_shard import ShardTask, pack_shard
from .plan import read_outline, write_plan
from .probe import probe_corpus
from .progress import Phase, Progress, Silent
from .quarantine import Quarantine, count_refused
from .settings import PackSettings
from .sources import Source, open_source
from .target import open_target, read_manifest, remove_dataset


@dataclass(frozen=True)
class PackSummary:
    """What a pack job has made."""

    target: str
    utterances: int
    hours: float
    bytes: int
    """Of all tars."""
    shards: int
    refused: int
    already_complete: bool
    """True if there was nothing to do: the dataset was there, from equal inputs and options."""
    elapsed: float
    """Seconds."""


def pack(
    source: str | PathLike[str],
    target: str | PathLike[str],
    *,
    from_: str | None = None,
    cluster: ClusterSettings | str | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> PackSummary:
    """Pack a corpus into a dataset of tar shards with sidecars.

    A job that was stopped, however it was, is continued by calling this again with the same arguments; the result is
    the same, byte for byte. Worker processes are started, so a script calls this under `if __name__ == "__main__":`.

    Args:
        source: The corpus: a Kaldi directory, a JSONL manifest, a CSV or TSV table, a folder of audio.
        target: Folder of the dataset; made if it is not there.
        from_: Kind of the source (see `sources.registry`); guessed if None.
        cluster: Where tasks run: a name (`local`, `slurm`, ...), the address of a scheduler, or whole settings; None
            for this machine. The setting `workers` says how many, and wins over the settings' `n_workers`.
        progress: Told how far the job is.
        **settings: Fields of `PackSettings`.

    Raises:
        ConfigError: Settings, source or target do not fit, or the target holds another dataset.
        DataError: The corpus is empty, or too much of it is refused.
        StorageError: The target's file system failed or is full; what is finished is kept.

    Example:
        >>> pack("data/train", "shards/train", codec="flac", shards=16)  # doctest: +SKIP
    """
    began = time.monotonic()
    chosen = _settings(settings)
    workers = cluster_settings(cluster, chosen.workers)
    reader = open_source(fspath(source), from_, chosen.source_options, allow_pipes=chosen.allow_pipes)
    folder = open_target(fspath(target), overwrite=chosen.overwrite)
    with _locked(folder):
        return _Job(folder, chosen, workers, progress or Silent(), began).run(reader)


def _settings(values: dict[str, Any]) -> PackSettings:
    known = [field.name for field in dataclasses.fields(PackSettings)]
    unknown = [name for name in values if name not in known]
    if unknown:
        raise ConfigError(f"pack has no setting {unknown[0]!r}; it has: {', '.join(known)}")
    return PackSettings(**values)


@contextmanager
def _locked(folder: JobFolder) -> Iterator[None]:
    """Hold the job's lock; a job that never got as far as a plan leaves nothing behind."""
    is_new = not folder.target.exists()
    with lock(folder):
        folder.create()
        folder.clear_scratch()
        try:
            yield
        finally:
            folder.clear_scratch()
            if folder.read_state() is None:
                folder.remove()
                if is_new and not any(folder.target.iterdir()):
                    folder.target.rmdir()


@dataclass
class _Job:
    """One call of `pack`."""

    folder: JobFolder
    settings: PackSettings
    workers: ClusterSettings
    progress: Progress
    began: float

    def run(self, reader: Source) -> PackSummary:
        listing = self._list(reader)
        corpus = len(listing) + len(listing.refused)
        quarantine = Quarantine(self.folder.target, self.folder.scratch, self.settings, corpus)
        identity = fingerprint(listing, self.settings)
        complete = self._complete(identity)
        if complete is not None:
            self.folder.remove()
            return self._summary(complete, count_refused(self.folder.target), already_complete=True)
        state = self._unfinished(identity)
        with start_cluster(self.workers, self.settings.retries, self.progress) as cluster:
            if state is None:
                state = self._prepare(listing, identity, corpus, quarantine, cluster)
            else:
                quarantine.add(self.folder.read_refused())
            entries = self._pack(state, quarantine, cluster)
        return self._commit(Manifest(tuple(entries), state.columns, identity), quarantine)

    def _list(self, reader: Source) -> Listing:
        with self._phase("list"):
            listing = take_inventory(refuse_bad_ids(reader.list_utterances()))
            self.progress.advance(utterances=len(listing), refused=len(listing.refused))
        if not len(listing):
            found = f"{len(listing.refused)} refused" if listing.refused else "nothing there"
            first = f"; first: {listing.refused[0].source}: {listing.refused[0].reason}" if listing.refused else ""
            raise DataError(f"the corpus is empty: no utterance in {listing.searched} ({found}{first})")
        return listing

    def _complete(self, identity: dict[str, Any]) -> Manifest | None:
        """Return the manifest if this very dataset is there already."""
        if self.settings.overwrite:
            return None
        manifest = read_manifest(self.folder.target)
        if manifest is not None and manifest.fingerprint.get("digest") != identity["digest"]:
            raise self._other("a dataset", manifest.fingerprint, identity)
        return manifest

    def _unfinished(self, identity: dict[str, Any]) -> JobState | None:
        """Return the state of this very job if it was begun; with overwrite, too: it is what was being written over."""
        state = self.folder.read_state()
        if (self.folder.target / MANIFEST_NAME).exists():
            return None
        if state is None or state.fingerprint["digest"] == identity["digest"]:
            return state
        if self.settings.overwrite:
            return None
        raise self._other("an unfinished job", state.fingerprint, identity)

    def _other(self, what: str, before: dict[str, Any], now: dict[str, Any]) -> ConfigError:
        changed = "; ".join(differences(before, now)) or "the version of the fingerprint"
        return ConfigError(
            f"{self.folder.target}: holds {what} made otherwise. Changed since: {changed}. "
            "Choose another target, or replace it with overwrite"
        )

    def _prepare(
        self, listing: Listing, identity: dict[str, Any], corpus: int, quarantine: Quarantine, cluster: Cluster
    ) -> JobState:
        """Probe, deal, and write down the plan."""
        columns = infer_columns(listing.utterances["metadata"], self.settings.columns)
        with self._phase("probe", utterances=len(listing)):
            probed = probe_corpus(listing.utterances, self.settings, cluster.run)
            self.progress.advance(utterances=probed.utterances.num_rows, refused=len(probed.refused))
        refused = [*listing.refused, *probed.refused]
        quarantine.add(refused)
        utterances = probed.utterances.num_rows
        if not utterances:
            raise DataError(f"no utterance of {listing.searched} can be packed; first: {refused[0].reason}")
        shards = shard_count(
            utterances,
            probed.estimated_bytes,
            shards=self.settings.shards,
            shard_bytes=self.settings.shard_bytes,
            multiple=self.settings.multiple,
        )
        seconds = probed.utterances["seconds"].to_numpy()
        dealt = assign(probed.utterances["key"].to_pylist(), seconds, shards, self.settings.seed)
        if self.settings.overwrite:
            remove_dataset(self.folder)
        write_plan(self.folder.plan, self.folder.scratch, probed.utterances, dealt)
        self.folder.write_refused(refused)
        state = JobState(identity, shards, columns, utterances, corpus)
        self.folder.write_state(state)
        return state

    def _pack(self, state: JobState, quarantine: Quarantine, cluster: Cluster) -> list[ShardEntry]:
        outline = read_outline(self.folder.plan)
        make_task = partial(
            ShardTask,
            str(self.folder.target),
            columns=state.columns,
            fingerprint=state.fingerprint["digest"],
            settings=self.settings,
            # A run that ended over too many refusals would end the same way for ever, whatever was mended since.
            retry_refused=quarantine.exceeds(self.folder.count_refused()),
        )
        finished: dict[int, FinishedShard] = {}
        total = sum(shard.seconds for shard in outline)
        with self._phase("pack", utterances=state.utterances, seconds=total), self._room(finished, state.shards):
            tasks = (make_task(shard=shard) for shard in range(state.shards))
            for shard, result in cluster.run(pack_shard, tasks, _shard_name):
                finished[shard] = result
                entry, refused = result.entry, len(result.refused)
                self.progress.advance(
                    utterances=entry.utterances, seconds=entry.seconds, nbytes=entry.tar_bytes, refused=refused
                )
                quarantine.add(result.refused)
        return [finished[shard].entry for shard in range(state.shards)]

    def _commit(self, manifest: Manifest, quarantine: Quarantine) -> PackSummary:
        target, scratch = self.folder.target, self.folder.scratch
        if not manifest.utterances:
            raise DataError(f"{target}: all utterances were refused, see {quarantine.path}")
        quarantine.write()
        write_atomically(target / MANIFEST_NAME, scratch, encode_manifest(manifest))
        self.folder.remove()
        return self._summary(manifest, len(quarantine), already_complete=False)

    def _summary(self, manifest: Manifest, refused: int, *, already_complete: bool) -> PackSummary:
        return PackSummary(
            target=str(self.folder.target),
            utterances=manifest.utterances,
            hours=manifest.seconds / 3600,
            bytes=manifest.tar_bytes,
            shards=len(manifest.shards),
            refused=refused,
            already_complete=already_complete,
            elapsed=time.monotonic() - self.began,
        )

    @contextmanager
    def _phase(self, phase: Phase, *, utterances: int | None = None, seconds: float | None = None) -> Iterator[None]:
        self.progress.begin(phase, utterances=utterances, seconds=seconds)
        try:
            yield
        finally:
            self.progress.end()

    @contextmanager
    def _room(self, finished: dict[int, FinishedShard], shards: int) -> Iterator[None]:
        """Say, when the disk is full or the job is stopped, how far it got and how to go on."""
        try:
            yield
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"stopped: {len(finished)} of {shards} shards are done and kept. Run the same command again to go on"
            ) from None
        except NoSpaceError as error:
            raise NoSpaceError(
                f"{error}: {len(finished)} of {shards} shards are done and kept. "
                "Free space and run the same command again"
            ) from error


def _shard_name(shard: int) -> str:
    return shard_names(shard)[0]
