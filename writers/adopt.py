"""Adopting a tar of another tool: the rows of its sidecar, for a tar that stays as it is, wherever it is.

A tar is walked by its headers. Of WAV, FLAC, AIFF and SPHERE the header (and the end) of the audio is read, of other
codecs all of it, since only decoding tells how long they are. With checksums every byte is read, so that damage is
noticed later: the default for local tars, where it costs little, and not for those in a store.
"""

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import xxhash
from uttershard.pipeline.dataset.digest import HEADERS_PREFIX, UNCHECKED, span_checksum
from uttershard.pipeline.dataset.members import key_problem, member_name
from uttershard.pipeline.dataset.sidecar import FOREIGN
from uttershard.pipeline.dataset.tar import Member, TarError
from uttershard.pipeline.errors import ConfigError, DataError
from uttershard.pipeline.reading.codecs import AudioInfo, measure, probe
from uttershard.pipeline.reading.members import read_metadata, read_text

from .byte_files import RangeFile, buffered
from .describe import SidecarRows, describe
from .foreign import NAMINGS, Group, group_members, read_small, read_texts
from .listing import Refusal, printable
from .nemo_records import SegmentError, TarRecords
from .tar_files import walk_tar_file
from .tar_input import ReadOnce, TarInput
from .tar_rows import TarRows
from .tar_writer import Span

_EXACT_HEADERS = frozenset({"wav", "flac", "aiff", "sphere"})
"""Codecs whose length a few ranged reads tell for certain."""


@dataclass(frozen=True)
class AdoptRules:
    """How foreign tars are taken.

    Attributes:
        naming: `webdataset`, `wenet` or `nemo`: which members are one utterance (see foreign.py).
        manifests: NeMo's manifests, which hold the texts; a pattern.
        checksums: Whether every byte is read, so that damage is noticed later.
        unique_ids: Whether the name of the tar is put before each id, for tars that all count from zero.
    """

    naming: str = "webdataset"
    manifests: str | None = None
    checksums: bool = True
    unique_ids: bool = False

    def __post_init__(self) -> None:
        if self.naming not in NAMINGS:
            raise ConfigError(f"naming is {self.naming!r}; it can be {', '.join(NAMINGS)}")
        if (self.naming == "nemo") != (self.manifests is not None):
            raise ConfigError("naming nemo goes with manifests: a NeMo tar holds audio and no text")


def is_ours(tar: TarInput) -> bool | None:
    """Say whether a tar is one that uttershard wrote, by its first utterance; None if it is empty."""
    try:
        group = next(group_members(walk_tar_file(tar.file, tar.size, note=lambda _: None), "webdataset"), None)
        if group is None:
            return None
        if group.problem is not None or "json" not in group.members:
            return False
        metadata = read_metadata({"json": read_small(tar.file, group.members["json"])})
    except TarError as error:
        raise DataError(f"{tar.address}: {error}") from error
    except DataError:
        return False
    key = metadata.get("id")
    return isinstance(key, str) and bool(key) and member_name(key) == group.key


def read_foreign(
    tar: TarInput, rules: AdoptRules, columns: Mapping[str, str], records: TarRecords | None, *, stop: bool
) -> TarRows:
    """Return the rows of a tar of another tool.

    Args:
        tar: The tar.
        rules: How it is taken.
        columns: Metadata columns, name -> type.
        records: What NeMo's manifest says of it.
        stop: Whether the first sample that is no utterance is an error.

    Raises:
        DataError: The tar is cut or damaged.
    """
    return _ForeignTar(tar, rules, columns, records).read(stop=stop)


class _ForeignTar:
    """One tar being read: its rows, and what is refused."""

    def __init__(
        self, tar: TarInput, rules: AdoptRules, columns: Mapping[str, str], records: TarRecords | None
    ) -> None:
        self._tar, self._rules, self._columns, self._records = tar, rules, columns, records
        self._rows = SidecarRows(columns)
        self._bytes = ReadOnce(tar.file)
        self._headers = xxhash.xxh3_128()
        self._notes: list[str] = []

    def read(self, *, stop: bool) -> TarRows:
        refused: dict[int, Refusal] = {}
        name = posixpath.basename(self._tar.address)
        for group in group_members(self._members(), self._rules.naming):
            problem = group.problem or self._try_to_add(group)
            if problem is None:
                continue
            if self._records is not None:
                self._records.drop(group.key)
            refusal = Refusal(printable(group.key), printable(f"{name}:{group.key}"), printable(problem))
            if stop:
                raise DataError(f"{refusal.source}: {refusal.reason}")
            # A sample in parts is listed once, at its first.
            refused[group.begin if group.rest_of is None else group.rest_of] = refusal
        self._rows.drop(refused.keys())
        rest = [] if self._records is None else [Refusal(None, line, why) for line, why in self._records.rest()]
        if stop and rest:
            raise DataError(f"{rest[0].source}: {rest[0].reason}")
        return TarRows(self._rows.table(), self._digest(), FOREIGN, (*refused.values(), *rest), tuple(self._notes))

    def _members(self) -> Iterator[Member]:
        self._headers.update(f"{self._tar.size}\n".encode())
        for member in walk_tar_file(self._tar.file, self._tar.size, note=self._notes.append):
            about = f"{member.header} {member.start} {member.size} {member.kind} {member.name}\n"
            self._headers.update(about.encode("utf-8", "surrogateescape"))
            yield member

    def _digest(self) -> str:
        if not self._rules.checksums:
            return f"{HEADERS_PREFIX}{self._headers.hexdigest()}"
        self._bytes.read_to(self._tar.size)
        return self._bytes.digest.text()

    def _try_to_add(self, group: Group) -> str | None:
        """Add an utterance, or return why it is none."""
        try:
            self._add(group)
        except TarError:
            raise
        except (DataError, SegmentError) as error:
            return str(error)
        return None

    def _add(self, group: Group) -> None:
        span = self._bytes.read_span(group.begin, group.end) if self._rules.checksums else None
        small = read_texts(self._tar.file, group)
        metadata = read_metadata(small)
        text = read_text(small, metadata)
        key = metadata.get("id")
        # Our own shards say in their `.json` what the id was; another tool's "id" may be anything.
        key = key if isinstance(key, str) and member_name(key) == group.key else group.key
        problem = key_problem(key)
        if problem is not None:
            raise DataError(problem)
        info = self._facts(group, span)
        if self._records is not None:
            fields = self._records.take(group.key, info.num_samples / info.sample_rate)
            text = fields.get("text")
            metadata = {**metadata, **fields}
        if self._rules.unique_ids:
            key = f"{posixpath.basename(self._tar.address).removesuffix('.tar')}/{key}"
        row = describe({**metadata, "id": key}, info, len(text or ""), self._columns)
        checksum = UNCHECKED if span is None else span_checksum(span)
        self._rows.add(row, Span(group.begin, group.end - group.begin, checksum))

    def _facts(self, group: Group, span: bytes | None) -> AudioInfo:
        audio, file = group.audio, self._tar.file
        if span is not None:
            return measure(memoryview(span)[audio.start - group.begin :][: audio.size])
        info = probe(buffered(RangeFile(file, audio.start, audio.size)))
        if info.codec in _EXACT_HEADERS:
            return info
        file.seek(audio.start)
        return measure(file.read(audio.size))
