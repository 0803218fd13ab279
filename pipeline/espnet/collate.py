"""Utterances as ESPnet's models take them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..errors import ConfigError
from ..loader.utterance_dataset import UtteranceItem
from ..reading.batch import Batch
from ..reading.tokenizer import parse_tokenizer, tokens_of

Sample = UtteranceItem | tuple[str, Mapping[str, Any]]
"""An item of an UtteranceDataset, or id and sample as ESPnet's CombinedDataset gives them."""


def espnet_collate(
    batch: Batch | Sequence[Sample],
    *,
    tokenizer: Any = None,
    float_pad: float = 0.0,
    int_pad: int = -1,
) -> tuple[list[str], dict[str, torch.Tensor]]:
    """Return utterances as ESPnet's models take them.

    Args:
        batch: A Batch of a ShardLoader, or items of an UtteranceDataset (as `collate_fn` of a DataLoader).
        tokenizer: Makes numbers of transcripts that are texts: a function, the path of a SentencePiece model, or a
            Hugging Face tokenizer. A Batch has its `tokens` if the ShardLoader has a tokenizer.
        float_pad: Stands after the end of speech.
        int_pad: Stands after the last token.

    Returns:
        Ids, and speech float32 [B, T] or [B, T, C], speech_lengths int64 [B], text int64 [B, U], text_lengths int64
        [B]; without text if no utterance has a transcript and there is no tokenizer.

    Raises:
        ConfigError: An utterance has no transcript though others have, or there is nothing to make tokens with.

    Example:
        >>> collate = functools.partial(espnet_collate, tokenizer="bpe.model")  # doctest: +SKIP
        >>> loader = DataLoader(dataset, batch_size=32, collate_fn=collate)  # doctest: +SKIP
    """
    if isinstance(batch, Batch):
        keys = list(batch.keys)
        lengths = batch.audio_lengths.to(batch.audio.device)
        speech = batch.audio if batch.audio.ndim == 2 else batch.audio.transpose(1, 2).contiguous()
        if float_pad:
            outside = torch.arange(speech.shape[1], device=speech.device) >= lengths[:, None]
            speech = speech.masked_fill(outside.reshape(*outside.shape, *[1] * (speech.ndim - 2)), float_pad)
        if batch.tokens is not None and batch.token_lengths is not None:
            outside = torch.arange(batch.tokens.shape[1], device=batch.tokens.device) >= batch.token_lengths[:, None]
            tokens = {"text": batch.tokens.masked_fill(outside, int_pad), "text_lengths": batch.token_lengths}
        else:
            tokens = _tokens(keys, batch.text, tokenizer, int_pad)
        return keys, {"speech": speech, "speech_lengths": lengths, **tokens}
    pairs = [(one.key, one) if isinstance(one, UtteranceItem) else one for one in batch]
    keys = [key for key, _ in pairs]
    waves = [np.asarray(sample["speech"], np.float32) for _, sample in pairs]
    speech, lengths = _stacked(waves, float_pad, torch.float32)
    texts = [sample.get("text") for _, sample in pairs]
    return keys, {"speech": speech, "speech_lengths": lengths, **_tokens(keys, texts, tokenizer, int_pad)}


def _tokens(keys: list[str], texts: Sequence[Any], tokenizer: Any, int_pad: int) -> dict[str, torch.Tensor]:
    missing = [key for key, text in zip(keys, texts, strict=True) if text is None]
    if len(missing) == len(keys) and tokenizer is None:
        return {}
    if missing:
        raise ConfigError(f"utterance {missing[0]!r} has no transcript: leave such out with where='text_chars > 0'")
    tokenize: Callable[[str], Any] | None = None if tokenizer is None else parse_tokenizer(tokenizer)
    numbers = []
    for key, text in zip(keys, texts, strict=True):
        if isinstance(text, str):
            if tokenize is None:
                raise ConfigError(f"the transcript of {key!r} is a text: give tokenizer= to make numbers of it")
            numbers.append(tokens_of(tokenize, text))
        else:
            numbers.append(np.asarray(text, np.int64))
    padded, lengths = _stacked(numbers, int_pad, torch.int64)
    return {"text": padded, "text_lengths": lengths}


def _stacked(arrays: Sequence[Any], pad: float, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = [len(array) for array in arrays]
    padded = torch.full((len(arrays), max(lengths), *arrays[0].shape[1:]), pad, dtype=dtype)
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = torch.from_numpy(array)
    return padded, torch.tensor(lengths, dtype=torch.int64)
