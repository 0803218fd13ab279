"""`index_tars`: sidecars and a manifest for tars that are there already; not a byte of a tar is changed.

    tars of ours          the sidecars come out as packing wrote them (own_tar.py)
    tars of other tools   they are adopted (adopt.py), and stay where they are

request -> columns -> a task for each tar -> doubled ids -> errors.jsonl -> manifest
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field

from uttershard.pipeline.dataset.digest import digest_of_digests
from uttershard.pipeline.dataset.files import StorageOptions
from uttershard.pipeline.dataset.manifest import MANIFEST_NAME, Manifest, encode_manifest
from uttershard.pipeline.dataset.sidecar import FOREIGN, FORMAT_VERSION
from uttershard.pipeline.errors import ConfigError, DataError

from .cluster import Cluster, ClusterSettings, cluster_settings, kept_interrupts, start_cluster
from .doubled_ids import refuse_doubled
from .error_limits import ErrorLimits
from .index_columns import find_columns
from .index_records import COLUMNS, DONE
from .index_request import Asked, IndexRequest, identity_of_tars, read_request
from .index_tar import IndexedTar, IndexTask, index_tar, read_sidecar
from .listing import ListingBuilder, Refusal
from .nemo_records import split_records
from .progress import Done, Progress, Silent
from .quarantine import Quarantine
from .records import JobRecords
from .source_store import source_storage, with_source
from .targets.base import JOB_FOLDER, TakenError, Target
from .targets.limits import WriteLimits
from .targets.opening import open_target

_RETRIES = 5
_WRITERS = 16


@dataclass(frozen=True)
class IndexSummary:
    """What `index_tars` has written."""

    dataset: str
    """Its address."""
    digest: str
    shards: int
    utterances: int
    hours: float
    bytes: int
    """Of all tars."""
    changed: tuple[str, ...]
    """Sidecars that were not there before, or not with these bytes."""
    refused: int = 0
    """Samples of another tool's tars that are no utterances; errors.jsonl lists them."""
    fetched_bytes: int = 0
    """Read of tars in a store, by this run."""


def index_tars(
    tars: Sequence[str],
    *,
    out: str | None = None,
    columns: Sequence[str] = (),
    naming: str | None = None,
    manifests: str | None = None,
    checksums: bool | None = None,
    unique_ids: bool = False,
    on_error: str = ErrorLimits.on_error,
    max_errors: int | float = ErrorLimits.max_errors,
    cluster: ClusterSettings | str | None = None,
    workers: int | None = None,
    retries: int = _RETRIES,
    progress: Progress | None = None,
    storage_options: StorageOptions | None = None,
) -> IndexSummary:
    """Write the sidecars and the manifest of shards that uttershard packed, or adopt those of another tool.

    A run that was stopped, however it was, is continued by calling this again: tars that were done are not read again.

    Args:
        tars: Tars in the order of the dataset, or one folder: its `dataset.json` says which, else all that are in it.
            Addresses may be patterns (`train-{0000..0999}.tar`) and in a store.
        out: Folder for sidecars and manifest, local or in a store; None for the folder of the tars.
        columns: Metadata fields that become columns; known already where there is a `dataset.json`.
        naming: Whose the tars are: `webdataset`, `wenet` or `nemo`; None for ours, else webdataset.
        manifests: NeMo's manifests, a pattern: a tar of NeMo holds no text.
        checksums: Whether all bytes of another tool's tars are read, so that damage is noticed when they are used;
            None for those on local disks.
        unique_ids: Put the tar's name before each id, for another tool's tars that all count from zero.
        on_error: `skip` lists what is no utterance in errors.jsonl and goes on; `raise` stops at the first.
        max_errors: More of it than this fails the job: a share (float below 1) or a count (int).
        cluster: Where tasks run (see `pack`).
        workers: Dask worker processes; None for one a CPU core.
        retries: How often a task is given to another worker.
        progress: Told how far it is.
        storage_options: Keyword arguments of the fsspec file system that tars, manifests and target are in. They are
            sent to the workers and written nowhere.

    Raises:
        ConfigError: No tars, or columns that contradict the manifest.
        DataError: A tar is damaged, is not the one its manifest lists, or too many samples are refused.
        StorageError: A store failed or refused; what is finished is kept.
    """
    limits = ErrorLimits(on_error, max_errors)
    listener, where = progress or Silent(), cluster_settings(cluster, workers)
    with source_storage(storage_options):
        asked = Asked(naming, manifests, checksums, unique_ids)
        request = read_request(tars, out, columns, asked, storage_options)
        target = open_target(request.target, storage_options, WriteLimits())
        if JobRecords(target).exists():
            raise ConfigError(f"{target}: an unfinished pack is in it; finish that first (run the same command again)")
        had_records = any(name.startswith((DONE, COLUMNS)) for name in target.names())
        job = _Job(request, target, limits, listener, storage_options, may_go_on=had_records)
        with (
            kept_interrupts(),
            target.hold(lambda: job.may_go_on, listener),
            start_cluster(where, retries, listener) as running,
        ):
            return job.run(running)


