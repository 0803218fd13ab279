"""BatchDecoder: reads and decodes the utterances of one batch, padded for a CPU or packed for a device or a process."""

import threading
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import ConfigError
from ..storage.base import Storage
from .batch import Allocate, Batch, fill_row
from .spans import BatchSpec
from .utterance import AudioForm, Members, UtteranceError, decode_utterance, split_span

INT16_CODECS = frozenset({"wav", "flac"})
"""Decoded to int16, if not of more than 16 bits."""


class BatchDecoder:
    """Makes batches out of specs. Used from many threads at once; picklable.

    Args:
        storage: Where the spans are.
        tars: Address of each shard's tar, for error messages.
        form: What audio is brought to.
    """

    def __init__(self, storage: Storage, tars: Sequence[str], form: AudioForm) -> None:
        self.storage = storage
        self._tars = tars
        self._form = form
        self._scratch = _Scratch()

    def padded(self, spec: BatchSpec, allocate: Allocate) -> Batch:
        """Decode a batch straight into padded float32 rows on a CPU."""
        lengths, channels = self._form.num_samples(spec), self._channels(spec)
        longest = int(lengths.max())
        shape = (len(spec), longest) if channels == 1 else (len(spec), channels, longest)
        audio = allocate(shape, torch.float32)
        rows = audio.numpy()
        scratch = self._scratch_for(spec)
        parts = []
        for row, part in enumerate(self._parts(spec, self.storage.read(spec.spans))):
            # FLAC decodes to float32 as fast as to int16, with the same values: then nothing is left to convert.
            in_place = channels == 1 and not self._form.changes(spec, row)
            place = rows[row, : lengths[row]] if in_place else scratch
            samples = decode_utterance(spec, row, part.audio, self._form, place, self.tar(spec, row))
            if np.may_share_memory(samples, rows):
                rows[row, len(samples) :] = 0
            else:
                fill_row(rows[row], samples)
            parts.append(part)
        return self._batch(spec, parts, lengths, padded=audio)

    def packed(self, spec: BatchSpec, allocate: Allocate) -> Batch:
        """Decode a batch into one buffer, utterance after utterance: int16 if all of it is, else float32."""
        whole = INT16_CODECS.issuperset(spec.codecs) and not self._form.changes_any(spec)
        spans = self.storage.read(spec.spans)
        if whole:
            try:
                return self._pack(spec, spans, allocate, torch.int16)
            except _NotInt16:
                pass  # one of them has more than 16 bits, which only its header tells
        return self._pack(spec, spans, allocate, torch.float32)

    def _pack(self, spec: BatchSpec, spans: Sequence[memoryview], allocate: Allocate, dtype: torch.dtype) -> Batch:
        lengths, channels = self._form.num_samples(spec), self._channels(spec)
        total = int(lengths.sum())
        packed = allocate((total,) if channels == 1 else (total, channels), dtype)
        flat, begin = packed.numpy(), 0
        scratch = self._scratch_for(spec) if dtype == torch.float32 else None
        parts = []
        for row, part in enumerate(self._parts(spec, spans)):
            target = flat[begin : begin + int(lengths[row])]
            place = target.reshape(-1) if scratch is None else scratch
            samples = decode_utterance(spec, row, part.audio, self._form, place, self.tar(spec, row))
            if scratch is not None:
                fill_row(target.T, samples)
            elif samples.dtype != np.int16:
                raise _NotInt16
            elif not np.may_share_memory(samples, target):
                np.copyto(target, samples)
            parts.append(part)
            begin += len(target)
        return self._batch(spec, parts, lengths, packed=packed)

    def _parts(self, spec: BatchSpec, spans: Sequence[memoryview]) -> Iterator[Members]:
        """Check and take apart one utterance after the other.

        One at a time, so that it is decoded while the check has it in the processor's cache: for WAV, reading a batch
        from memory a second time costs as much as all the rest.
        """
        for row, span in enumerate(spans):
            try:
                part = split_span(spec, row, span, self.tar(spec, row))
            except UtteranceError:
                again = self.storage.read_again(spec.spans, row)
                if again is None:
                    raise
                part = split_span(spec, row, again, self.tar(spec, row))
            if spec.datasets:
                part.meta["dataset"] = spec.datasets[row]
            yield part

    def _channels(self, spec: BatchSpec) -> int:
        channels = set(spec.channels.tolist()) if self._form.channels is None else {self._form.channels}
        if len(channels) > 1:
            raise ConfigError(f"utterances with {sorted(channels)} channels in one batch: say channels=1 to mix them")
        return int(channels.pop())

    def _scratch_for(self, spec: BatchSpec) -> NDArray[np.int16]:
        return self._scratch.at_least(int((spec.num_samples * spec.channels).max()))

    def tar(self, spec: BatchSpec, row: int) -> str:
        """Return the address of the tar that an utterance is in."""
        return self._tars[int(spec.spans.shard[row])]

    @staticmethod
    def _batch(
        spec: BatchSpec,
        parts: Sequence[Members],
        lengths: NDArray[np.int64],
        *,
        packed: torch.Tensor | None = None,
        padded: torch.Tensor | None = None,
    ) -> Batch:
        return Batch(
            keys=list(spec.keys),
            audio_lengths=torch.from_numpy(lengths.copy()),
            text=[part.text for part in parts],
            meta=[part.meta for part in parts],
            epoch=spec.epoch,
            step=spec.step,
            filler=spec.filler,
            packed=packed,
            padded=padded,
        )


class _NotInt16(Exception):  # noqa: N818 - nothing is wrong
    """A batch that was taken for int16 holds an utterance that is not."""


class _Scratch(threading.local):
    """An int16 buffer for each thread, as long as the longest utterance it has met."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.int16)

    def at_least(self, count: int) -> NDArray[np.int16]:
        if len(self._buffer) < count:
            self._buffer = np.empty(count + count // 8, np.int16)
        return self._buffer

    def __reduce__(self) -> tuple[type["_Scratch"], tuple[()]]:
        return _Scratch, ()
