"""What is measured of one utterance: features, silence, clipping, tokens."""

import errno
import inspect
import io
import platform
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from uttershard.pipeline.errors import ConfigError, DataError, StorageError, UttershardError
from uttershard.pipeline.reading.convert import to_float32
from uttershard.pipeline.reading.tokenizer import parse_tokenizer

from ..cluster.tasks import ElsewhereError
from .settings import StatsSettings, is_function, load_function

FeatureFunction = Callable[[NDArray[np.float32], int], NDArray[Any]]
"""Audio float32 [n] and its rate in, features [frames, D] out."""

TokenFunction = Callable[[str], int]
"""Text in, number of tokens out."""

_Result = TypeVar("_Result")

_FRAMES_PER_SECOND = 100

_MISUSES = frozenset({errno.EBADF, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR, errno.ENOTTY, errno.ESPIPE})
"""Errors that say what was done, and not that something is away: they come again however long one waits."""


def feature_function(settings: StatsSettings) -> FeatureFunction:
    """Return what computes features; torch is imported here, on the worker.

    Raises:
        ConfigError: An option that the transform does not have, or no such function.
    """
    if settings.features == "none":
        return lambda audio, sample_rate: np.zeros((0, 0), np.float32)
    if is_function(settings.features):
        own, name = load_function(settings.features), settings.features
        # Writable whatever the codec: samples may lie in the bytes that were read, and a function may work in place.
        return lambda audio, sample_rate: _call(
            lambda: _checked(own(np.require(audio, requirements="W"), sample_rate), name), name
        )
    import torch

    # One thread: sums come out the same whatever the machine, and workers are as many as there are cores.
    torch.set_num_threads(1)
    transform = make_transform(settings)

    def compute(audio: NDArray[np.float32], sample_rate: int) -> NDArray[Any]:
        with torch.inference_mode():
            # Alone and not in a batch, so that the numbers depend on nothing but the utterance.
            batch = torch.from_numpy(np.require(audio, requirements=["C", "W"]))[None]  # torch wants it writable
            features, lengths = transform(batch, torch.tensor([len(audio)]))
            values: NDArray[Any] = features[0, : int(lengths[0])].numpy()
            return values

    return compute


def make_transform(settings: StatsSettings) -> Any:
    """Return the Fbank or LogMel of the settings; imports torch.

    Raises:
        ConfigError: An option that it does not have, or a value that does not fit.
    """
    from uttershard.pipeline.features import Fbank, LogMel

    transform: Any = {"fbank": Fbank, "log_mel": LogMel}[settings.features]
    known = [name for name in inspect.signature(transform).parameters if name != "sample_rate"]
    unknown = [name for name in settings.feature_options if name not in known]
    if unknown:
        raise ConfigError(f"{settings.features} has no option {unknown[0]!r}; it has {', '.join(known)}")
    return transform(sample_rate=settings.sample_rate, **settings.feature_options)


def token_function(settings: StatsSettings) -> TokenFunction | None:
    """Return what counts tokens, or None if nothing was asked for.

    Raises:
        ConfigError: SentencePiece is not installed, or the model is none.
    """
    if settings.tokenizer is None:
        return None
    if is_function(settings.tokenizer):
        # As the loader takes it: of a Hugging Face tokenizer the method `encode`, since what a call gives is a dict.
        own, name = parse_tokenizer(load_function(settings.tokenizer)), settings.tokenizer
        return lambda text: _call(lambda: _count_tokens(own(text), name), name)
    try:
        import sentencepiece
    except ImportError as error:
        raise ConfigError("counting tokens needs SentencePiece: pip install 'uttershard[tokens]'") from error
    try:
        model = sentencepiece.SentencePieceProcessor(model_file=settings.tokenizer)
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"{settings.tokenizer}: no SentencePiece model ({error}); any other tokenizer is given by a function of "
            "yours, module:function"
        ) from error
    return lambda text: len(model.encode(text))


def count_clipped(samples: NDArray[Any], full_scale: float) -> int:
    """Return how many samples are at full scale, or beyond it.

    Args:
        samples: int16 or float32, of any shape.
        full_scale: Largest sample of the format (`codecs.full_scale`). Its negative counts as well, though most formats
            go one step further there: programs that scale by 32767 clip at -32767.
    """
    # Exact: full scales are multiples of 2**-15.
    end = np.int16(full_scale * 32768) if samples.dtype == np.int16 else np.float32(full_scale)
    return int(np.count_nonzero((samples >= end) | (samples <= -end)))


def count_silent(samples: NDArray[Any], sample_rate: int, silence_dbfs: float) -> tuple[int, int]:
    """Return how many 10 ms frames are silent, and how many there are; [n] or [n, channels].

    An utterance shorter than a frame is one.
    """
    size = min(len(samples), max(1, sample_rate // _FRAMES_PER_SECOND))
    frames = len(samples) // size if size else 0
    if not frames:
        return 0, 0
    power = np.square(to_float32(samples[: frames * size]).reshape(frames, -1), dtype=np.float64).mean(axis=1)
    return int(np.count_nonzero(power < 10 ** (silence_dbfs / 10))), frames


def _call(call: Callable[[], _Result], name: str) -> _Result:
    """Call a function of the user's; what it raises is told as its error and not as ours."""
    try:
        return call()
    except UttershardError:
        raise
    except BaseException as error:  # noqa: BLE001 (also sys.exit: tasks run in threads, where nothing else stops them)
        kind = _kind_of(error)
        problem = kind(_told(name, error) + (f" on {platform.node()}" if kind is ElsewhereError else ""))
    # Out here, so that the error does not carry the user's along: that may be none that can be unpickled.
    raise problem


def _kind_of(error: BaseException) -> type[UttershardError]:
    """Tell what is wrong with a function from what is wrong with its host, and both from what may pass."""
    if isinstance(error, MemoryError):
        return StorageError
    if isinstance(error, ImportError) or (isinstance(error, FileNotFoundError) and _folder_is_there(error.filename)):
        return ElsewhereError
    if not isinstance(error, OSError) or isinstance(error, io.UnsupportedOperation) or error.errno in _MISUSES:
        return DataError
    # Also where the words are a library's: os.path.exists, which it may have asked, is False of what is away.
    return StorageError


def _folder_is_there(name: object) -> bool:
    """Say whether a file is missed in a folder that is there, so that no file server is away."""
    return isinstance(name, str) and bool(name) and Path(name).absolute().parent.is_dir()


def _told(name: str, error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{name} raised {type(error).__name__}: {error} ({frames[-1].filename}:{frames[-1].lineno})"


def _count_tokens(tokens: Any, name: str) -> int:
    """Return how many there are, and refuse what has a length that is none of tokens (letters, keys, rows)."""
    if isinstance(tokens, str | bytes | Mapping) or getattr(tokens, "ndim", 1) != 1 or not hasattr(tokens, "__len__"):
        shape = f" of shape {tokens.shape}" if hasattr(tokens, "shape") else ""
        raise DataError(f"{name} returned {type(tokens).__name__}{shape}; expected a list of tokens")
    return len(tokens)


def _checked(features: Any, name: str) -> NDArray[Any]:
    values: NDArray[Any] = np.asarray(features)
    if values.ndim != 2 or not values.shape[1] or values.dtype.kind not in "fiub":
        raise DataError(
            f"{name} returned {type(features).__name__}, as an array {values.dtype} of shape {values.shape}; expected "
            "numbers, [frames, dimensions]"
        )
    return values