@dataclass
class _Job:
    """One call of `index_tars`."""

    request: IndexRequest
    target: Target
    limits: ErrorLimits
    listener: Progress
    storage_options: StorageOptions | None = field(repr=False)
    may_go_on: bool
    """Whether there may be records that another run goes on from: of this run, or of one before it."""

    def run(self, cluster: Cluster) -> IndexSummary:
        had_manifest = self.target.size(MANIFEST_NAME) is not None
        refused: list[Refusal] = []
        try:
            tasks = self._tasks(cluster, refused, had_manifest=had_manifest)
        except BaseException as error:
            # What was found of columns is kept, but for an answer to a name that is wrong.
            self.may_go_on |= bool(self.request.columns) and not isinstance(error, ConfigError)
            raise
        self.may_go_on = True
        indexed = self._index(tasks, cluster)
        if self.request.rules is not None:
            indexed = refuse_doubled(self.target, tasks, indexed)
        refused += [refusal for tar in indexed for refusal in tar.refused]
        manifest = self._manifest(indexed, tasks[0].columns)
        quarantine = Quarantine(self.target, self.limits, manifest.utterances + len(refused))
        quarantine.add(refused)
        if self.request.rules is not None and not manifest.utterances:
            raise DataError(f"no utterance in {len(tasks)} tars: all {len(refused)} samples were refused")
        quarantine.write()
        self._put_in_place(tasks, indexed)
        self._commit(manifest, had_manifest=had_manifest)
        return IndexSummary(
            dataset=str(self.target),
            digest=manifest.digest,
            shards=len(indexed),
            utterances=manifest.utterances,
            hours=manifest.seconds / 3600,
            bytes=manifest.tar_bytes,
            changed=tuple(tar.entry.sidecar for tar in indexed if tar.is_new),
            refused=len(refused),
            fetched_bytes=sum(tar.fetched_bytes for tar in indexed),
        )

    def _tasks(self, cluster: Cluster, refused: list[Refusal], *, had_manifest: bool) -> list[IndexTask]:
        """Return a task for each tar; what NeMo's manifests have that is no record is refused."""
        request = self.request
        about: dict[int, bytes] = {}
        if request.rules is not None and request.rules.manifests is not None:
            builder = ListingBuilder()
            about = split_records(builder, request.rules.manifests, request.tars)
            refused += builder.refused
        columns = find_columns(request, about, cluster, self.storage_options)
        names: dict[int, str] = {}
        if request.rules is not None and request.rules.manifests is not None:
            for number in range(len(request.tars)):
                names[number] = f"{JOB_FOLDER}/records-{number:06d}.jsonl"
                self.target.put(names[number], about.get(number, b""))
        return [
            IndexTask(
                target=self.target.address,
                number=number,
                tar=tar,
                listed=request.listed(number),
                sidecar=request.sidecars[number],
                written_as=f"{JOB_FOLDER}/{number:06d}.parquet" if had_manifest else request.sidecars[number],
                columns=columns,
                rules=request.rules,
                fingerprint=None if request.known is None else request.known.fingerprint,
                records=names.get(number),
                stop=self.limits.on_error == "raise",
                storage_options=self.storage_options,
            )
            for number, tar in enumerate(request.tars)
        ]

    def _index(self, tasks: Sequence[IndexTask], cluster: Cluster) -> list[IndexedTar]:
        done: dict[int, IndexedTar] = {}
        self.listener.begin("index", utterances=None, seconds=None)
        try:
            for number, tar in cluster.run(with_source(index_tar), tasks, lambda number: tasks[number].tar):
                self._check_digest(number, tar)
                for note in tar.notes:
                    self.listener.note(note)
                done[number] = tar
                entry = tar.entry
                self.listener.advance(Done(entry.utterances, entry.seconds, entry.tar_bytes, refused=len(tar.refused)))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"stopped: {len(done)} of {len(tasks)} tars are done. Run the same command again to go on"
            ) from None
        finally:
            self.listener.end()
        return [done[number] for number in range(len(tasks))]

    def _check_digest(self, number: int, tar: IndexedTar) -> None:
        expected = self.request.digests[number] if self.request.digests else None
        if expected not in (None, tar.entry.tar_digest):
            raise DataError(
                f"{self.request.tars[number]}: not the tar that {MANIFEST_NAME} lists ({tar.entry.tar_digest}, "
                f"expected {expected}): it is damaged or replaced. Copy it again; if the change is meant, move the "
                "manifest away and index again"
            )

    def _manifest(self, indexed: Sequence[IndexedTar], columns: Mapping[str, str]) -> Manifest:
        entries = tuple(tar.entry for tar in indexed)
        digests = [entry.tar_digest for entry in entries]
        rules, known = self.request.rules, self.request.known
        if rules is not None:
            identity = {
                "format_version": FORMAT_VERSION,
                "adopted": True,
                "naming": FOREIGN,
                "rules": asdict(rules),
                "digest": digest_of_digests(digests),
            }
        elif known is None:
            identity = identity_of_tars(digests)
        else:
            identity = known.identity or identity_of_tars(digests, known.fingerprint)
        return Manifest(entries, dict(columns), identity)

    def _put_in_place(self, tasks: Sequence[IndexTask], indexed: Sequence[IndexedTar]) -> None:
        """Replace the sidecars of the dataset that was here: up to now it could be read."""

        def put(task: IndexTask) -> None:
            self.target.put(task.sidecar, read_sidecar(self.target, task.written_as))

        with ThreadPoolExecutor(_WRITERS) as pool:
            moved = [t for t, tar in zip(tasks, indexed, strict=True) if tar.found_as(t) != t.sidecar]
            list(pool.map(put, moved))

    def _commit(self, manifest: Manifest, *, had_manifest: bool) -> None:
        try:
            self.target.put(MANIFEST_NAME, encode_manifest(manifest), only_new=not had_manifest)
        except TakenError as error:
            raise ConfigError(
                f"{self.target.where(MANIFEST_NAME)}: another job has finished a dataset here while this one was "
                "indexing. Look at it with `uttershard info`, or say with out= where this one goes"
            ) from error
        self.may_go_on = False
        self.target.remove_job()
