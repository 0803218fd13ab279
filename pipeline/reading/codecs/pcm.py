"""Uncompressed samples of any kind as arrays: what WAV, AIFF and SPHERE hold.

16-bit integers stay int16; all else becomes float32, scaled like soundfile (full scale is 1).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .base import Depth, Exact


def from_integers(raw: NDArray[np.uint8], width: int, *, big_endian: bool) -> NDArray[Any]:
    """Samples of signed integers of 1 to 4 bytes; 16-bit little-endian ones are a view of `raw`."""
    order = ">" if big_endian else "<"
    if width == 1:
        return raw.view(np.int8).astype(np.float32) * np.float32(2**-7)
    if width == 2:
        return raw.view(f"{order}i2").astype(np.int16, copy=False)
    if width == 3:
        wide = np.zeros((len(raw) // 3, 4), np.uint8)
        # The lowest byte stays zero, on whichever side that is.
        wide[:, slice(0, 3) if big_endian else slice(1, 4)] = raw.reshape(-1, 3)
        raw = wide.reshape(-1)
    return raw.view(f"{order}i4").astype(np.float32) * np.float32(2**-31)


def exact(raw: NDArray[np.uint8], depth: Depth, *, big_endian: bool) -> Exact:
    """Samples of depth PCM_32 or DOUBLE as they are; float32 holds 24 bits of them."""
    kind = "i4" if depth == "PCM_32" else "f8"
    return raw.view(f"{'>' if big_endian else '<'}{kind}").astype(kind, copy=False)


def depth_of_integers(width: int) -> Depth:
    """What keeps all that integers of so many bytes hold."""
    return "PCM_32" if width == 4 else "PCM_24" if width == 3 else "PCM_16"


def depth_of_floats(width: int) -> Depth:
    """What keeps all that floats of so many bytes hold."""
    return "DOUBLE" if width == 8 else "FLOAT"


def from_floats(raw: NDArray[np.uint8], width: int, *, big_endian: bool) -> NDArray[np.float32]:
    """Samples of floats of 4 or 8 bytes."""
    return raw.view(f"{'>' if big_endian else '<'}f{width}").astype(np.float32, copy=False)


def full_scale_of_integers(bits: int) -> float:
    """Largest sample of signed integers of so many bits; that of 16 bits for more."""
    return float(1 - 2.0 ** (1 - min(bits, 16)))


def _mulaw_table() -> NDArray[np.float32]:
    """ITU-T G.711 mu-law: sign, three bits of exponent, four of mantissa, all inverted; bias 0x84."""
    code = ~np.arange(256, dtype=np.int32) & 0xFF
    magnitude = (((code & 0x0F) << 3) + 0x84 << ((code & 0x70) >> 4)) - 0x84
    return (np.where(code & 0x80, -magnitude, magnitude) / 32768).astype(np.float32)


def _alaw_table() -> NDArray[np.float32]:
    """ITU-T G.711 A-law: as mu-law, but every second bit inverted and the lowest segment linear."""
    code = np.arange(256, dtype=np.int32) ^ 0x55
    exponent = (code & 0x70) >> 4
    step = ((code & 0x0F) << 4) + 8
    magnitude = np.where(exponent == 0, step, step + 0x100 << np.maximum(exponent - 1, 0))
    return (np.where(code & 0x80, magnitude, -magnitude) / 32768).astype(np.float32)


MULAW = _mulaw_table()
"""Sample of each mu-law byte."""

ALAW = _alaw_table()
"""Sample of each A-law byte."""

LARGEST_MULAW, LARGEST_ALAW = float(MULAW.max()), float(ALAW.max())
