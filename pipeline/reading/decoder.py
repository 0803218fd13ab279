"""BatchDecoder: reads and decodes the utterances of one batch, padded for a CPU or packed for a device or a process."""

import threading
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import ConfigError
from ..storage.base import Storage
from .batch import Allocate, Batch, fill_row
from .codecs import peek_dtype
from .spans import BatchSpec
from .utterance import AudioForm, Members, decode_utterance, split_span


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
        """Decode a batch straight into padded float32 rows on a CPU: each sample is touched once while in cache."""
        parts, lengths, channels = self._open(spec)
        longest = int(lengths.max())
        shape = (len(spec), longest) if channels == 1 else (len(spec), channels, longest)
        audio = allocate(shape, torch.float32)
        rows = audio.numpy()
        scratch = self._scratch.at_least(int((spec.num_samples * spec.channels).max()))
        for row, part in enumerate(parts):
            samples = decode_utterance(spec, row, part.audio, self._form, scratch, self._tar(spec, row))
            fill_row(rows[row], samples)
        return self._batch(spec, parts, lengths, padded=audio)

    def packed(self, spec: BatchSpec, allocate: Allocate) -> Batch:
        """Decode a batch into one buffer, utterance after utterance: int16 if all of it is, else float32."""
        parts, lengths, channels = self._open(spec)
        whole = all(
            peek_dtype(spec.codecs[row], part.audio) == "int16" and not self._form.changes(spec, row)
            for row, part in enumerate(parts)
        )
        total = int(lengths.sum())
        shape = (total,) if channels == 1 else (total, channels)
        packed = allocate(shape, torch.int16 if whole else torch.float32)
        flat, begin = packed.numpy(), 0
        scratch = None if whole else self._scratch.at_least(int((spec.num_samples * spec.channels).max()))
        for row, part in enumerate(parts):
            target = flat[begin : begin + int(lengths[row])]
            samples = decode_utterance(
                spec, row, part.audio, self._form, target.reshape(-1) if whole else scratch, self._tar(spec, row)
            )
            if not np.may_share_memory(samples, target):
                fill_row(target.T, samples) if not whole else np.copyto(target, samples)
            begin += len(target)
        return self._batch(spec, parts, lengths, packed=packed)

    def _open(self, spec: BatchSpec) -> tuple[list[Members], NDArray[np.int64], int]:
        spans = self.storage.read(spec.spans)
        parts = [split_span(spec, row, span, self._tar(spec, row)) for row, span in enumerate(spans)]
        channels = set(spec.channels.tolist()) if self._form.channels is None else {self._form.channels}
        if len(channels) > 1:
            raise ConfigError(f"utterances with {sorted(channels)} channels in one batch: say channels=1 to mix them")
        return parts, self._form.num_samples(spec), int(channels.pop())

    def _tar(self, spec: BatchSpec, row: int) -> str:
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
