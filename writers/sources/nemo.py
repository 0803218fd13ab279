"""NeMo manifests, plain and tarred.

    plain   {"audio_filepath": "a/b.wav", "duration": 3.2, "text": "…", "offset": 1.5}     see `jsonl`
    tarred  the same lines, whose files are members of tars; `shard_id` says of which

A tarred dataset has one manifest for all tars, or one for each (`manifest__OP_0..7_CL_.json`, with the tars
`audio__OP_0..7_CL_.tar`). A file of which several segments were taken is there once: its segments are called
`<name>-sub1.wav`, `<name>-sub2.wav`, … in the manifest.
Source: NeMo, scripts/speech_recognition/convert_to_tarred_audio_dataset.py

NeMo has no ids: an utterance is called like its file, and the later segments of a plain file get a `-sub<n>`, too.
"""

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from uttershard.pipeline.errors import ConfigError
from uttershard.pipeline.reading.members import audio_members

from ..archives import Archive, read_archive
from ..corpus_path import CorpusPath, corpus_path, refused_members, root_of
from ..listing import Listing, ListingBuilder, encode_metadata
from ..parts import each
from ..patterns import expand, has_pattern, shard_number
from .jsonl import parse_record, parse_records, read_json_lines
from .lines import Line, batched
from .records import BadRecordError, FieldNames, add_record, add_records, read_seconds
from .webdataset import find_tars

SEGMENT_SUFFIX = re.compile(r"-sub\d+$")
"""What NeMo adds to the name of a file for its second segment and those after it."""

_AUDIO, _SHARD = "audio_filepath", "shard_id"
_USED = frozenset({_AUDIO, "text", "duration", "offset", _SHARD, "id"})


@dataclass(frozen=True)
class NemoSource:
    """A manifest of NeMo, or the manifests of a tarred dataset.

    Example:
        >>> NemoSource("manifest__OP_0..1_CL_.json", tars="audio__OP_0..1_CL_.tar").list_utterances()  # doctest: +SKIP
    """

    address: str
    tars: str | None = None
    """The tars of a tarred dataset, as a pattern."""

    name: ClassVar[str] = "nemo"

    @classmethod
    def matches(cls, address: str) -> bool:
        """Whether it is a pattern of manifests; a single one is read as `jsonl` unless it is called `nemo`."""
        return has_pattern(address) and address.endswith((".json", ".jsonl"))

    def list_utterances(self) -> Listing:
        """List the manifests in order."""
        addresses = expand([self.address])
        manifests = [corpus_path(address) for address in addresses]
        builder = ListingBuilder(refused_members(manifests[0]))
        tars = [] if self.tars is None else find_tars(self.tars)
        if self.tars is None:
            _list_plain(builder, manifests)
        elif len(manifests) == len(tars):
            for part in each(_list_pair, list(zip(addresses, tars, strict=True))):
                builder.extend(part)
        else:
            _list_tarred(builder, manifests, tars)
        return builder.finish(root_of(manifests[0].parent), self.address)


def read_records(builder: ListingBuilder, manifest: CorpusPath) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield place and record of each line; what is no record is refused."""
    return _parsed(builder, read_json_lines(manifest))


def _parsed(builder: ListingBuilder, lines: Iterable[Line]) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in lines:
        try:
            yield line.source, parse_record(line)
        except BadRecordError as error:
            builder.refuse(error.key, line.source, str(error))
        except ValueError as error:
            builder.refuse(None, line.source, str(error))


def assign_shards(
    builder: ListingBuilder, manifests: list[CorpusPath], tars: list[str]
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield the index of its tar, place and record of each line of a tarred dataset.

    Raises:
        ConfigError: As many manifests as tars, or one for all, is what there can be.
    """
    if len(manifests) not in (1, len(tars)):
        raise ConfigError(f"{len(manifests)} manifests for {len(tars)} tars: give one for all, or one for each")
    by_number = {shard_number(tar): index for index, tar in enumerate(tars)}
    for index, manifest in enumerate(manifests):
        for origin, record in read_records(builder, manifest):
            if len(manifests) > 1 or len(tars) == 1:
                yield index, origin, record
                continue
            shard = by_number.get(record.get(_SHARD))
            if shard is None:
                builder.refuse(None, origin, f"no tar has the number of its {_SHARD!r} {record.get(_SHARD)!r}")
            else:
                yield shard, origin, record


