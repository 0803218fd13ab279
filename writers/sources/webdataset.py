"""Tar shards of other tools, packed anew; listing walks their headers and reads their small members, no audio.

To use such shards as they are, see `uttershard index`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from uttershard.pipeline.dataset.files import local_path
from uttershard.pipeline.dataset.tar import TarError
from uttershard.pipeline.errors import ConfigError, DataError
from uttershard.pipeline.reading.members import TEXT_ENDINGS, TEXT_FIELDS, read_metadata, read_text

from ..archives import open_file
from ..foreign import Group, group_members, read_small
from ..listing import Listing, ListingBuilder, encode_metadata
from ..locators import range_uri
from ..patterns import expand, has_pattern
from ..tar_files import walk_tar_file


@dataclass(frozen=True)
class WebdatasetSource:
    """Tar shards: one, several by a pattern, or all of a folder.

    Example:
        >>> WebdatasetSource("shards/train-{0000..0001}.tar").list_utterances()  # doctest: +SKIP
    """

    address: str

    name: ClassVar[str] = "webdataset"

    @classmethod
    def matches(cls, address: str) -> bool:
        """Whether it is a pattern of tars, or a local folder that holds tars and no other files but lists."""
        if has_pattern(address):
            return address.endswith(".tar")
        path = local_path(address)
        return path is not None and Path(path).is_dir() and _holds_tars_only(Path(path))

    def list_utterances(self) -> Listing:
        """List the shards in order, each in the order of its members."""
        builder = ListingBuilder()
        tars = find_tars(self.address)
        for tar in tars:
            list_tar(builder, tar, "webdataset")
        return builder.finish(_folder_of(tars[0]), self.address)


def find_tars(address: str) -> list[str]:
    """Return the tars that an address names, local ones as absolute paths."""
    path = local_path(address)
    if path is not None and Path(path).is_dir():
        found = [str(tar) for tar in sorted(Path(path).absolute().glob("*.tar"))]
        if not found:
            raise ConfigError(f"{address}: no tars in this folder")
        return found
    return [tar if local_path(tar) is None else str(Path(str(local_path(tar))).absolute()) for tar in expand([address])]


def list_tar(builder: ListingBuilder, tar: str, naming: str) -> None:
    """List one tar.

    Raises:
        DataError: It is missing, damaged or cut: what else it holds can't be told.
    """
    name = tar.rpartition("/")[2]
    with open_file(tar) as file:
        try:
            for group in group_members(walk_tar_file(file, file.seek(0, 2)), naming):
                origin = f"{name}:{group.key}"
                if group.problem is not None:
                    builder.refuse(group.key, origin, group.problem)
                    continue
                try:
                    small = {
                        ending: read_small(file, member)
                        for ending, member in group.members.items()
                        if ending.rpartition(".")[2] in ("json", *TEXT_ENDINGS)
                    }
                    metadata = read_metadata(small)
                    text = read_text(small, metadata)
                    _add(builder, tar, group, origin, text, metadata)
                except (DataError, ValueError) as error:
                    builder.refuse(group.key, origin, str(error))
        except TarError as error:
            raise DataError(f"{tar}: {error}") from error


def _add(
    builder: ListingBuilder, tar: str, group: Group, origin: str, text: str | None, metadata: dict[str, object]
) -> None:
    # An id in the metadata is the true one: the members' name is what a file system allowed.
    key = metadata.get("id")
    if isinstance(key, str) and key:
        metadata = {name: value for name, value in metadata.items() if name != "id"}
    else:
        key = group.key
    fields = {name: value for name, value in metadata.items() if not (name in TEXT_FIELDS and value == text)}
    uri = range_uri(tar, group.audio.start, group.audio.size)
    builder.add(key, uri, origin=origin, text=text, metadata=encode_metadata(fields))


def _holds_tars_only(folder: Path) -> bool:
    endings = {path.suffix for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")}
    return ".tar" in endings and endings <= {".tar", ".txt", ".list", ".idx", ".json", ".md"}


def _folder_of(tar: str) -> str:
    return tar.rpartition("/")[0]
