"""Ctrl-C where Python would lose it: it is put off for some hundredths of a second, until it is elsewhere.

Raised in the middle of an import, KeyboardInterrupt may leave the lock of all imports held for ever, so that other
threads stand still, or vanish in an extension module that clears it away. Raised where Dask counts garbage collections,
it is printed and forgotten.
"""

import contextlib
import inspect
import os
import signal
import threading
import traceback
from collections.abc import Iterator
from types import FrameType

from distributed import gc as dask_gc

_AGAIN_SECONDS = 0.05
_PLACES = frozenset(("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>", dask_gc.__file__))
"""Files of the code in which an interrupt would be lost."""


@contextlib.contextmanager
def kept_interrupts() -> Iterator[None]:
    """Put off SIGINT, and SIGTERM if it has a handler, where it would be lost; does nothing in other threads."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    above = _count_places(inspect.currentframe())  # all of this may be called by a module that is being imported
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in before.items() if callable(handler)}

    def handle(number: int, frame: FrameType | None) -> None:
        if _count_places(frame) > above:
            again = threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
        else:
            handlers[signal.Signals(number)](number, frame)

    for number in handlers:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _count_places(frame: FrameType | None) -> int:
    """Count the calls, up from a frame, in which an interrupt would be lost."""
    if frame is None:
        return 0
    return sum(each.f_code.co_filename in _PLACES for each, _ in traceback.walk_stack(frame))
