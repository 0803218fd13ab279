"""Tar shards of other tools, packed anew; listing walks their headers and reads their small members, no audio.

The tars are named by a pattern, by the folder that they are in, or by a list of one address a line, such as the
`shards.list` that `uttershard export --to webdataset` writes.
To use such shards as they are, see `uttershard index`.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple

from uttershard.pipeline.dataset.files import local_path
from uttershard.pipeline.dataset.tar import TarError
from uttershard.pipeline.errors import ConfigError, DataError
from uttershard.pipeline.reading.members import TEXT_FIELDS, read_metadata, read_text

from ..archives import open_file
from ..corpus_path import corpus_path
from ..foreign import Group, group_members, read_texts
from ..listing import Listing, ListingBuilder, encode_metadata
from ..locators import range_uri
from ..parts import each
from ..patterns import expand, has_pattern
from ..tar_files import walk_tar_file
from .base import LocatorError, is_file_called, locate
from .lines import NotUtf8Error, decode, read_lines

LIST_NAME = "shards.list"
"""What a list of tars is called."""


@dataclass(frozen=True)
class WebdatasetSource:
    """Tar shards: one, several by a pattern, all of a folder, or those of a list.

    Example:
        >>> WebdatasetSource("shards/train-{0000..0001}.tar").list_utterances()  # doctest: +SKIP
    """

    address: str

    name: ClassVar[str] = "webdataset"

    @classmethod
    def matches(cls, address: str) -> bool:
        """Whether it is a pattern of tars, a `shards.list`, or a local folder that holds tars or such a list only."""
        if has_pattern(address):
            return address.endswith(".tar")
        path = local_path(address)
        if path is None or not Path(path).is_dir():
            return address.rpartition("/")[2] == LIST_NAME and is_file_called(address, LIST_NAME)
        return _holds_tars_only(Path(path))

    def list_utterances(self) -> Listing:
        """List the shards in order, each in the order of its members."""
        builder = ListingBuilder()
        tars = find_tars(self.address)
        for part in each(partial(list_tar, "webdataset"), tars):
            builder.extend(part)
        return builder.finish(_folder_of(tars[0]), self.address)


def find_tars(address: str) -> list[str]:
    """Return the tars that an address names, local ones as absolute paths."""
    path = local_path(address)
    if path is not None and Path(path).is_dir():
        found = [str(tar) for tar in sorted(Path(path).absolute().glob("*.tar"))]
        if not found and (Path(path) / LIST_NAME).is_file():
            return _listed_tars(f"{path}/{LIST_NAME}")
        if not found:
            raise ConfigError(f"{address}: no tars in this folder")
        return found
    if address.endswith(".list"):
        return _listed_tars(address)
    return [tar if local_path(tar) is None else str(Path(str(local_path(tar))).absolute()) for tar in expand([address])]


def _listed_tars(address: str) -> list[str]:
    """Return the tars of a list; names in it count from its folder."""
    path = corpus_path(address)
    try:
        tars = [locate(decode(line.data).strip(), path.parent) for line in read_lines(path)]
    except LocatorError as error:
        raise DataError(f"{path}: a tar that it lists is not there; {error}") from error
    except NotUtf8Error as error:
        raise DataError(f"{path}: {error}") from error
    if not tars:
        raise ConfigError(f"{path}: an empty list")
    return tars


def list_tar(naming: str, tar: str) -> Listing:
    """List one tar.

    Raises:
        DataError: It is missing, damaged or cut: what else it holds can't be told.
    """
    name = tar.rpartition("/")[2]
    listed: dict[int, _Listed] = {}
    refused: dict[int, tuple[str, str]] = {}
    builder = ListingBuilder()
    with open_file(tar) as file:
        try:
            members = walk_tar_file(file, file.seek(0, 2), note=lambda note: builder.notes.append(f"{tar}: {note}"))
            for group in group_members(members, naming):
                problem = group.problem
                try:
                    if problem is None:
                        listed[group.begin] = _utterance(file, tar, group, f"{name}:{group.key}")
                except (DataError, ValueError) as error:
                    problem = str(error)
                if problem is not None:
                    # A sample in parts is listed once, at its first.
                    first = group.begin if group.rest_of is None else group.rest_of
                    listed.pop(first, None)
                    refused[first] = group.key, problem
        except TarError as error:
            raise DataError(f"{tar}: {error}") from error
    for key, problem in refused.values():
        builder.refuse(key, f"{name}:{key}", problem)
    for utterance in listed.values():
        builder.add(**utterance._asdict())
    return builder.finish(_folder_of(tar), tar)


class _Listed(NamedTuple):
    """An utterance as a listing takes it."""

    key: str
    uri: str
    origin: str
    text: str | None
    metadata: str | None


def _utterance(file: BinaryIO, tar: str, group: Group, origin: str) -> _Listed:
    small = read_texts(file, group)
    metadata = read_metadata(small)
    text = read_text(small, metadata)
    # An id in the metadata is the true one: the members' name is what a file system allowed.
    key = metadata.get("id")
    if isinstance(key, str) and key:
        metadata = {name: value for name, value in metadata.items() if name != "id"}
    else:
        key = group.key
    fields = {name: value for name, value in metadata.items() if not (name in TEXT_FIELDS and value == text)}
    uri = range_uri(tar, group.audio.start, group.audio.size)
    return _Listed(key, uri, origin, text, encode_metadata(fields))


def _holds_tars_only(folder: Path) -> bool:
    endings = {path.suffix for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")}
    return (".tar" in endings or (folder / LIST_NAME).is_file()) and endings <= {
        ".tar",
        ".txt",
        ".list",
        ".idx",
        ".json",
        ".md",
    }


def _folder_of(tar: str) -> str:
    return tar.rpartition("/")[0]
