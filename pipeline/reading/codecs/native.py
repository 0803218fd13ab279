"""miniaudio's C library, or None on platforms without its wheel; its calls release the interpreter lock."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    import miniaudio
except ImportError:
    miniaudio = None

ffi: Any = miniaudio and miniaudio.ffi
lib: Any = miniaudio and miniaudio.lib


def pointer(c_type: str, samples: NDArray[np.int16] | NDArray[np.float32]) -> Any:
    """The memory of a C-contiguous array as a C pointer; it keeps the array alive."""
    return ffi.from_buffer(c_type, samples)
