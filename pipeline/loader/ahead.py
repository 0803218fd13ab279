"""What the process that decodes a batch is told about the batches it gets next, so that their bytes come meanwhile.

Batches are dealt to `lanes` decoders in turn: worker processes, or one lane for all threads. A spec carries the spans
of the specs that came into sight of its lane since the last one, as far ahead as the storage wants to know:

    lane 0   spec 0 (spans of 0, 2, 4)   spec 2 (spans of 6)   spec 4 (spans of 8) …
    lane 1   spec 1 (spans of 1, 3, 5)   spec 3 (spans of 7)   spec 5 (spans of 9) …

The first spec of a window carries the shards of that window and the next, too.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from ..reading.spans import Ahead, BatchSpec
from ..storage.base import Spans, Storage

ShardsFrom = Callable[[int], tuple[int, tuple[int, ...]]]
"""Of a step: the number of its window, and the shards of that window and then of the next."""


def look_ahead(
    specs: Iterator[BatchSpec], *, lanes: int, lookahead_bytes: int, shards_from: ShardsFrom
) -> Iterator[BatchSpec]:
    """Pass specs on, each with what its lane should know.

    Args:
        specs: All specs of an iteration, in order.
        lanes: Number of decoders that take them in turn.
        lookahead_bytes: How far ahead each of them is told.
        shards_from: What each step's window reads.
    """
    waiting: deque[BatchSpec] = deque()
    ahead_bytes, unsaid, windows = [0] * lanes, [list[Spans]() for _ in range(lanes)], [-1] * lanes
    pulled = given = 0
    source = iter(specs)
    while True:
        while ahead_bytes[pulled % lanes] < lookahead_bytes or pulled == given:
            spec = next(source, None)
            if spec is None:
                break
            lane, pulled = pulled % lanes, pulled + 1
            waiting.append(spec)
            ahead_bytes[lane] += int(spec.spans.nbytes.sum())
            unsaid[lane].append(spec.spans)
        if not waiting:
            return
        spec, lane = waiting.popleft(), given % lanes
        given += 1
        window, shards = shards_from(spec.step)
        first, windows[lane] = windows[lane], window
        yield replace(
            spec,
            ahead=Ahead(
                spans=tuple(unsaid[lane]),
                shards=None if first == window else shards,
                first=first == -1,
            ),
        )
        unsaid[lane] = []
        ahead_bytes[lane] -= int(spec.spans.nbytes.sum())


def announce(storage: Storage, ahead: Ahead | None) -> None:
    """Tell the storage of this process."""
    if ahead is None:
        return
    if ahead.first:
        storage.forget()
    if ahead.shards is not None:
        storage.begin(ahead.shards)
    # The next batch alone, so that it comes soon; the others at once, so that neighbours among them are read together.
    for spans in (ahead.spans[:1], ahead.spans[1:]):
        if spans:
            storage.will_need(Spans.join(spans))
