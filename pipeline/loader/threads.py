"""Decode batches in threads of the training process, some ahead, in order."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

from ..errors import UttershardError
from ..reading.batch import Batch
from ..reading.spans import BatchSpec


def decode_in_threads(
    specs: Iterator[BatchSpec], decode: Callable[[BatchSpec], Batch], *, threads: int, ahead: int, timeout: float
) -> Iterator[Batch]:
    """Yield the batch of each spec, in order; an error in a thread is raised here in place of its batch.

    Args:
        specs: What to decode.
        decode: Makes a batch; called in `threads` threads at once.
        threads: How many.
        ahead: Batches that are decoded or wait, at most.
        timeout: Seconds to wait for one batch.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="uttershard-decode")
    stuck = False
    try:
        pending: deque[Future[Batch]] = deque(pool.submit(decode, spec) for spec in islice(specs, ahead))
        while pending:
            try:
                batch = pending.popleft().result(timeout)
            except TimeoutError as error:
                stuck = True
                raise UttershardError(
                    f"no batch within {timeout:g} s: the disk does not answer, or timeout= is too short for this data"
                ) from error
            pending.extend(pool.submit(decode, spec) for spec in islice(specs, 1))
            yield batch
    finally:
        pool.shutdown(wait=not stuck, cancel_futures=True)
