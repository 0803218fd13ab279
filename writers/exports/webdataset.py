"""For WebDataset the shards are what it reads already: a list of them, and with --extract copies of the tars."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from uttershard.pipeline.dataset.digest import FileDigest, is_of_bytes
from uttershard.pipeline.dataset.files import local_path
from uttershard.pipeline.dataset.manifest import shard_names
from uttershard.pipeline.dataset.shardset import ShardSet
from uttershard.pipeline.errors import DataError, StorageError
from uttershard.pipeline.remote.store import Store
from uttershard.pipeline.storage.coalesce import pieces

from ..commit import storage_errors
from .files import new_file

LIST_NAME = "shards.list"
_COPY_BYTES = 8 << 20


def write_webdataset(dataset: ShardSet, tars: Sequence[str], out: Path, *, extract: bool) -> list[Path]:
    """Write `shards.list`, one address a line; with `extract` of copies made in `out`.

    Raises:
        DataError: A tar that is copied is not the one that the manifest lists.
    """
    listed, written = list(tars), []
    if extract:
        for index in range(len(tars)):
            copy = out / shard_names(index)[0]  # parts of a merged dataset have tars of one name
            _copy(dataset, index, copy)
            listed[index] = copy.name
            written.append(copy)
    path = out / LIST_NAME
    with new_file(path) as file:
        file.writelines(f"{tar}\n" for tar in listed)
    return [path, *written]


def _copy(dataset: ShardSet, shard: int, copy: Path) -> None:
    entry, running = dataset.manifest.shards[shard], FileDigest()
    try:
        with storage_errors(copy), copy.open("wb") as target:
            for piece in _read(dataset, shard):
                running.update(piece)
                target.write(piece)
    except BaseException:
        copy.unlink(missing_ok=True)  # else half a copy is in the way of the next try
        raise
    if is_of_bytes(entry.tar_digest) and running.text() != entry.tar_digest:
        copy.unlink()
        raise DataError(
            f"{dataset.tar_address(shard)}: its digest is {running.text()}, the manifest says {entry.tar_digest}: it "
            "is damaged or was replaced; `uttershard verify --full` tells where"
        )


def _read(dataset: ShardSet, shard: int) -> Iterator[bytes | memoryview]:
    address, size = dataset.tar_address(shard), dataset.manifest.shards[shard].tar_bytes
    dataset.check_tar_size(shard)
    path = local_path(address)
    if path is None:
        store = Store(dataset.storage_options, dataset.limits)
        for start, stop in pieces(size):
            yield from store.read_chunks(address, start, stop, size)
        return
    try:
        with Path(path).open("rb") as source:
            while piece := source.read(_COPY_BYTES):
                yield piece
    except OSError as error:
        raise StorageError(f"{path}: could not be read ({error.strerror or error})") from error
