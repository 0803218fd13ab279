"""Lists of files in one word: `{0000..0999}`, `{a,b}`, `*`, and NeMo's `_OP_0..7_CL_`, locally or in a store."""

import glob
import itertools
import os
import posixpath
import re
from collections.abc import Iterator

from uttershard.pipeline.dataset.files import local_path
from uttershard.pipeline.errors import ConfigError, StorageError

from .source_store import open_filesystem

_BRACES = re.compile(r"\{([^{}]*)\}")
_NEMO_BRACES = re.compile(r"_OP_(\d+\.\.\d+)_CL_")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MOST = 10_000_000


def expand_braces(pattern: str) -> list[str]:
    """Expand braces as shells do; a range keeps its zeros.

    Example:
        >>> expand_braces("train-{08..10}.tar")
        ['train-08.tar', 'train-09.tar', 'train-10.tar']
        >>> expand_braces("audio__OP_0..1_CL_.tar")
        ['audio_0.tar', 'audio_1.tar']
    """
    # NeMo spells the braces so that no shell touches them; the underscore after the name is its own.
    pattern = _NEMO_BRACES.sub(r"{\1}", pattern)
    pieces = _BRACES.split(pattern)
    choices = [[piece] if number % 2 == 0 else _choices(piece) for number, piece in enumerate(pieces)]
    return ["".join(parts) for parts in itertools.product(*choices)]


def expand(patterns: list[str]) -> list[str]:
    """Expand braces, then `*` and `?` against what is there, in sorted order.

    Raises:
        ConfigError: Nothing matches.
        StorageError: A store can't be asked.
    """
    found = [address for pattern in patterns for one in expand_braces(pattern) for address in _matches(one)]
    if not found:
        raise ConfigError(f"nothing matches {', '.join(patterns)}")
    return found


def has_pattern(address: str) -> bool:
    """Say whether an address stands for several."""
    return expand_braces(address) != [address] or glob.has_magic(address)


def shard_number(address: str) -> int | None:
    """Return the number at the end of a shard's name.

    Example:
        >>> shard_number("/data/audio_12.tar"), shard_number("cuts.000003.jsonl.gz")
        (12, 3)
    """
    numbers = re.findall(r"\d+", posixpath.basename(address).partition(".tar")[0].partition(".json")[0])
    return int(numbers[-1]) if numbers else None


def _choices(piece: str) -> list[str]:
    match = _RANGE.fullmatch(piece)
    if match is None:
        return piece.split(",")
    first, last = int(match[1]), int(match[2])
    if abs(last - first) >= _MOST:
        raise ConfigError(f"{{{piece}}} names more than {_MOST} files")
    width = len(match[1]) if match[1].startswith("0") else 0
    step = 1 if last >= first else -1
    return [f"{number:0{width}d}" for number in range(first, last + step, step)]


def _matches(address: str) -> Iterator[str]:
    path = local_path(address)
    if not glob.has_magic(address) or (path is not None and os.path.exists(path)):  # noqa: PTH110
        yield address
        return
    if path is not None:
        yield from sorted(glob.glob(path))  # noqa: PTH207
        return
    try:
        filesystem, inner = open_filesystem(address)
        yield from sorted(filesystem.unstrip_protocol(name) for name in filesystem.glob(inner))
    except OSError as error:
        raise StorageError(f"{address}: can't be listed ({type(error).__name__}: {error})") from error
