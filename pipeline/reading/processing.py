"""What is done to utterances where they are decoded: the user's function, tokens, and leaving out bad ones."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..planning.hashing import Stream, hash_keys, stream_key
from ..planning.settings import parse_int
from .tokenizer import Tokenize, parse_tokenizer

OnError = Literal["raise", "skip"]

DEFAULT_MAX_SKIPPED = 100
"""Enough for the odd damaged file; a dataset that has more should be looked at."""


@dataclass
class Utterance:
    """What `map_utterance` is given, and returns, changed or not.

    Attributes:
        key: Its id.
        samples: float32 in [-1, 1), [n], or [n, C] for more than one channel; at the loader's rate and channels.
            May be changed in place, or replaced by float32, float64 or int16 of any length.
        sample_rate: Hz.
        text: Transcript, or None; tokens are made of what the function leaves here.
        meta: Metadata.
        epoch: Of the batch.
        rng: Random numbers for this utterance in this epoch: the same on any rank, in any worker, in any order.
    """

    key: str
    samples: NDArray[Any]
    sample_rate: int
    text: str | None
    meta: dict[str, Any]
    epoch: int
    rng: np.random.Generator


MapUtterance = Callable[[Utterance], Utterance]


@dataclass(frozen=True)
class Processing:
    """What is done to each utterance, besides decoding.

    Attributes:
        map_utterance: Called with each Utterance in the thread or process that decodes it.
        tokenizer: Makes `batch.tokens` of the transcripts; see `parse_tokenizer` for what it may be.
        token_pad: Stands after the last token of an utterance; 0 by default.
        on_error: "raise" stops at the first bad utterance, "skip" leaves it out of its batch.
        max_skipped: Most utterances left out since the loader was made; one more is an error.
        seed: Of the random numbers that map_utterance gets.
    """

    map_utterance: MapUtterance | None = None
    tokenizer: Any = None
    token_pad: int | None = None
    on_error: OnError = "raise"
    max_skipped: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.map_utterance is not None and not callable(self.map_utterance):
            raise ConfigError(f"map_utterance={self.map_utterance!r}: give a function from Utterance to Utterance")
        if self.token_pad is not None:
            if self.tokenizer is None:
                raise ConfigError(f"token_pad={self.token_pad!r} has no meaning without tokenizer=: leave it out")
            if not isinstance(self.token_pad, int) or isinstance(self.token_pad, bool):
                raise ConfigError(f"token_pad={self.token_pad!r}: give a whole number")
        if self.on_error not in get_args(OnError):
            raise ConfigError(f"on_error={self.on_error!r}: choose 'raise' or 'skip'")
        if self.max_skipped is not None:
            if self.on_error != "skip":
                raise ConfigError(
                    f"max_skipped={self.max_skipped!r} has no meaning with on_error={self.on_error!r}, which stops at "
                    "the first bad utterance: leave it out, or set on_error='skip'"
                )
            parse_int("max_skipped", self.max_skipped, 1)
        if self.tokenizer is not None:
            object.__setattr__(self, "tokenizer", parse_tokenizer(self.tokenizer))

    @property
    def skips(self) -> bool:
        """Whether bad utterances are left out."""
        return self.on_error == "skip"

    @property
    def skip_limit(self) -> int:
        """Most utterances that may be left out."""
        if not self.skips:
            return 0
        return DEFAULT_MAX_SKIPPED if self.max_skipped is None else self.max_skipped

    @property
    def tokenize(self) -> Tokenize | None:
        """The tokenizer as a function."""
        tokenize: Tokenize | None = self.tokenizer
        return tokenize

    @property
    def does_nothing(self) -> bool:
        """Whether decoding is all there is to do."""
        return self.map_utterance is None and self.tokenizer is None and not self.skips

    def random(self, key: str, epoch: int) -> np.random.Generator:
        """Return the random numbers of an utterance in an epoch."""
        seed = hash_keys(stream_key(Stream.MAP_UTTERANCE, self.seed, epoch), [key])
        return np.random.Generator(np.random.PCG64(int(seed[0])))
