"""The sidecar of a tar that uttershard wrote, made again from the tar: the rows are those that packing wrote."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from uttershard.pipeline.dataset.digest import span_checksum
from uttershard.pipeline.dataset.members import member_name
from uttershard.pipeline.dataset.sidecar import SidecarInfo
from uttershard.pipeline.dataset.tar import Member, split_name
from uttershard.pipeline.errors import DataError
from uttershard.pipeline.reading.codecs import AudioError

from .describe import SidecarRows, describe_members
from .tar_files import walk_tar_file
from .tar_input import ReadOnce, TarInput
from .tar_rows import TarRows
from .tar_writer import Span


def read_own(tar: TarInput, columns: Mapping[str, str]) -> TarRows:
    """Return the rows of a tar of ours.

    Raises:
        DataError: It is damaged, or has members that are not of one utterance.
    """
    rows, reader = SidecarRows(columns), ReadOnce(tar.file)
    members = walk_tar_file(tar.file, tar.size)
    for stem, group in itertools.groupby(members, lambda member: split_name(member.name)[0]):
        parts = list(group)
        begin, end = parts[0].header, parts[-1].end
        span = reader.read_span(begin, end)
        try:
            row = _describe(stem, parts, span, columns)
        except (AudioError, DataError) as error:
            raise DataError(f"{tar.address}: {stem} at offset {begin}: {error}") from error
        rows.add(row, Span(begin, end - begin, span_checksum(span)))
    reader.read_to(tar.size)
    return TarRows(rows.table(), reader.digest.text(), SidecarInfo.naming)


def _describe(stem: str, members: Sequence[Member], span: bytes, columns: Mapping[str, str]) -> dict[str, Any]:
    begin = members[0].header
    parts = {split_name(member.name)[1]: span[member.start - begin :][: member.size] for member in members}
    row = describe_members(parts, columns)
    if member_name(row["key"]) != stem:
        raise DataError(f"its .json says it is {row['key']!r}, whose members have another name")
    return row