def _list_plain(builder: ListingBuilder, manifests: list[CorpusPath]) -> None:
    names, counts = FieldNames(), dict[str, int]()
    for manifest in manifests:
        for lines in batched(read_json_lines(manifest)):
            records = parse_records(lines)
            ids = None if records is None else [_name(names, record, counts) for record in records]
            origins = [line.source for line in lines]
            if records is not None and add_records(names, builder, manifest.parent, records, origins):
                continue
            for place, (origin, record) in enumerate(_parsed(builder, lines)):
                is_tarred = _SHARD in record
                try:
                    if ids is None:
                        _name(names, record, counts)
                    elif ids[place] is not None:
                        record["utt_id"] = ids[place]
                    add_record(names, builder, manifest.parent, record, origin)
                except BadRecordError as error:
                    hint = "; a line of a tarred dataset: give the tars with the option tars" if is_tarred else ""
                    builder.refuse(error.key, origin, f"{error}{hint}")


def _name(names: FieldNames, record: dict[str, Any], counts: dict[str, int]) -> str | None:
    """Give a line that has no id one, and return it; the lines of one file are counted."""
    audio = record.get(_AUDIO)
    if names.id_field(record) is not None or not isinstance(audio, str):
        return None
    stem = posixpath.splitext(audio[audio.rfind("/") + 1 :])[0]
    count = counts[stem] = counts.get(stem, -1) + 1
    key = record["utt_id"] = f"{stem}-sub{count}" if count else stem
    return key


def _list_pair(pair: tuple[str, str]) -> Listing:
    """List one tar by its own manifest."""
    manifest, tar = pair
    builder = ListingBuilder()
    _list_tarred(builder, [corpus_path(manifest)], [tar])
    return builder.finish(tar.rpartition("/")[0], tar)


def _list_tarred(builder: ListingBuilder, manifests: list[CorpusPath], tars: list[str]) -> None:
    members = [_Members(archive) for archive in each(read_archive, tars)]
    for found in members:
        builder.refused.extend(found.archive.refused)
    for shard, origin, record in assign_shards(builder, manifests, tars):
        try:
            _add(builder, members[shard], record, f"{origin} in {posixpath.basename(tars[shard])}")
        except BadRecordError as error:
            builder.refuse(error.key, origin, str(error))
    for shard, found in enumerate(members):
        for name in found.unused():
            builder.refuse(found.key(name), f"{posixpath.basename(tars[shard])}:{name}", "not in the manifest")


def _add(builder: ListingBuilder, members: "_Members", record: dict[str, Any], origin: str) -> None:
    name, text = record.get(_AUDIO), record.get("text")
    if not isinstance(name, str) or not name:
        raise BadRecordError(f"{_AUDIO!r} must be the name of a member, found {name!r}")
    key = record.get("id") if isinstance(record.get("id"), str) else members.key(name)
    if text is not None and not isinstance(text, str):
        raise BadRecordError(f"'text' must be a string, found {text!r}", key)
    duration, offset = read_seconds(record, "duration", key), read_seconds(record, "offset", key)
    uri = members.find(name)
    if uri is None:
        raise BadRecordError(f"no member {name!r} in {members.archive.address}", key)
    builder.add(
        str(key),
        uri,
        origin=origin,
        start=offset,
        end=None if offset is None or duration is None else offset + duration,
        duration=duration,
        text=text,
        metadata=encode_metadata({field: value for field, value in record.items() if field not in _USED}),
    )


class _Members:
    """The members of one tar, by the names that a manifest may give them."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self._by_name = {posixpath.basename(name): name for name in archive.uris}
        self._used: set[str] = set()

    def find(self, name: str) -> str | None:
        """Return the address of a member, of the whole file if the name is that of a segment."""
        stem, ending = posixpath.splitext(posixpath.basename(name))
        for candidate in (stem + ending, SEGMENT_SUFFIX.sub("", stem) + ending):
            member = self._by_name.get(candidate)
            if member is not None:
                self._used.add(member)
                return self.archive.uris[member]
        return None

    def key(self, name: str) -> str:
        """Return the id of an utterance by the name of its file."""
        return posixpath.splitext(posixpath.basename(name))[0]

    def unused(self) -> list[str]:
        """Return the audio members that no line named; NeMo passes by what is no audio."""
        return [name for name in audio_members(self.archive.uris) if name not in self._used]
