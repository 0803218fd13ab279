"""Decode batches in threads of the training process, some ahead, in order."""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import islice

from ..errors import UttershardError
from ..reading.batch import Batch
from ..reading.spans import BatchSpec


def decode_in_threads(
    specs: Iterator[BatchSpec], decode: Callable[[BatchSpec], Batch], *, threads: int, ahead: int, timeout: float
) -> Generator[Batch]:
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
            future = pending.popleft()
            # Not result(timeout): the decoder may have a TimeoutError of its own, from a file system.
            stuck = not wait([future], timeout).done
            if stuck:
                raise UttershardError(
                    f"no batch within {timeout:g} s: the disk does not answer, or timeout= is too short for this data"
                )
            batch = future.result()
            pending.extend(pool.submit(decode, spec) for spec in islice(specs, 1))
            yield batch
    finally:
        pool.shutdown(wait=not stuck, cancel_futures=True)
