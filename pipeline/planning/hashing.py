"""Randomness of a plan and of augmentation: integers mixed by splitmix64, never a library's stream.

The hash of an utterance depends on (seed, epoch, ordinal) and a stream tag only, so that a plan is the same on
every machine, with every library version, and for every order in which it is computed. The finaliser and its
constants are those of Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1

CHUNK = 1 << 16
"""Elements worked on at a time by functions over whole columns: temporaries stay in the processor's cache."""


class Stream(IntEnum):
    """What a hash decides; two decisions never share a stream. The numbers are part of every plan: never renumber."""

    UTTERANCES = 1
    STEPS = 2
    DROPPED_BATCHES = 3
    FILLER_BATCHES = 4
    SPEED = 5
    MAP_UTTERANCE = 6
    SPEC_AUGMENT = 7
    NOISE = 8
    REVERBERATION = 9
    WINDOWS = 10
    REPEATS = 11
    DEVICE_SPEED = 12


def mix(value: int) -> int:
    """Return the splitmix64 output for one state."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK
    return value ^ (value >> 31)


def stream_key(stream: Stream, seed: int, epoch: int, *more: int) -> int:
    """Return the 64-bit key of one stream of hashes; every argument changes all of it."""
    key = mix(int(stream))
    for part in (seed, epoch, *more):
        key = mix(key ^ (part & _MASK))
    return key


def stage_salt(stage: int) -> tuple[int, ...]:
    """Return what `stream_key` takes besides, once the rest of an epoch has been dealt anew; nothing before."""
    return (stage,) if stage else ()


def hash_ordinals(key: int, ordinals: NDArray[np.int64], out: NDArray[np.uint64] | None = None) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each ordinal in the stream of `key`.

    Args:
        key: from `stream_key`.
        ordinals: int64[n], not negative.
        out: uint64[n] to write to; saves the allocation where the caller works in chunks.
    """
    if out is None:
        out = np.empty(ordinals.shape, np.uint64)
    np.multiply(ordinals.view(np.uint64), np.uint64(_GOLDEN), out=out)
    out += np.uint64((key + _GOLDEN) & _MASK)
    shifted = out >> np.uint64(30)
    out ^= shifted
    out *= np.uint64(_MIX_1)
    np.right_shift(out, np.uint64(27), out=shifted)
    out ^= shifted
    out *= np.uint64(_MIX_2)
    np.right_shift(out, np.uint64(31), out=shifted)
    out ^= shifted
    return out


def hash_keys(key: int, utterance_ids: Sequence[str]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each utterance id in the stream of `key`.

    For what must not depend on where an utterance lies in a dataset, in a batch, or on which rank (augmentation).

    Args:
        key: from `stream_key`.
        utterance_ids: ids as written when packing.
    """
    digests = b"".join(blake2b(name.encode("utf-8"), digest_size=8).digest() for name in utterance_ids)
    return hash_ordinals(key, np.frombuffer(digests, "<i8").astype(np.int64))
