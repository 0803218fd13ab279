"""Mix: several datasets as one, with weights, filters and batches of one dataset or of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from ..dataset.files import StorageOptions, local_path
from ..dataset.manifest import Manifest, ShardEntry
from ..dataset.shardset import ShardSet
from ..errors import ConfigError
from ..planning.corpus import Corpus
from ..planning.mixing import repeats_by_temperature, repeats_by_weight
from ..planning.settings import Filters
from ..remote.retry import Limits
from ..storage.base import Storage
from ..storage.open import open_storage
from ..storage.places import StorageOfPlaces
from ..storage.settings import StorageSettings


@dataclass(frozen=True)
class Part:
    """One dataset of a Mix.

    Args:
        dataset: Address of the dataset, or a ShardSet.
        name: What batches, messages and numbers call it; the last part of its address by default.
        weight: Its share of the hours of an epoch, relative to the others'; either all parts have one or none.
        repeat: How often each utterance comes in an epoch, instead of a weight; 1 by default. May be a fraction: with
            2.25, a quarter of them (by audio, others in every epoch) comes a third time.
        min_seconds: Shortest utterance kept, instead of the loader's.
        max_seconds: Longest utterance kept, instead of the loader's.
        where: Rules over columns, besides the loader's.
        stats: Address of a json of `uttershard stats` of this dataset; rules and batch types may then name its columns.

    Raises:
        ConfigError: A value is out of range.
    """

    dataset: str | PathLike[str] | ShardSet
    name: str | None = None
    weight: float | Fraction | None = None
    repeat: float | Fraction | None = None
    min_seconds: float | None = None
    max_seconds: float | None = None
    where: str | pc.Expression | Sequence[str | pc.Expression] = ()
    stats: str | PathLike[str] | None = None
    filters: Filters = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.dataset, str | PathLike | ShardSet):
            raise ConfigError(f"Part({self.dataset!r}): give the address of a dataset, or a ShardSet")
        address = self.dataset.address if isinstance(self.dataset, ShardSet) else fspath(self.dataset)
        name = self.name or address.rstrip("/").removesuffix("/dataset.json").rpartition("/")[2]
        if not isinstance(name, str) or not name:
            raise ConfigError(f"the dataset {address!r} has no name: give Part(..., name=...)")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "filters", Filters(self.min_seconds, self.max_seconds, where=self.where))
        if self.weight is not None and self.repeat is not None:
            raise ConfigError(
                f"dataset {name!r} has weight={self.weight} and repeat={self.repeat}: give one of them; a weight is a "
                "share of the hours, and repeat how often an utterance comes"
            )
        for setting in ("weight", "repeat"):
            value = getattr(self, setting)
            if value is not None:
                object.__setattr__(self, setting, _parse_factor(name, setting, value))


@dataclass(frozen=True)
class Mix:
    """Several datasets for one ShardLoader.

    An epoch reads one logical shard of each dataset on every rank. An utterance that is repeated in an epoch is
    delivered that many times; this is the one exception from "exactly once".

    Args:
        parts: The datasets.
        temperature: Makes the shares of the hours more equal: a dataset of h hours has one like `h ** (1 /
            temperature)`. 1 leaves them as they are; 5 is common for many languages. Instead of weights and repeats.
        pure: Whether a batch is of one dataset only; the batches of all are shuffled either way.

    Raises:
        ConfigError: Two settings conflict, or two datasets have one name.

    Example:
        >>> mix = Mix([Part("shards/clean", weight=3), Part("shards/noisy", weight=1, max_seconds=20)])
        >>> loader = ShardLoader(mix, batch_bins=60_000)  # doctest: +SKIP
    """

    parts: Sequence[Part | str]
    temperature: float | None = None
    pure: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.parts, str):
            raise ConfigError(f"Mix({self.parts!r}): give a list of datasets, Mix([{self.parts!r}, …])")
        parts = tuple(part if isinstance(part, Part) else Part(part) for part in self.parts)
        object.__setattr__(self, "parts", parts)
        if not parts:
            raise ConfigError("a Mix needs at least one dataset")
        names = [part.name for part in parts]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ConfigError(f"two datasets of the mix are called {twice[0]!r}: give Part(..., name=...)")
        weighted = [part.name for part in parts if part.weight is not None]
        if weighted and len(weighted) < len(parts):
            without = next(part.name for part in parts if part.weight is None)
            raise ConfigError(
                f"dataset {weighted[0]!r} has a weight and {without!r} has none: weights are shares of the hours of "
                "an epoch, so give one to each"
            )
        if self.temperature is None:
            return
        temperature = self.temperature
        if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not 1 <= temperature <= 1000:
            raise ConfigError(f"temperature={temperature!r} is out of range: give a number from 1 to 1000")
        given = [part.name for part in parts if part.weight is not None or part.repeat is not None]
        if given:
            raise ConfigError(
                f"temperature={temperature} and a weight or repeat of dataset {given[0]!r}: give one of them"
            )

    def repeats(self, corpora: Sequence[Corpus]) -> list[Fraction]:
        """Return how often an utterance of each part comes in an epoch."""
        if self.temperature is not None:
            return repeats_by_temperature(corpora, self.temperature)
        weights = [part.weight for part in self._parts if part.weight is not None]
        if weights:
            return repeats_by_weight(corpora, [Fraction(weight) for weight in weights])
        return [Fraction(1) if part.repeat is None else Fraction(part.repeat) for part in self._parts]

    @property
    def _parts(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if isinstance(part, Part))

    def describe(self) -> dict[str, Any]:
        """Return all that repeats depend on, besides the datasets, as JSON values."""
        factors = [[part.name, *map(_text, (part.weight, part.repeat))] for part in self._parts]
        return {"factors": factors, "temperature": self.temperature, "pure": self.pure}


@dataclass(frozen=True)
class OpenPart:
    """A dataset of a mix that is open."""

    name: str
    shards: ShardSet
    filters: Filters
    stats: str | None


@dataclass(frozen=True)
class OpenMix:
    """A Mix whose datasets are open.

    Attributes:
        mix: Its settings.
        parts: The datasets.
        shards: All shards, one dataset after the other, as those of one dataset; its storage_options are nobody's.
    """

    mix: Mix
    parts: tuple[OpenPart, ...]
    shards: ShardSet

    def open_storage(self, settings: StorageSettings) -> Storage:
        """Return what reads the tars of all datasets: together those that are in one kind of place."""
        places: list[tuple[bool, StorageOptions, list[int]]] = []
        number = 0
        for part in self.parts:
            for shard in range(len(part.shards.manifest.shards)):
                remote = local_path(part.shards.tar_address(shard)) is None
                options = (part.shards.storage_options or {}) if remote else {}
                known = next((shards for *place, shards in places if place == [remote, options]), None)
                if known is None:
                    places.append((remote, options, known := []))
                known.append(number)
                number += 1
        stores = max(1, sum(remote for remote, _, _ in places))
        shared = replace(settings, prefetch_bytes=max(1, settings.prefetch_bytes // stores))
        entries = self.shards.manifest.shards
        return StorageOfPlaces(
            [
                (own, open_storage(_joined([entries[shard] for shard in own], self.shards, options), shared))
                for _, options, own in places
            ]
        )


def open_data(
    dataset: str | PathLike[str] | ShardSet | Mix, storage_options: StorageOptions | None, limits: Limits
) -> ShardSet | OpenMix:
    """Open what a loader is given.

    Raises:
        ConfigError: It is no dataset, or a mix that can't be read together.
        DataError: It is not there.
    """
    if isinstance(dataset, Mix):
        return open_mix(dataset, storage_options, limits)
    if isinstance(dataset, ShardSet):
        return dataset
    if not isinstance(dataset, str | PathLike):
        raise ConfigError(
            f"{dataset!r} is a {type(dataset).__name__}: give the address of a dataset, a ShardSet, or a Mix of several"
        )
    return ShardSet.open(fspath(dataset), storage_options, limits)


def open_mix(mix: Mix, storage_options: StorageOptions | None, limits: Limits) -> OpenMix:
    """Open the datasets of a mix.

    Args:
        mix: The datasets.
        storage_options: Of those that are given by address.
        limits: How long a read may take.

    Raises:
        ConfigError: They can't be read together.
        DataError: One of them is not there.
    """
    parts = []
    for part in mix.parts:
        if not isinstance(part, Part):
            continue
        shards = part.dataset
        if not isinstance(shards, ShardSet):
            shards = ShardSet.open(shards, storage_options, limits)
        stats = None if part.stats is None else fspath(part.stats)
        parts.append(OpenPart(str(part.name), shards, part.filters, stats))
    sets = [part.shards for part in parts]
    entries = [
        replace(entry, tar=_absolute(shards.tar_address(index)), sidecar=_absolute(shards.sidecar_address(index)))
        for shards in sets
        for index, entry in enumerate(shards.manifest.shards)
    ]
    columns = {name: kind for shards in reversed(sets) for name, kind in shards.manifest.columns.items()}
    manifest = Manifest((), columns, {}, sets[0].manifest.created_by)
    return OpenMix(mix, tuple(parts), _joined(entries, ShardSet("mix", manifest, None, limits), None))


def _joined(entries: Sequence[ShardEntry], like: ShardSet, options: StorageOptions | None) -> ShardSet:
    """Return shards of several datasets, which have absolute addresses, as those of one."""
    return replace(like, manifest=replace(like.manifest, shards=tuple(entries)), storage_options=options)


def _absolute(address: str) -> str:
    path = local_path(address)
    return address if path is None else str(Path(path).absolute())


def _parse_factor(name: str, setting: str, value: Any) -> Fraction:
    try:
        # The decimal that a person wrote, not the binary float next to it.
        factor = Fraction(str(value))
    except ValueError:
        factor = Fraction(0)
    if isinstance(value, bool | str) or factor <= 0:
        raise ConfigError(f"dataset {name!r}: {setting}={value!r} is no {setting}: give a number above 0")
    return factor


def _text(factor: float | Fraction | None) -> str | None:
    return None if factor is None else str(factor)
