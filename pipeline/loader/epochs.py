"""The plan of each epoch for one dataset and one set of settings, and the specs of its batches."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..dataset.shardset import ShardSet
from ..errors import ConfigError, ShardingError
from ..planning.corpus import Corpus
from ..planning.elastic import Course, Stage
from ..planning.frames import count_frames
from ..planning.mixing import MixedCorpus, PartNumbers
from ..planning.plan import EpochPlan, count_oversize, lay_out_rest, plan_epoch, windows_of_rank
from ..planning.settings import Sharding
from ..planning.speed import Speed
from ..reading.spans import BatchSpec, SpanIndex
from ..reading.utterance import AudioForm
from .columns import PlanSettings as PlanSettings
from .columns import load_columns
from .metrics import StepSizes
from .mix import OpenMix
from .shared import SharedColumns


class Epochs:
    """Plans epochs of a dataset; each plan is a function of the dataset, the settings and the epoch alone.

    Args:
        data: The dataset, or several.
        settings: What else the plan depends on.
        form: What audio is brought to.

    Raises:
        ConfigError: The audio has different sampling rates or channels and `form` does not say what to do.
    """

    def __init__(self, data: ShardSet | OpenMix, settings: PlanSettings, form: AudioForm) -> None:
        self._settings = settings
        columns = load_columns(data, settings)
        self._identity, self._corpus = columns.identity, columns.corpus
        self.index = SpanIndex.from_table(columns.table, columns.rows_per_tar, foreign=columns.foreign)
        _check_form(self.index, self._corpus, form)
        self.form = form if settings.speed is None else self._form_when_played(form, settings.speed)
        self.course = Course()
        self._planned: tuple[int, Course, EpochPlan] | None = None
        self._shared: tuple[SharedColumns[SpanIndex], SharedColumns[Corpus]] | None = None

    def shared(self) -> "Epochs":
        """Return a copy whose columns are in shared memory, to be sent to worker processes."""
        copied = Epochs.__new__(Epochs)
        copied.__dict__.update(self.__dict__)
        copied._shared = SharedColumns(self.index), SharedColumns(replace(self._corpus, keys=None))
        copied._planned = None
        return copied

    def __getstate__(self) -> dict[str, Any]:
        if self._shared is None:
            raise TypeError("only a shared() copy of Epochs goes to another process: the index is not copied")
        return {
            "_identity": self._identity,
            "_settings": self._settings,
            "form": self.form,
            "course": self.course,
            "_shared": self._shared,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _planned=None)
        index, corpus = state["_shared"]
        self.index, self._corpus = index.view(), corpus.view()

    @property
    def filtered(self) -> dict[str, int]:
        """How many utterances are kept, and how many each rule removed."""
        return dict(self._corpus.filtered)

    def plan(self, epoch: int) -> EpochPlan:
        """Return the plan of an epoch, or of what `course` leaves of it; the last one is kept."""
        if self._planned is None or self._planned[:2] != (epoch, self.course):
            self._planned = (epoch, self.course, self._make_plan(epoch))
        return self._planned[2]

    def steps_before(self, epoch: int) -> int:
        """Return how many steps of an epoch were made with other world sizes."""
        return sum(stage.steps for stage in self.course.stages) if epoch == self.course.epoch else 0

    def _make_plan(self, epoch: int) -> EpochPlan:
        sharding, batching, seed = self._settings.sharding, self._settings.batching, self._settings.seed
        course, corpus = self.course.at(epoch, sharding.total_shards), self._corpus_at(epoch)
        if not course.stages:
            plan = plan_epoch(corpus, sharding, batching, epoch=epoch, seed=seed, rotation=course.rotation)
            _refuse_empty(plan)
            return plan
        layout = lay_out_rest(
            self._cut_into(course.stages[0].total_shards, corpus),
            course.stages,
            sharding.world_size,
            sharding.total_shards,
            batching,
            epoch=epoch,
            seed=seed,
            rotation=course.rotation,
        )
        return layout.plan(sharding.rank)

    def _cut_into(self, total_shards: int, corpus: Corpus) -> Corpus:
        if total_shards == corpus.total_shards:
            return corpus
        return corpus.cut_into(total_shards, self.index.num_samples, self.index.sample_rate)

    def parts(self, epoch: int) -> list[PartNumbers]:
        """Return what each dataset of a mix gives to a whole epoch; nothing for one dataset alone."""
        corpus = self._corpus_at(epoch)
        if not isinstance(corpus, MixedCorpus):
            return []
        course = self.course.at(epoch, corpus.total_shards)
        sharding = self._settings.sharding
        world = course.stages[0] if course.stages else Stage(sharding.world_size, sharding.total_shards, 0)
        corpus_then = corpus.cut_into(world.total_shards, self.index.num_samples, self.index.sample_rate)
        shards = [
            course.rotation.index(epoch, rank, world.world_size, world.total_shards) for rank in range(world.world_size)
        ]
        hashed = self._settings.batching.hashed_epoch(epoch)
        return corpus_then.count_parts(shards, seed=self._settings.seed, epoch=hashed)

    def _form_when_played(self, form: AudioForm, speed: Speed) -> AudioForm:
        """Return the form that undoes the rates of `Speed.played_rates`; refuse what gets too long for the budget."""
        everything = np.arange(self._corpus.frames.size)
        rows = self._corpus.real_rows(everything)
        rates = speed.slowest.played_rates(self.index.sample_rate[rows], everything, seed=0, epoch=0)
        longest = count_frames(self.index.num_samples[rows], rates, self._settings.frame_shift)
        try:
            count_oversize(replace(self._corpus, frames=longest), self._settings.batching)
        except ConfigError as error:
            raise ConfigError(f"at the slowest of speed={', '.join(speed.describe())}: {error}") from error
        if form.sample_rate:
            return form
        kept = self._corpus.once(self._corpus.kept)
        return replace(form, sample_rate=int(self.index.sample_rate[kept][0]))  # there is one, or the form names it

    def _corpus_at(self, epoch: int) -> Corpus:
        """Return the corpus with the lengths that utterances have in an epoch."""
        if self._settings.speed is None:
            return self._corpus
        return replace(self._corpus, frames=self._frames(np.arange(self._corpus.frames.size), epoch))

    def _frames(self, rows: NDArray[np.int64], epoch: int) -> NDArray[np.int32]:
        if self._settings.speed is None:
            return self._corpus.frames[rows]
        samples = self.index.num_samples[self._corpus.real_rows(rows)]
        return count_frames(samples, self._rates(rows, epoch), self._settings.frame_shift)

    def _rates(self, rows: NDArray[np.int64], epoch: int) -> NDArray[np.int32]:
        """Return the rates at which utterances are played in an epoch: their own, without speed perturbation."""
        rates, speed = self.index.sample_rate[self._corpus.real_rows(rows)], self._settings.speed
        return rates if speed is None else speed.played_rates(rates, rows, seed=self._settings.seed, epoch=epoch)

    def tars_of_windows(self, epoch: int, rank: int) -> list[NDArray[np.int64]]:
        """Return the tars that a rank reads in each window of a whole epoch."""
        sharding = Sharding(rank, self._settings.sharding.world_size, self._settings.sharding.total_shards)
        rows = windows_of_rank(
            self._corpus_at(epoch),
            sharding,
            self._settings.batching,
            epoch=epoch,
            seed=self._settings.seed,
            rotation=self.course.at(epoch, sharding.total_shards).rotation,
        )
        return [self.tars_of(of_window) for of_window in rows]

    def tars_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tars that utterances are in, ascending."""
        real = self._corpus.real_rows(rows)
        return np.unique(np.searchsorted(self.index.first_row, real, side="right") - 1)

    def specs(self, plan: EpochPlan, steps: range) -> Iterator[BatchSpec]:
        """Yield what a decoder needs for each of these steps."""
        for step in steps:
            rows = plan.batch(step)
            spec = self.index.spec(
                self._corpus.real_rows(rows), epoch=plan.epoch, step=step, filler=bool(plan.filler[step])
            )
            if isinstance(self._corpus, MixedCorpus):
                names = [self._corpus.names[part] for part in self._corpus.parts_of(rows).tolist()]
                spec = replace(spec, datasets=tuple(names))
            yield spec if self._settings.speed is None else replace(spec, sample_rate=self._rates(rows, plan.epoch))

    def sizes(self, plan: EpochPlan) -> StepSizes:
        """Return the frames of each batch of this rank."""
        frames = np.add.reduceat(self._frames(plan.rows, plan.epoch), plan.splits[:-1], dtype=np.int64)
        return StepSizes(frames, plan.longest.astype(np.int64) * np.diff(plan.splits))

    def largest_batch_samples(self, plan: EpochPlan, *, padded: bool) -> int:
        """Return the samples (of all channels) of the largest batch of this rank, maybe with those of its padding."""
        rows, form = self._corpus.real_rows(plan.rows), self.form
        samples = self.index.num_samples[rows].astype(np.int64)
        if form.sample_rate is not None:
            samples = -(-samples * form.sample_rate // self._rates(plan.rows, plan.epoch))
        samples *= form.channels or self.index.channels[rows]
        begins = plan.splits[:-1]
        if padded:
            return int((np.maximum.reduceat(samples, begins) * np.diff(plan.splits)).max(initial=0))
        return int(np.add.reduceat(samples, begins).max(initial=0))

    def describe(self) -> dict[str, Any]:
        """Return all that a plan depends on as JSON values, equal if and only if the plans are."""
        settings = self._settings
        filters = {name: value for name, value in settings.filters.describe().items() if value}
        return {
            **self._identity,
            "seed": settings.seed,
            "world_size": settings.sharding.world_size,
            "total_shards": settings.sharding.total_shards,
            "frame_shift": settings.frame_shift,
            "filters": filters,
            "speed": None if settings.speed is None else settings.speed.describe(),
            **settings.batching.describe(),
        }


def _refuse_empty(plan: EpochPlan) -> None:
    """Refuse an epoch of nothing: a trainer would run through it without a word."""
    if any(numbers.utterances for numbers in plan.ranks):
        return
    shards = ", ".join(str(numbers.logical_shard) for numbers in plan.ranks)
    raise ShardingError(
        f"epoch {plan.epoch} has no utterance: {plan.filtered['kept']} of the dataset are kept, and none of them is in "
        f"the logical shards that this epoch reads ({shards} of total_shards={plan.sharding.total_shards}). Use a "
        "smaller total_shards, or looser filters"
    )


def _values(corpus: Corpus, column: NDArray[Any]) -> str:
    """Return what values a column has, of a mix with the datasets that have them."""
    kept = np.flatnonzero(corpus.kept)
    values = column[corpus.real_rows(kept)]
    if not isinstance(corpus, MixedCorpus):
        return ", ".join(map(str, np.unique(values).tolist()))
    parts = corpus.parts_of(kept)
    found = [np.unique(values[parts == part]).tolist() for part in range(len(corpus.names))]
    named = [f"{', '.join(map(str, own))} in {name!r}" for name, own in zip(corpus.names, found, strict=True)]
    return "; ".join(named)


def _check_form(index: SpanIndex, corpus: Corpus, form: AudioForm) -> None:
    kept = corpus.once(corpus.kept)
    for name, wanted, column in (
        ("sample_rate", form.sample_rate, index.sample_rate),
        ("channels", form.channels, index.channels),
    ):
        values = np.unique(column[kept]).tolist()
        if wanted is None and len(values) > 1:
            raise ConfigError(
                f"the audio has {name} {_values(corpus, column)}: say which one batches should have, e.g. "
                f"{name}={values[0] if name == 'sample_rate' else 1}, or filter with where='{name} == {values[0]}'"
            )
        if (
            name == "channels"
            and wanted is not None
            and any(value not in (1, wanted) for value in values)
            and wanted != 1
        ):
            raise ConfigError(
                f"channels={wanted}: the audio has {', '.join(map(str, values))} channels; only mono can be copied to "
                "more channels, and only channels=1 mixes down"
            )
