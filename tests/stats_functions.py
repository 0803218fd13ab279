"""Features and a tokenizer of a user's own, importable on workers by `stats_functions:<name>`."""

import errno
import importlib
import os
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray


def powers(audio: NDArray[np.float32], sample_rate: int) -> NDArray[Any]:
    """Log power and zero crossings of 10 ms frames, and a constant far from zero, [frames, 3]."""
    size = sample_rate // 100
    frames = audio[: len(audio) // size * size].reshape(-1, size).astype(np.float64)
    power = np.log(np.square(frames).mean(axis=1) + 1e-10)
    crossings = (np.diff(np.signbit(frames), axis=1) != 0).mean(axis=1)
    return np.stack([power, crossings, 1e6 + power], axis=1)


def shaky(audio: NDArray[np.float32], sample_rate: int) -> NDArray[Any]:
    """Return one dimension more for long utterances."""
    return np.zeros((4, 2 + (len(audio) > sample_rate)))


def broken(audio: NDArray[np.float32], sample_rate: int) -> NDArray[Any]:
    """Raise, as a function with a bug does."""
    raise ValueError(f"cannot take {sample_rate} Hz")


def leaves(audio: NDArray[np.float32], sample_rate: int) -> NDArray[Any]:
    """End the program, as scripts do."""
    sys.exit(3)


def ends_worker(audio: NDArray[np.float32], sample_rate: int) -> NDArray[Any]:
    """End the process without a word at one utterance of noise, as a crash in native code does."""
    if len(audio) > sample_rate:
        os._exit(1)
    return np.zeros((1, 1))


def lacks_a_package(audio: NDArray[np.float32], sample_rate: int) -> NDArray[Any]:
    """Need what is not installed on every worker."""
    importlib.import_module("no_package_of_this_name")
    return np.zeros((1, 1))


def lacks_a_file(audio: NDArray[np.float32], sample_rate: int) -> NDArray[Any]:
    """Need a file that is not on every host."""
    with open(os.path.join(os.path.dirname(__file__), "no_file_of_this_name")) as file:  # noqa: PTH118, PTH120, PTH123
        return np.loadtxt(file, ndmin=2)


def opens_a_folder(audio: NDArray[np.float32], sample_rate: int) -> NDArray[Any]:
    """Take a folder for a file."""
    with open(os.path.dirname(__file__)) as file:  # noqa: PTH120, PTH123
        return np.loadtxt(file, ndmin=2)


def complains(audio: NDArray[np.float32], sample_rate: int) -> NDArray[Any]:
    """Raise what systems raise, with words of its own."""
    raise OSError("the model is not there")


def server_away(audio: NDArray[np.float32], sample_rate: int) -> NDArray[Any]:
    """Read from a file server that is away."""
    raise OSError(errno.EIO, "Input/output error")


def ragged(audio: NDArray[np.float32], sample_rate: int) -> list[list[int]]:
    """Return what is no array."""
    return [[1, 2], [3]]


def words(audio: NDArray[np.float32], sample_rate: int) -> NDArray[Any]:
    """Return no numbers."""
    return np.array([["loud", "soft"]])


def complex_ones(audio: NDArray[np.float32], sample_rate: int) -> NDArray[Any]:
    """Return a spectrum and not its power."""
    return np.ones((2, 2), np.complex128)


def large(audio: NDArray[np.float32], sample_rate: int) -> NDArray[Any]:
    """Return numbers whose squares are none."""
    return np.array([[1e300], [-1e300]])


def in_place(audio: NDArray[np.float32], sample_rate: int) -> NDArray[Any]:
    """Work on the samples themselves."""
    audio *= 2
    return audio[:2].reshape(-1, 1)


def characters(text: str) -> list[str]:
    """Return a token a character."""
    return list(text)


def text_itself(text: str) -> str:
    """Return the text, of which each letter would count."""
    return text


def as_a_dict(text: str) -> dict[str, list[int]]:
    """Return what a Hugging Face tokenizer returns when it is called."""
    return {"input_ids": list(range(len(text))), "attention_mask": [1] * len(text)}


def as_a_batch(text: str) -> NDArray[Any]:
    """Return a batch of one."""
    return np.zeros((1, len(text)), np.int64)


class Letters:
    """A tokenizer as Hugging Face has them: called it gives a dict, `encode` the tokens."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        """Return two lists by name."""
        return as_a_dict(text)

    def encode(self, text: str) -> list[int]:
        """Return the tokens."""
        return list(range(len(text)))


letters = Letters()


def syllables(text: str) -> list[str]:
    """Return a token for two characters."""
    return [text[begin : begin + 2] for begin in range(0, len(text), 2)]
