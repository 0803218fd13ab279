"""ProcessingDecoder: a BatchDecoder that also calls the user's function, makes tokens, and leaves bad utterances out.

A batch is decoded whole, as fast as without, unless there is a function to call or an utterance of it turns out to be
bad; only then its utterances are taken one by one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import ConfigError, DataError, UttershardError
from ..storage.base import Storage
from .batch import Allocate, Batch, SkippedUtterance, fill_row
from .convert import to_float32
from .decoder import BatchDecoder
from .processing import Processing, Utterance
from .spans import BatchSpec
from .tokenizer import pad_tokens, tokens_of
from .utterance import AudioForm, UtteranceError, where_it_is


class Decoder(Protocol):
    """Makes batches out of specs: a BatchDecoder, or one that does more."""

    storage: Storage

    def padded(self, spec: BatchSpec, allocate: Allocate) -> Batch:
        """Return a batch whose samples are padded float32."""

    def packed(self, spec: BatchSpec, allocate: Allocate) -> Batch:
        """Return a batch whose samples lie one utterance after the other."""


@dataclass(frozen=True)
class _Decoded:
    """One utterance, ready to go into a batch."""

    samples: NDArray[Any]
    text: str | None
    meta: dict[str, Any]


class ProcessingDecoder:
    """Makes batches out of specs, and does what Processing says to their utterances.

    Args:
        decoder: Decodes.
        processing: What else to do.
        form: What the decoder brings audio to.
    """

    def __init__(self, decoder: BatchDecoder, processing: Processing, form: AudioForm) -> None:
        self.storage = decoder.storage
        self._decoder = decoder
        self._processing = processing
        self._form = form

    def padded(self, spec: BatchSpec, allocate: Allocate) -> Batch:
        """Return a batch whose samples are padded float32; without utterances if all are left out."""
        return self._make(spec, allocate, padded=True)

    def packed(self, spec: BatchSpec, allocate: Allocate) -> Batch:
        """Return a batch whose samples lie one utterance after the other; without utterances if all are left out."""
        return self._make(spec, allocate, padded=False)

    def _make(self, spec: BatchSpec, allocate: Allocate, *, padded: bool) -> Batch:
        decode = self._decoder.padded if padded else self._decoder.packed
        if self._processing.map_utterance is None:
            try:
                batch = decode(spec, allocate)
                return self._add_tokens(batch, [self._tokens(spec, row, text) for row, text in enumerate(batch.text)])
            except UtteranceError:
                if not self._processing.skips:
                    raise
        return self._one_by_one(spec, allocate, padded=padded)

    def _one_by_one(self, spec: BatchSpec, allocate: Allocate, *, padded: bool) -> Batch:
        good: list[_Decoded] = []
        keys: list[str] = []
        tokens: list[NDArray[np.int64] | None] = []
        skipped: list[SkippedUtterance] = []
        for row in range(len(spec)):
            try:
                decoded = self._decode(spec, row)
                tokens.append(self._tokens(spec, row, decoded.text))
            except UtteranceError as error:
                if not self._processing.skips:
                    raise
                skipped.append(self._skip(spec, row, error))
                continue
            good.append(decoded)
            keys.append(spec.keys[row])
        batch = Batch(
            keys=keys,
            audio_lengths=torch.tensor([len(one.samples) for one in good], dtype=torch.int64),
            text=[one.text for one in good],
            meta=[one.meta for one in good],
            epoch=spec.epoch,
            step=spec.step,
            filler=spec.filler,
            skipped=tuple(skipped),
        )
        samples = [one.samples for one in good]
        if padded:
            batch.padded = _pad(samples, allocate)
        else:
            batch.packed = _pack(samples, allocate)
        return self._add_tokens(batch, tokens)

    def _decode(self, spec: BatchSpec, row: int) -> _Decoded:
        single = self._decoder.packed(spec.select([row]), _fresh)
        if single.packed is None:
            raise UttershardError("a decoder's packed batch must be packed")
        samples, text, meta = single.packed.numpy(), single.text[0], single.meta[0]
        if self._processing.map_utterance is None:
            return _Decoded(samples, text, meta)
        utterance = Utterance(
            key=spec.keys[row],
            samples=to_float32(samples),
            sample_rate=self._form.sample_rate or int(spec.sample_rate[row]),
            text=text,
            meta=meta,
            epoch=spec.epoch,
            rng=self._processing.random(spec.keys[row], spec.epoch),
        )
        return self._map(self._processing.map_utterance, utterance, self._where(spec, row))

    def _map(self, function: Callable[[Utterance], Any], utterance: Utterance, where: str) -> _Decoded:
        key, sample_rate, channels = utterance.key, utterance.sample_rate, utterance.samples.shape[1:]
        try:
            mapped = function(utterance)
        except DataError as error:
            raise UtteranceError(f"{where}: map_utterance: {error}") from error
        except Exception as error:
            raise UttershardError(f"{where}: map_utterance raised {type(error).__name__}: {error}") from error
        if not isinstance(mapped, Utterance):
            raise ConfigError(f"{where}: map_utterance returned {type(mapped).__name__}, not the Utterance: return it")
        if (mapped.key, mapped.sample_rate) != (key, sample_rate):
            raise ConfigError(
                f"{where}: map_utterance changed key or sample_rate to {mapped.key!r}, {mapped.sample_rate!r}; both "
                "are the loader's: keep new ids in meta, and set the rate with sample_rate= of the loader"
            )
        samples = np.asarray(mapped.samples)
        if samples.dtype == np.float64:
            samples = samples.astype(np.float32)
        if samples.dtype not in (np.int16, np.float32) or samples.shape[1:] != channels or not len(samples):
            raise ConfigError(
                f"{where}: map_utterance left samples of type {samples.dtype} and shape {samples.shape}; expected "
                f"float32, float64 or int16 of shape {('n', *channels)}, at least one"
            )
        return _Decoded(samples, mapped.text, mapped.meta)

    def _tokens(self, spec: BatchSpec, row: int, text: str | None) -> NDArray[np.int64] | None:
        tokenize = self._processing.tokenize
        if tokenize is None:
            return None
        where = self._where(spec, row)
        if text is None:
            raise UtteranceError(
                f"{where}: it has no transcript to make tokens of: leave such utterances out with "
                "where='text_chars > 0', or let map_utterance set the text"
            )
        try:
            return tokens_of(tokenize, text)
        except Exception as error:
            raise UttershardError(f"{where}: tokenizer raised {type(error).__name__}: {error}") from error

    def _add_tokens(self, batch: Batch, tokens: list[NDArray[np.int64] | None]) -> Batch:
        if self._processing.tokenize is None:
            return batch
        padded, lengths = pad_tokens([one for one in tokens if one is not None], self._processing.token_pad or 0)
        return replace(batch, tokens=torch.from_numpy(padded), token_lengths=torch.from_numpy(lengths))

    def _skip(self, spec: BatchSpec, row: int, error: UtteranceError) -> SkippedUtterance:
        return SkippedUtterance(
            key=spec.keys[row],
            shard=self._decoder.tar(spec, row),
            offset=int(spec.spans.offset[row]),
            reason=str(error).removeprefix(f"{self._where(spec, row)}: "),
            seconds=float(spec.num_samples[row] / spec.sample_rate[row]),
        )

    def _where(self, spec: BatchSpec, row: int) -> str:
        return where_it_is(spec, row, self._decoder.tar(spec, row))


def _pad(utterances: list[NDArray[Any]], allocate: Allocate) -> torch.Tensor:
    longest = max((len(samples) for samples in utterances), default=0)
    channels = utterances[0].shape[1:] if utterances else ()
    padded = allocate((len(utterances), *channels, longest), torch.float32)
    for row, samples in zip(padded.numpy(), utterances, strict=True):
        fill_row(row, samples)
    return padded


def _pack(utterances: list[NDArray[Any]], allocate: Allocate) -> torch.Tensor:
    whole = all(samples.dtype == np.int16 for samples in utterances)
    channels = utterances[0].shape[1:] if utterances else ()
    total = sum(map(len, utterances))
    packed = allocate((total, *channels), torch.int16 if whole else torch.float32)
    flat, begin = packed.numpy(), 0
    for samples in utterances:
        target = flat[begin : begin + len(samples)]
        target[...] = samples if whole else to_float32(samples)
        begin += len(samples)
    return packed


def _fresh(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)
