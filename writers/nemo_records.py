"""What a NeMo manifest says of the members of one tar, for adopting it."""

import json
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .corpus_path import corpus_path
from .listing import ListingBuilder
from .patterns import expand
from .sources.nemo import SEGMENT_SUFFIX, assign_shards

_SLACK_SECONDS = 0.1
_USED = frozenset({"audio_filepath", "duration", "offset", "shard_id"})


class SegmentError(ValueError):
    """A manifest has a member in parts, or not at all; the message is the reason of its refusal."""


def split_records(builder: ListingBuilder, manifests: str, tars: Sequence[str]) -> dict[int, bytes]:
    """Return the lines about each tar, so that a worker reads no more; tars without any have none."""
    lines: dict[int, list[str]] = {}
    for shard, origin, record in assign_shards(
        builder, [corpus_path(address) for address in expand([manifests])], list(tars)
    ):
        lines.setdefault(shard, []).append(json.dumps({"origin": origin, "record": record}, ensure_ascii=False))
    return {shard: "".join(f"{line}\n" for line in found).encode("utf-8") for shard, found in lines.items()}


@dataclass
class TarRecords:
    """The records of a tar, by the key of the member that they are about."""

    by_key: dict[str, list[tuple[str, dict[str, Any]]]] = field(default_factory=dict)

    @classmethod
    def parse(cls, data: bytes) -> "TarRecords":
        """Read what `split_records` made."""
        found = cls()
        for line in data.decode("utf-8").split("\n"):
            if line:
                entry = json.loads(line)
                stem = posixpath.splitext(posixpath.basename(str(entry["record"].get("audio_filepath"))))[0]
                key = SEGMENT_SUFFIX.sub("", stem)
                found.by_key.setdefault(key, []).append((entry["origin"], entry["record"]))
        return found

    def fields(self) -> Iterator[dict[str, Any]]:
        """Yield text and metadata of all."""
        for entries in self.by_key.values():
            for _, record in entries:
                yield {name: value for name, value in record.items() if name not in _USED}

    def take(self, key: str, seconds: float) -> dict[str, Any]:
        """Return text and metadata of a member of this length.

        Raises:
            SegmentError: The manifest has it in parts, or not at all.
        """
        entries = self._pop(key)
        if entries is None:
            raise SegmentError("not in the manifest")
        origin, record = entries[0]
        duration, offset = record.get("duration"), record.get("offset")
        is_part = bool(offset) or (isinstance(duration, int | float) and duration < seconds - _SLACK_SECONDS)
        if len(entries) > 1 or is_part:
            raise SegmentError(
                f"the manifest has {len(entries)} segments of it ({origin}), and a tar can only be adopted by whole "
                "members: pack it with --from nemo"
            )
        return {name: value for name, value in record.items() if name not in _USED}

    def drop(self, key: str) -> None:
        """Forget what is said of a member that is refused for another reason."""
        self._pop(key)

    def _pop(self, key: str) -> list[tuple[str, dict[str, Any]]] | None:
        key = posixpath.basename(key)  # as NeMo does
        # A member that is called `…-sub1` itself is not a part of another.
        return self.by_key.pop(key, None) or self.by_key.pop(SEGMENT_SUFFIX.sub("", key), None)

    def rest(self) -> Iterator[tuple[str, str]]:
        """Yield place and reason of the records whose member never came."""
        for key, entries in self.by_key.items():
            for origin, _ in entries:
                yield origin, f"no member {key!r} in the tar, or none that is an utterance"
