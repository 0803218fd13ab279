"""Which storage a dataset needs."""

from collections.abc import Sequence
from dataclasses import replace

from ..dataset.files import local_path
from ..dataset.shardset import ShardSet
from .base import Storage
from .cache import CachedTars
from .local import LocalTars
from .places import StorageOfPlaces
from .remote import RemoteTars
from .settings import StorageSettings


def open_storage(shards: ShardSet, settings: StorageSettings) -> Storage:
    """Return what reads the tars of a dataset: maps of local ones, requests for remote ones, a cache in between.

    Opens nothing yet: that happens in each process that reads, at the first read.
    """
    near, far = list[int](), list[int]()
    for number in range(len(shards.manifest.shards)):
        (far if local_path(shards.tar_address(number)) is None else near).append(number)
    if not far:
        return LocalTars(shards)
    if near:  # merged of datasets here and there
        return StorageOfPlaces([(own, open_storage(_part(shards, own), settings)) for own in (near, far)])
    return RemoteTars(shards, settings) if settings.cache is None else CachedTars(shards, settings)


def _part(shards: ShardSet, numbers: Sequence[int]) -> ShardSet:
    entries = tuple(shards.manifest.shards[number] for number in numbers)
    return replace(shards, manifest=replace(shards.manifest, shards=entries))
