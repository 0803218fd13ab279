"""One utterance out of its span: checked, split into members, decoded, brought into the form that was asked for."""

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..dataset.digest import UNCHECKED, span_checksum
from ..dataset.members import is_member_of
from ..dataset.tar import TarError, split_name, walk_span
from ..errors import ConfigError, DataError
from .codecs import AUDIO_EXTENSIONS, AudioError, Scratch, decode
from .convert import mix_channels, resample, to_float32
from .members import read_metadata, read_text
from .spans import BatchSpec

Samples = NDArray[Any]
"""int16 or float32, [num_samples] or [num_samples, channels]."""


@dataclass(frozen=True)
class AudioForm:
    """What all audio of a batch is brought to.

    Attributes:
        sample_rate: Hz; None leaves each utterance as it is.
        channels: 1 mixes down, more copies a mono signal; None leaves each utterance as it is.
    """

    sample_rate: int | None = None
    channels: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("sample_rate", self.sample_rate), ("channels", self.channels)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ConfigError(f"{name} must be a whole number of 1 or more, not {value!r}")

    def num_samples(self, spec: BatchSpec) -> NDArray[np.int64]:
        """Samples of each utterance after conversion, int64 [B]; rounded half up, as `convert.resample` gives them."""
        if self.sample_rate is None:
            return spec.num_samples
        rate = spec.sample_rate.astype(np.int64)
        return np.asarray((2 * spec.num_samples * self.sample_rate + rate) // (2 * rate))

    def changes_any(self, spec: BatchSpec) -> bool:
        """Whether any utterance must be resampled or mixed."""
        return any(self.changes(spec, row) for row in range(len(spec)))

    def changes(self, spec: BatchSpec, row: int) -> bool:
        """Whether an utterance must be resampled or mixed (its samples then are float32)."""
        return self.sample_rate not in (None, int(spec.sample_rate[row])) or self.channels not in (
            None,
            int(spec.channels[row]),
        )


class Members(NamedTuple):
    """The parts of one utterance's span."""

    audio: memoryview
    text: str | None
    meta: dict[str, Any]


_decode_json = json.JSONDecoder().decode
"""As json.loads, without its guess at the encoding: ours is UTF-8."""


class UtteranceError(DataError):
    """One utterance is damaged; the message names shard, id and offset."""


def split_span(spec: BatchSpec, row: int, span: memoryview, tar: str) -> Members:
    """Check a span against its checksum and take it apart.

    Args:
        spec: The batch that the utterance belongs to.
        row: Its place in the batch.
        span: Its bytes.
        tar: Address of its tar, for error messages.
    """
    expected = int(spec.xxh3[row])
    if span_checksum(span) != expected if expected != UNCHECKED else not _is_of(spec.keys[row], span):
        raise UtteranceError(f"{where_it_is(spec, row, tar)}: {_what_changed(spec.keys[row], span)}")
    parts: dict[str, memoryview] = {}
    try:
        for member in walk_span(span):
            parts[split_name(member.name)[1]] = span[member.start : member.start + member.size]
    except TarError as error:
        raise UtteranceError(f"{where_it_is(spec, row, tar)}: {error}") from error
    audio = [name for name in parts if _is_audio(name)]
    if len(audio) != 1:
        found = f"{len(audio)} audio members ({', '.join(parts)})"
        raise UtteranceError(f"{where_it_is(spec, row, tar)}: {found}, expected one")
    if spec.foreign[row]:
        return _foreign_members(spec, row, parts, parts[audio[0]], tar)
    try:
        text = str(parts["txt"], "utf-8") if "txt" in parts else None
        meta = _decode_json(str(parts["json"], "utf-8")) if "json" in parts else {}
    except ValueError as error:
        raise UtteranceError(f"{where_it_is(spec, row, tar)}: its text or metadata can't be read ({error})") from error
    if not isinstance(meta, dict):
        raise UtteranceError(f"{where_it_is(spec, row, tar)}: its metadata is no JSON object but {meta!r:.40}")
    meta.pop("id", None)
    return Members(parts[audio[0]], text, meta)


def _foreign_members(spec: BatchSpec, row: int, parts: dict[str, memoryview], audio: memoryview, tar: str) -> Members:
    """Find text and metadata where other tools put them (see members.py), the text else in the sidecar."""
    try:
        meta = read_metadata(parts)
        text = read_text(parts, meta)
    except DataError as error:
        raise UtteranceError(f"{where_it_is(spec, row, tar)}: {error}") from error
    if text is None and spec.texts is not None:
        text = spec.texts[row]
    return Members(audio, text, meta)


@lru_cache(maxsize=1024)
def _is_audio(ending: str) -> bool:
    return f".{ending.rpartition('.')[2]}" in AUDIO_EXTENSIONS


def decode_utterance(
    spec: BatchSpec, row: int, audio: memoryview, form: AudioForm, scratch: Scratch, tar: str
) -> Samples:
    """Decode one utterance and bring it into the form asked for; may return a view of `audio` or of `scratch`."""
    num_samples, channels = int(spec.num_samples[row]), int(spec.channels[row])
    try:
        samples: Samples = decode(spec.codecs[row], audio, num_samples, channels, scratch)
    except AudioError as error:
        raise UtteranceError(f"{where_it_is(spec, row, tar)}: {error}") from error
    if not form.changes(spec, row):
        return samples
    if form.channels is not None:
        samples = mix_channels(samples, form.channels)
    if form.sample_rate is not None:
        # In floats, which the batch will be of: going back to int16 costs more than resampling does.
        samples = resample(to_float32(samples), int(spec.sample_rate[row]), form.sample_rate)
    return samples


def where_it_is(spec: BatchSpec, row: int, tar: str) -> str:
    """Return how an utterance is named in an error."""
    return f"{tar}: utterance {spec.keys[row]!r} at offset {int(spec.spans.offset[row])}"


def _what_changed(key: str, span: memoryview) -> str:
    """Tell a damaged utterance from a sidecar that belongs to another tar."""
    if _is_of(key, span):
        return (
            "its bytes are damaged (the checksum does not match the sidecar's). Copy the tar again, or pack it again; "
            "`uttershard verify` lists all that is damaged"
        )
    found = _first_name(span)
    there = "no tar header is there" if found is None else f"the member there is {split_name(found)[0]!r}"
    return (
        f"the tar is not the one that the sidecar describes, or is damaged: {there}. The sidecar is stale or the tar "
        "was replaced: copy both again, or rebuild the sidecar with `uttershard index`"
    )


def _is_of(key: str, span: memoryview) -> bool:
    """Say whether a span begins with a member of this utterance."""
    found = _first_name(span)
    return found is not None and is_member_of(found, key)


def _first_name(span: memoryview) -> str | None:
    try:
        return next(walk_span(span)).name
    except (TarError, StopIteration):
        return None
