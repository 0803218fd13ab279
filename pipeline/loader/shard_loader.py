"""ShardLoader: the iterable that a trainer uses."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn, Unpack
from weakref import ReferenceType

import pyarrow.compute as pc
import torch

from ..dataset.files import StorageOptions
from ..dataset.shardset import ShardSet
from ..errors import ConfigError
from ..planning.batch_types import BatchType, RuleSettings
from ..planning.mixing import PartNumbers
from ..planning.plan import EpochPlan
from ..planning.settings import EqualSteps, Filters, Oversize, Sharding, make_batching, parse_int, parse_seed
from ..planning.speed import Speed
from ..reading.batch import Batch
from ..reading.buffers import BufferPool
from ..reading.decoder import BatchDecoder
from ..reading.process import Decoder, ProcessingDecoder
from ..reading.processing import MapUtterance, OnError, Processing
from ..reading.spans import BatchSpec
from ..reading.utterance import AudioForm
from ..remote.retry import Limits
from ..storage.open import open_storage
from ..storage.settings import DEFAULT_PREFETCH_BYTES, StorageSettings
from .ahead import announce, look_ahead
from .columns import parse_stats
from .device import hand_over, parse_device, pinned
from .epochs import Epochs, PlanSettings
from .metrics import Metrics, OnEpochEnd, check_callback, timed
from .mix import Mix, OpenMix, open_data
from .position import Position
from .processes import WorkerPool
from .settings import Workers, check_names, check_picklable
from .skips import never_empty
from .state import Place, decode_state, encode_state
from .stream import PlanDataset
from .threads import decode_in_threads
from .window_shards import WindowShards, advise_on_store, check_cache_size
from .world import find_world

_INT16_CODECS = frozenset({"wav", "flac"})
"""Mostly decoded to int16; a batch that is not (24 bit) does not fit its slot and takes the slow way."""

_SLOT_SLACK = 1.25
"""Slots made for the rest of an epoch may be far too small for the next; a little too small is no reason to start
processes again."""


class ShardLoader:
    """Streams the epochs of a dataset to one rank, as padded batches on its device.

    Args:
        dataset: Address of the dataset, a ShardSet, or a Mix of several.
        batch_bins: Frames a batch may hold, padding included (60,000 frames of 0.01 s are ten minutes).
        batch_size: Utterances of a batch, instead of batch_bins.
        max_batch_size: Most utterances of a batch, besides batch_bins.
        quadratic: Frames at which attention costs as much as the rest of the model; see Batching.
        longest_first: The heaviest batch is step 0, so that out-of-memory shows at once.
        oversize: An utterance longer than batch_bins is an "error", is "drop"ped and counted, or is "alone".
        equal_steps: How all ranks come to the same number of steps: "split", "drop", "pad", "off".
            With ESPnet's batch types, whose batches are not cut finer, there is no "split", and "pad" is the default.
        batch_type: "bucket", which never exceeds batch_bins; or one of ESPnet2's, which give its very batches:
            "unsorted", "sorted", "folded" (by batch_size), "length", "numel" (by batch_bins, which the utterance that
            closes a batch exceeds), "catbel", "catpow" (balance a column). `rules` are their settings.
        shuffle: False for validation: all data once, each rank always the same slice in the same batches and order.
        rotate: With shuffle=False and total_shards: another part of the data in each epoch, as ESPnet validates.
        stats: Address of a json of `uttershard stats`; rules and batch types may then name its columns ("tokens").
        windows: Parts of an epoch that batches do not mix, each reading a few tars only: for data larger than the
            cache. The tars of the next window come while this one trains.
        min_seconds: Shortest utterance kept.
        max_seconds: Longest utterance kept.
        where: Rules over sidecar columns, e.g. `'language == "de"'`; a string, a pyarrow expression, or several.
        total_shards: Logical shards that the epochs rotate over, a multiple of the world size; None for the world
            size: each epoch is the whole dataset then.
        rank: This process; with world_size, else found (torch.distributed, RANK and WORLD_SIZE, 0 of 1).
        world_size: Number of (data-parallel) processes.
        seed: Of everything that is shuffled.
        frame_shift: Seconds of a frame.
        speed: Factors that utterances are played at, e.g. (0.9, 1.0, 1.1), one drawn for each utterance and epoch.
            Batches are cut by the changed lengths; filters look at the recorded ones.
        sample_rate: Hz to resample to; None requires that all audio has the same.
        channels: 1 to mix down, more to copy mono; None requires that all audio has the same.
        map_utterance: Called with each Utterance where it is decoded, and returns it, changed or not. It may change
            how long an utterance is: the batch is padded to its longest then, and may exceed the budget, which `speed`
            never does.
        tokenizer: Makes `batch.tokens` of the transcripts: a function, the path of a SentencePiece model, or a Hugging
            Face tokenizer; see `parse_tokenizer`.
        token_pad: Stands after the last token of an utterance, 0 by default.
        on_error: "raise" stops at the first bad utterance; "skip" leaves it out of its batch, counts and lists it. The
            number of steps stays: a batch of which nothing is left repeats another one as `filler`. A missing or cut
            tar, a storage that fails, and errors of map_utterance that are no DataError always raise.
        max_skipped: Most utterances left out since the loader was made, 100 by default; one more is an error.
        on_epoch_end: Called with the metrics of each epoch that was iterated to its end, e.g. to log them.
        device: Where batches are handed over.
        storage_options: Keyword arguments of the dataset's fsspec file system.
        cache, cache_bytes, prefetch_bytes: Where whole tars of a remote dataset are kept, how much of them, and how
            much each process fetches ahead, see StorageSettings; never changes the batches.
        read_timeout, read_deadline: Limits on reading from a store, see Limits.
        rules: min_batch_size, drop_last, sort_in_batch, sort_batch, length_columns, length_dims, fold_lengths, padded,
            category, upsampling_factor, scaling_factor: of ESPnet's batch types, see EspnetRules. "bucket" has
            min_batch_size too, and keeps to batch_bins all the same, see Batching.
        num_workers, threads, prefetch_factor, persistent_workers, multiprocessing_context, timeout, pin_memory:
            Where decoding runs, see Workers; never changes the batches.

    Raises:
        ConfigError: A setting is unknown, out of range or in conflict with another, or the data needs one.
        ShardingError: Ranks and shards do not fit together.
        DataError: The dataset is missing, or a tar or sidecar is not what the manifest says.

    Example:
        >>> loader = ShardLoader("demo-shards/train", batch_bins=6000, seed=0)  # doctest: +SKIP
        >>> for epoch in range(2):  # doctest: +SKIP
        ...     loader.set_epoch(epoch)
        ...     for batch in loader:
        ...         print(batch.audio.shape, batch.keys[0])
    """

    def __init__(
        self,
        dataset: str | PathLike[str] | ShardSet | Mix,
        *,
        batch_bins: int | None = None,
        batch_size: int | None = None,
        max_batch_size: int | None = None,
        quadratic: int | None = None,
        longest_first: bool = False,
        oversize: Oversize = "error",
        equal_steps: EqualSteps | None = None,
        batch_type: BatchType = "bucket",
        shuffle: bool = True,
        rotate: bool = False,
        stats: str | PathLike[str] | None = None,
        windows: int | None = None,
        min_seconds: float | None = None,
        max_seconds: float | None = None,
        where: str | pc.Expression | list[str | pc.Expression] | None = None,
        total_shards: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        seed: int = 0,
        frame_shift: float = 0.01,
        speed: Sequence[float] | None = None,
        sample_rate: int | None = None,
        channels: int | None = None,
        map_utterance: MapUtterance | None = None,
        tokenizer: Any = None,
        token_pad: int | None = None,
        on_error: OnError = "raise",
        max_skipped: int | None = None,
        on_epoch_end: OnEpochEnd | None = None,
        device: str | torch.device = "cpu",
        storage_options: StorageOptions | None = None,
        num_workers: int = 0,
        threads: int | None = None,
        prefetch_factor: int = 2,
        persistent_workers: bool = False,
        multiprocessing_context: str | None = None,
        timeout: float = 300.0,
        pin_memory: bool | None = None,
        cache: str | PathLike[str] | None = None,
        cache_bytes: int | None = None,
        prefetch_bytes: int = DEFAULT_PREFETCH_BYTES,
        read_timeout: float = 30.0,
        read_deadline: float = 120.0,
        **rules: Unpack[RuleSettings],
    ) -> None:
        check_names(ShardLoader, rules, RuleSettings.__annotations__)
        rank, world_size = find_world(rank, world_size)
        self._settings = PlanSettings(
            sharding=Sharding(rank, world_size, total_shards),
            filters=Filters(min_seconds, max_seconds, where=() if where is None else where),
            batching=make_batching(
                batch_type,
                rules,
                batch_bins=batch_bins,
                batch_size=batch_size,
                max_batch_size=max_batch_size,
                quadratic=quadratic,
                longest_first=longest_first,
                oversize=oversize,
                equal_steps=equal_steps,
                windows=windows,
                shuffle=shuffle,
            ),
            seed=parse_seed(seed),
            frame_shift=frame_shift,
            speed=None if speed is None else Speed(speed),
            stats=parse_stats(stats),
            rotate=rotate,
        )
        self._workers = Workers(
            num_workers, threads, prefetch_factor, persistent_workers, multiprocessing_context, timeout, pin_memory
        )
        self._processing = Processing(map_utterance, tokenizer, token_pad, on_error, max_skipped, self._settings.seed)
        check_callback(on_epoch_end)
        check_picklable(self._workers, map_utterance=map_utterance, tokenizer=tokenizer)
        self._device = parse_device(device)
        limits = Limits(read_timeout, read_deadline)
        storage = StorageSettings(None if cache is None else Path(cache), cache_bytes, prefetch_bytes, limits)
        data = open_data(dataset, storage_options, limits)
        self._shards = data.shards if isinstance(data, OpenMix) else data
        self._epochs = Epochs(data, self._settings, AudioForm(sample_rate, channels))
        self._form = self._epochs.form
        tars = [self._shards.tar_address(index) for index in range(len(self._shards.manifest.shards))]
        self._storage = data.open_storage(storage) if isinstance(data, OpenMix) else open_storage(data, storage)
        self._storage.check_sizes()
        if storage.cache_bytes is not None and self._storage.lookahead_bytes:
            check_cache_size(self._epochs, self._shards, self._settings.sharding, storage.cache_bytes)
        if storage.cache is None and self._storage.lookahead_bytes and (windows or 1) == 1:
            advise_on_store(self._epochs, self._shards, self._settings.sharding.rank, prefetch_bytes)
        self._decoder: Decoder = BatchDecoder(self._storage, tars, self._form)
        if not self._processing.does_nothing:
            self._decoder = ProcessingDecoder(self._decoder, self._processing, self._form)
        self._pool = BufferPool()
        self._processes: WorkerPool | None = None
        # Weakly, so that it ends at once when the trainer drops it, not when garbage is collected.
        self._running: ReferenceType[Generator[Batch]] | None = None
        self._plan_dataset: PlanDataset | None = None
        self._metrics = Metrics(
            frame_shift,
            self._settings.batching.budget_frames,
            skip_limit=self._processing.skip_limit,
            on_epoch_end=on_epoch_end,
        )
        self._position = Position()

    def __len__(self) -> int:
        """Return the number of steps of the coming (or running) epoch, also of those made with other world sizes."""
        return self.plan.steps + self._epochs.steps_before(self._position.coming)

    def __getitem__(self, index: object) -> NoReturn:
        """Refuse to be the dataset of a DataLoader, or to be indexed.

        Raises:
            ConfigError: Always; the message names what a DataLoader takes.
        """
        raise ConfigError(
            f"a ShardLoader has no item {index!r}: iterate over it (`for batch in loader`). For a DataLoader of your "
            "own use DataLoader(loader.dataset, batch_size=None); for single utterances, an UtteranceDataset"
        )

    @property
    def plan(self) -> EpochPlan:
        """The plan of the coming (or running) epoch."""
        return self._epochs.plan(self._position.coming)

    @property
    def epoch(self) -> int:
        """The coming (or running) epoch."""
        return self._position.coming

    @property
    def filtered(self) -> dict[str, int]:
        """How many utterances are kept, and how many each filter removed."""
        return self._epochs.filtered

    @property
    def parts(self) -> list[PartNumbers]:
        """What each dataset of a Mix gives to the coming (or running) epoch; nothing for one dataset alone."""
        return self._epochs.parts(self._position.coming)

    @property
    def dataset(self) -> PlanDataset:
        """The batches for a DataLoader of your own: `DataLoader(loader.dataset, batch_size=None, num_workers=4)`.

        It starts where the loader stands; after `load_state_dict` take it anew.
        """
        if self._plan_dataset is None:
            self._plan_dataset = PlanDataset(
                self._epochs,
                self._decoder,
                self._position.epoch,
                self._position.step,
                skip_limit=self._processing.skip_limit,
            )
        return self._plan_dataset

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next. A position that `load_state_dict` brought is kept if it stands in that epoch."""
        epoch = parse_int("epoch", epoch, 0)
        self._position.set_epoch(epoch)
        if self._plan_dataset is not None:
            self._plan_dataset.set_epoch(epoch, self._position.step)

    def __iter__(self) -> Iterator[Batch]:
        """Start the coming epoch: at its first step, or where a loaded state stands. Ends an iteration that runs."""
        self._end_running()
        start = self._position.begin()
        plan = self.plan
        specs = self._announce(plan, self._epochs.specs(plan, range(start, plan.steps)))
        batches = self._metrics.watch(self._decode(plan, specs), self._epochs.sizes(plan), plan.epoch)
        return self._position.follow(batches, plan.steps)

    def state_dict(self) -> dict[str, Any]:
        """Return what the trainer has consumed, as JSON values under 1 KB, the same on every rank."""
        place = Place(self._position.epoch, self._position.step, self._epochs.course)
        return encode_state(self._epochs.describe(), place, finished=self._position.finished)

    def load_state_dict(self, state: Mapping[str, Any], *, force: bool = False) -> None:
        """Go on at the batch after the last one consumed when `state` was saved.

        With another world size the rest of the epoch is dealt anew: over old steps and new, each utterance of the
        epoch comes once. total_shards must be the same then, unless it was and is the world size.

        Args:
            state: From `state_dict`, of any rank.
            force: Start at the next epoch, with a warning, where the dataset or the settings are others.

        Raises:
            ConfigError: It was saved with another dataset or other settings; the message names them.
            ShardingError: It was saved with another total_shards.
        """
        place = decode_state(state, self._epochs.describe(), force=force)
        course, self._epochs.course = self._epochs.course, place.course
        try:
            steps = self._epochs.plan(place.epoch).steps
            if place.step > steps:
                raise ConfigError(
                    f"the loader state is damaged: step is {place.step}, epoch {place.epoch} has {steps} steps"
                )
        except BaseException:
            self._epochs.course = course  # a refused state changes nothing
            raise
        self._end_running()
        self._position.load(place.epoch, place.step, finished=place.step == steps)
        self._plan_dataset = None

    def metrics(self) -> dict[str, Any]:
        """Return counts since the loader was made, and under "epoch" of the epoch begun last.

        steps, utterances, hours, padding, fill, skipped, wait_seconds (the trainer waited), decode_seconds (over all
        threads or processes), first_batch_seconds, elapsed_seconds; skipped_utterances lists what was left out last.
        """
        return self._metrics.summary()

    def _end_running(self) -> None:
        """Stop decoding for an iteration that is still there: the next one uses its processes and their memory."""
        running = None if self._running is None else self._running()
        if running is not None:
            running.close()

    def _announce(self, plan: EpochPlan, specs: Iterator[BatchSpec]) -> Generator[BatchSpec]:
        """Say what will be read: to a remote storage by way of its decoder, to the kernel from here."""
        if self._storage.lookahead_bytes:
            lanes, shards = max(1, self._workers.num_workers), WindowShards(self._epochs, plan)
            for spec in look_ahead(
                specs, lanes=lanes, lookahead_bytes=self._storage.lookahead_bytes, shards_from=shards.at
            ):
                if self._workers.num_workers:
                    yield spec
                else:
                    announce(self._storage, spec.ahead)
                    yield replace(spec, ahead=None)
            return
        for spec in specs:
            self._storage.will_need(spec.spans)
            yield spec

    def _decode(self, plan: EpochPlan, specs: Generator[BatchSpec]) -> Iterator[Batch]:
        pin = self._workers.pin(self._device)
        if self._workers.num_workers:
            padded = self._device.type == "cpu"
            slot_bytes = self._slot_bytes(plan, padded=padded)
            if self._processes is not None and not (
                self._processes.reusable and slot_bytes <= _SLOT_SLACK * self._processes.slot_bytes
            ):
                self._processes = None  # frees its shared memory before more is asked for
            if self._processes is None:
                self._processes = WorkerPool(self._decoder, self._workers, slot_bytes, padded=padded)
            batches = self._processes.decode(specs)
        else:
            threads = self._workers.decode_threads
            batches = decode_in_threads(
                specs,
                self._decode_here(pin),
                threads=threads,
                ahead=threads * self._workers.prefetch_factor,
                timeout=self._workers.timeout,
            )
        self._running = ReferenceType(batches)
        filled: Iterator[Batch] = batches
        if self._processing.skips:
            decode_step = partial(self._decode_step, plan, self._decode_here(pin))
            filled = (never_empty(batch, plan.steps, decode_step) for batch in batches)
        return hand_over(filled, self._device, pinned if pin else self._pool.empty, pin=pin)

    def _decode_here(self, pin: bool) -> Callable[[BatchSpec], Batch]:
        allocate = pinned if pin else self._pool.empty
        if self._device.type == "cpu":
            return lambda spec: timed(self._storage, self._decoder.padded, spec, allocate)
        return lambda spec: timed(self._storage, self._decoder.packed, spec, allocate)

    def _decode_step(self, plan: EpochPlan, decode: Callable[[BatchSpec], Batch], step: int) -> Batch:
        return decode(next(self._epochs.specs(plan, range(step, step + 1))))

    def _slot_bytes(self, plan: EpochPlan, *, padded: bool) -> int:
        as_stored = self._form == AudioForm() and self._processing.map_utterance is None
        all_int16 = as_stored and _INT16_CODECS.issuperset(self._epochs.index.codec_names)
        sample_bytes = 2 if all_int16 and not padded else 4
        return self._epochs.largest_batch_samples(plan, padded=padded) * sample_bytes
