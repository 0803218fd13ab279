"""Tokenizers: a function, a SentencePiece model, or an object of Hugging Face or SentencePiece."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError

Tokenize = Callable[[str], Any]
"""Gives the tokens of a text: whole numbers, in a list, tuple or array."""


def parse_tokenizer(tokenizer: Any) -> Tokenize:
    """Return a function for what a user calls a tokenizer.

    Args:
        tokenizer: A function from text to numbers; the path of a SentencePiece model; or an object with a method
            `encode`: a Hugging Face tokenizer (of `transformers` or `tokenizers`; it adds the special tokens that it
            is set to add) or a `SentencePieceProcessor`.

    Raises:
        ConfigError: It is nothing of these, or the model can't be loaded.
    """
    if isinstance(tokenizer, str | os.PathLike):
        return _Encode(_load_sentencepiece(Path(tokenizer)))
    if callable(getattr(tokenizer, "encode", None)):
        return _Encode(tokenizer)
    if callable(tokenizer):
        checked: Tokenize = tokenizer
        return checked
    raise ConfigError(
        f"tokenizer={tokenizer!r}: give a function from text to numbers, the path of a SentencePiece model, or a "
        "Hugging Face tokenizer"
    )


def tokens_of(tokenize: Tokenize, text: str) -> NDArray[np.int64]:
    """Return the tokens of a text, int64 [U].

    Raises:
        TypeError: The tokenizer gave something else than whole numbers.
    """
    given = tokenize(text)
    tokens = np.asarray(given if len(given) else np.empty(0, np.int64))
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise TypeError(f"the tokenizer gave {given!r:.60} for {text!r:.60}, expected whole numbers")
    return tokens.astype(np.int64)


def pad_tokens(tokens: Sequence[NDArray[np.int64]], fill: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return tokens as a padded batch, int64 [B, U], and their numbers, int64 [B]."""
    lengths = np.array([len(one) for one in tokens], np.int64)
    padded = np.full((len(tokens), int(lengths.max(initial=0))), fill, np.int64)
    for row, one in zip(padded, tokens, strict=True):
        row[: len(one)] = one
    return padded, lengths


class _Encode:
    """Calls an object's `encode`; `tokenizers` wraps the numbers, which it calls ids."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> Any:
        encoded = self._tokenizer.encode(text)
        return getattr(encoded, "ids", encoded)


def _load_sentencepiece(path: Path) -> Any:
    if not path.is_file():
        raise ConfigError(f"tokenizer={str(path)!r}: no such file; expected the path of a SentencePiece model")
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError as error:
        raise ConfigError(f"tokenizer={str(path)!r} needs SentencePiece: pip install 'uttershard[tokens]'") from error
    try:
        return SentencePieceProcessor(model_file=str(path))
    except (RuntimeError, OSError) as error:
        raise ConfigError(f"tokenizer={str(path)!r}: not a SentencePiece model ({error})") from error
