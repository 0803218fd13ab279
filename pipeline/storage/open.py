"""Which storage a dataset needs."""

from ..dataset.files import local_path
from ..dataset.shardset import ShardSet
from .base import Storage
from .cache import CachedTars
from .local import LocalTars
from .remote import RemoteTars
from .settings import StorageSettings


def open_storage(shards: ShardSet, settings: StorageSettings) -> Storage:
    """Return what reads the tars of a dataset: maps of local ones, requests for remote ones, a cache in between.

    Opens nothing yet: that happens in each process that reads, at the first read.
    """
    addresses = [shards.tar_address(index) for index in range(len(shards.manifest.shards))]
    if all(local_path(address) is not None for address in addresses):
        return LocalTars(shards)
    return RemoteTars(shards, settings) if settings.cache is None else CachedTars(shards, settings)
