"""`pack`: from a corpus to a dataset.

list -> ids -> inventory -> fingerprint -> [probe -> assign -> plan] -> pack -> commit
                                           once a job; a later run of the same job goes on from its plan
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from os import PathLike, fspath
from typing import Any

from uttershard.pipeline.dataset.files import StorageOptions
from uttershard.pipeline.dataset.manifest import MANIFEST_NAME, Manifest, encode_manifest, shard_names
from uttershard.pipeline.errors import ConfigError, DataError

from .assign import assign, shard_count
from .cluster import (
    Cluster,
    ClusterSettings,
    cluster_settings,
    start_cluster,
    started_ahead,
    started_when_needed,
)
from .columns import infer_columns
from .commit import NoSpaceError
from .fingerprint import differences, fingerprint
from .ids import refuse_bad_ids
from .inventory import take_inventory
from .listing import Listing
from .pack_shard import ShardTask, pack_shard
from .parts import run_parts_by
from .plan import read_shard, write_plan
from .probe import probe_corpus
from .probed import ProbedFiles
from .progress import Done, Phase, Progress, Silent
from .quarantine import Quarantine, count_refused
from .records import FinishedShard, JobRecords, JobState, known_of_shard
from .settings import PackSettings
from .source_store import source_storage, with_source
from .sources import Source, open_source
from .target import check_target, read_manifest, remove_dataset
from .targets.base import TakenError, Target
from .targets.opening import open_target


@dataclass(frozen=True)
class PackSummary:
    """What a pack job has made."""

    dataset: str
    """Its address."""
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
    sent_bytes: int = 0
    """To a store; 0 for a local folder."""
    requests: int = 0
    """To a store."""
    retries: int = 0
    """Requests that had to be made again."""
    kept_shards: int = 0
    """Which an earlier run of the same job had finished."""
    reduced: int = 0
    """Utterances of 32 bits or floats that were rounded to 24 bits, since FLAC was asked for. Of this job: 0 if it was
    complete already."""
    without_text: int = 0
    """Utterances that have no transcript. Of this job, too."""


def pack(
    source: str | PathLike[str],
    target: str | PathLike[str],
    *,
    from_: str | None = None,
    cluster: ClusterSettings | str | None = None,
    progress: Progress | None = None,
    storage_options: StorageOptions | None = None,
    source_storage_options: StorageOptions | None = None,
    **settings: Any,
) -> PackSummary:
    """Pack a corpus into a dataset of tar shards with sidecars.

    A job that was stopped, however it was, is continued by calling this again with the same arguments; the result is
    the same, byte for byte. Worker processes are started, so a script calls this under `if __name__ == "__main__":`.

    Args:
        source: The corpus: a directory, manifest, archive or pattern of any kind in `sources`, local or remote.
        target: Folder of the dataset, local (made if it is not there) or in a store (`s3://bucket/train`).
        from_: Kind of the source (see `sources.registry`); guessed if None.
        cluster: Where tasks run: a name (`local`, `slurm`, ...), the address of a scheduler, or whole settings; None
            for this machine. The setting `workers` says how many, and wins over the settings' `n_workers`.
        progress: Told how far the job is.
        storage_options: Keyword arguments of the target's fsspec file system (credentials, endpoint). They are sent to
            the workers and written nowhere.
        source_storage_options: The same for a corpus in a store; None reads it with the environment's credentials, for
            the target's may be another identity's.
        **settings: Fields of `PackSettings`.

    Raises:
        ConfigError: Settings, source or target do not fit, or the target holds another dataset.
        DataError: The corpus is empty, or too much of it is refused.
        StorageError: The target failed, refused or is full; what is finished is kept.

    Example:
        >>> pack("data/train", "shards/train", codec="flac", shards=16)  # doctest: +SKIP
    """
    began = time.monotonic()
    chosen = _settings(settings)
    workers = cluster_settings(cluster, chosen.workers)
    with source_storage(source_storage_options):
        reader = open_source(fspath(source), from_, chosen.source_options, allow_pipes=chosen.allow_pipes)
        place = open_target(fspath(target), storage_options, chosen.write_limits)
        check_target(place, overwrite=chosen.overwrite)
        listener = progress or Silent()
        with place.hold(lambda: JobRecords(place).exists() or ProbedFiles(place).exist(), listener):
            return _Job(place, chosen, workers, listener, began, storage_options).run(reader)


def _settings(values: dict[str, Any]) -> PackSettings:
    known = [field.name for field in dataclasses.fields(PackSettings)]
    unknown = [name for name in values if name not in known]
    if unknown:
        raise ConfigError(f"pack has no setting {unknown[0]!r}; it has: {', '.join(known)}")
    return PackSettings(**values)


@dataclass
class _Job:
    """One call of `pack`."""

    target: Target
    settings: PackSettings
    workers: ClusterSettings
    progress: Progress
    began: float
    storage_options: StorageOptions | None = field(default=None, repr=False)
    kept_shards: int = 0

    @property
    def records(self) -> JobRecords:
        return JobRecords(self.target)

    def run(self, reader: Source) -> PackSummary:
        start = partial(start_cluster, self.workers, self.settings.retries, self.progress)
        # Local workers import while this process lists. A queue is not asked for jobs before there is work, and
        # a dataset that is there already may need neither.
        ahead = self.workers.env == "local" and self.target.size(MANIFEST_NAME) is None
        with started_ahead(start) if ahead else started_when_needed(start) as cluster:
            return self._run(reader, cluster)

    def _run(self, reader: Source, cluster: Callable[[], Cluster]) -> PackSummary:
        with run_parts_by(lambda *arguments: cluster().run(*arguments)):
            listing = self._list(reader)
        corpus = len(listing) + len(listing.refused)
        quarantine = Quarantine(self.target, self.settings.error_limits, corpus)
        identity = fingerprint(listing, self.settings)
        complete = self._complete(identity)
        if complete is not None:
            self.target.remove_job()
            return self._summary(complete, count_refused(self.target), already_complete=True)
        state = self._unfinished(identity, listing.changes)
        if state is None:
            state = self._prepare(listing, identity, corpus, quarantine, cluster())
        else:
            quarantine.add(self.records.read_refused())
        del listing  # packing takes days, and only the workers need what is in it
        finished = self._pack(state, quarantine, cluster())
        manifest = Manifest(tuple(shard.entry for shard in finished), state.columns, identity)
        return dataclasses.replace(
            self._commit(manifest, quarantine),
            reduced=sum(shard.reduced for shard in finished),
            without_text=sum(shard.without_text for shard in finished),
        )

    def _list(self, reader: Source) -> Listing:
        with self._phase("list"):
            listing = reader.list_utterances()
            if len(listing):
                listing = take_inventory(refuse_bad_ids(listing))
            for note in listing.notes:
                self.progress.note(note)
            self.progress.advance(Done(utterances=len(listing), refused=len(listing.refused)))
        if not len(listing):
            found = f"{len(listing.refused)} refused" if listing.refused else "nothing there"
            first = f"; first: {listing.refused[0].source}: {listing.refused[0].reason}" if listing.refused else ""
            raise DataError(f"the corpus is empty: no utterance in {listing.searched} ({found}{first})")
        return listing

    def _complete(self, identity: dict[str, Any]) -> Manifest | None:
        """Return the manifest if this very dataset is there already."""
        if self.settings.overwrite:
            return None
        manifest = read_manifest(self.target)
        if manifest is not None and manifest.fingerprint.get("digest") != identity["digest"]:
            raise self._other("a dataset", manifest.fingerprint, identity)
        return manifest

    def _unfinished(self, identity: dict[str, Any], changes: str) -> JobState | None:
        """Return the state of this very job if it was begun; with overwrite, too: it is what was being written over."""
        state = self._read_state()
        if self.target.size(MANIFEST_NAME) is not None:
            return None
        same = state is not None and state.fingerprint["digest"] == identity["digest"]
        if state is None or (same and state.changes == changes):
            return state
        if self.settings.overwrite:
            return None
        if same:
            raise ConfigError(
                f"{self.target}: holds an unfinished job, and audio files were changed or replaced since it began "
                "(their times say so). Its finished shards hold the audio of then: begin anew with overwrite"
            )
        raise self._other("an unfinished job", state.fingerprint, identity)

    def _read_state(self) -> JobState | None:
        """Read the state; with overwrite, records that are damaged are none."""
        if not self.settings.overwrite:
            return self.records.read_state()
        try:
            state = self.records.read_state()
            if state is not None:
                self.records.read_refused()
                read_shard(self.target, state.shards - 1, None)
        except (DataError, FileNotFoundError):
            return None
        return state

    def _other(self, what: str, before: dict[str, Any], now: dict[str, Any]) -> ConfigError:
        changed = "; ".join(differences(before, now)) or "the version of the fingerprint"
        return ConfigError(
            f"{self.target}: holds {what} made otherwise. Changed since: {changed}. "
            "Choose another target, or replace it with overwrite"
        )

    def _prepare(
        self, listing: Listing, identity: dict[str, Any], corpus: int, quarantine: Quarantine, cluster: Cluster
    ) -> JobState:
        """Probe, deal, and write down the plan."""
        columns = infer_columns(listing.utterances["metadata"], self.settings.columns)
        with self._phase("probe", utterances=len(listing)):
            probed = probe_corpus(listing, self.settings, cluster.run, ProbedFiles(self.target), self.progress)
            self.progress.advance(Done(refused=len(probed.refused)))
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
        dealt = assign(probed.utterances["key"], seconds, shards, self.settings.seed)
        if self.settings.overwrite:
            remove_dataset(self.target)
        write_plan(self.target, probed.utterances, dealt)
        self.records.write_refused(refused)
        state = JobState(identity, shards, columns, utterances, corpus, float(seconds.sum()), listing.changes)
        self.records.write_state(state)
        ProbedFiles(self.target).forget()
        return state

    def _pack(self, state: JobState, quarantine: Quarantine, cluster: Cluster) -> list[FinishedShard]:
        listing = self.target.listing()
        before = self.records.finished()
        make_task = partial(
            ShardTask,
            self.target.address,
            columns=state.columns,
            fingerprint=state.fingerprint["digest"],
            settings=self.settings,
            # A run that ended over too many refusals would end the same way for ever, whatever was mended since.
            retry_refused=quarantine.exceeds(sum(before.values())),
            storage_options=self.storage_options,
        )
        finished: dict[int, FinishedShard] = {}
        with (
            self._phase("pack", utterances=state.utterances, seconds=state.seconds),
            self._room(before.keys(), finished, state),
        ):
            tasks = (
                make_task(
                    shard=shard,
                    listed=None if listing is None else known_of_shard(listing, shard, shard_names(shard)),
                )
                for shard in range(state.shards)
            )
            for shard, result in cluster.run(with_source(pack_shard), tasks, _shard_name):
                self.target.check_held()
                finished[shard] = result.finished
                self.kept_shards += result.kept
                self.target.traffic.add(result.traffic)
                entry, refused = result.finished.entry, result.finished.refused
                self.progress.advance(
                    Done(entry.utterances, entry.seconds, entry.tar_bytes, refused=len(refused), kept=result.kept)
                )
                quarantine.add(refused)
        return [finished[shard] for shard in range(state.shards)]

    def _commit(self, manifest: Manifest, quarantine: Quarantine) -> PackSummary:
        if not manifest.utterances:
            raise DataError(f"{self.target}: all utterances were refused, see {quarantine.path}")
        quarantine.write()
        try:
            self.target.put(MANIFEST_NAME, encode_manifest(manifest), only_new=True)
        except TakenError as error:
            raise ConfigError(
                f"{self.target.where(MANIFEST_NAME)}: another job has finished a dataset here while this one was "
                "packing. Look at it with `uttershard info`, or pack again with overwrite or to another target"
            ) from error
        self.target.remove_job()
        return self._summary(manifest, len(quarantine), already_complete=False)

    def _summary(self, manifest: Manifest, refused: int, *, already_complete: bool) -> PackSummary:
        traffic = self.target.traffic
        return PackSummary(
            dataset=str(self.target),
            utterances=manifest.utterances,
            hours=manifest.seconds / 3600,
            bytes=manifest.tar_bytes,
            shards=len(manifest.shards),
            refused=refused,
            already_complete=already_complete,
            elapsed=time.monotonic() - self.began,
            kept_shards=self.kept_shards,
            sent_bytes=traffic.sent_bytes,
            requests=traffic.requests,
            retries=traffic.retries,
        )

    @contextlib.contextmanager
    def _phase(self, phase: Phase, *, utterances: int | None = None, seconds: float | None = None) -> Iterator[None]:
        self.progress.begin(phase, utterances=utterances, seconds=seconds)
        try:
            yield
        finally:
            self.progress.end()

    @contextlib.contextmanager
    def _room(self, before: Collection[int], finished: dict[int, FinishedShard], state: JobState) -> Iterator[None]:
        """Say, when the disk is full or the job is stopped, how far it got, earlier runs too, and how to go on."""

        def kept() -> str:
            return f"{len(finished.keys() | before)} of {state.shards} shards are done and kept"

        try:
            yield
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"stopped: {kept()}. Run the same command again to go on") from None
        except NoSpaceError as error:
            raise NoSpaceError(f"{error}: {kept()}. Free space and run the same command again") from error


def _shard_name(shard: int) -> str:
    return shard_names(shard)[0]
