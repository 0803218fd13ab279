"""What the process that decodes a batch is told about the batches it gets next, so that their bytes come meanwhile.

Batches are dealt to `lanes` decoders in turn: worker processes, or one lane for all threads. A spec carries the spans
of specs that have come into sight of its lane, as far ahead as the storage wants to know, in groups that are best read
together: the first batch, so that it comes soon; then all of a window, whose spans are neighbours, or half of what is
in sight if that is less.

    lane 0   spec 0 ([0], [2, 4, 6])   spec 2 ()   spec 4 ()   spec 6 ([8, 10, 12]) …
    lane 1   spec 1 ([1], [3, 5, 7])   spec 3 ()   spec 5 ()   spec 7 ([9, 11, 13]) …

The first spec of a window carries the shards of that window and the next, too.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from ..reading.spans import Ahead, BatchSpec
from ..storage.base import Spans, Storage

ShardsFrom = Callable[[int], tuple[int, tuple[int, ...]]]
"""Of a step: the number of its window, and the shards of that window and then of the next."""


@dataclass
class _Lane:
    """What one decoder has been told, and what not."""

    ahead_bytes: int = 0
    """Of the batches in sight that it has not been given."""
    window: int = -1
    """Of the batch that it was given last."""
    open: list[tuple[int, Spans]] = field(default_factory=list)
    """Windows and spans of the group that is growing."""
    closed: list[Spans] = field(default_factory=list)
    """Groups to tell with the next batch."""

    def add(self, window: int, spans: Spans, group_bytes: int) -> None:
        """See one more batch."""
        if self.open and self.open[0][0] != window:
            self.close()
        self.open.append((window, spans))
        self.ahead_bytes += _nbytes(spans)
        if sum(_nbytes(part) for _, part in self.open) >= group_bytes:
            self.close()

    def close(self) -> None:
        """End the group."""
        if self.open:
            self.closed.append(Spans.join([spans for _, spans in self.open]))
            self.open = []

    def give(self, spec: BatchSpec, window: int, shards: tuple[int, ...]) -> BatchSpec:
        """Give it a batch, and with it what it was not told."""
        if any(spans is spec.spans for _, spans in self.open):
            self.close()
        ahead = Ahead(tuple(self.closed), None if window == self.window else shards, first=self.window == -1)
        self.closed, self.window = [], window
        self.ahead_bytes -= _nbytes(spec.spans)
        return replace(spec, ahead=ahead)


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
    waiting: deque[tuple[BatchSpec, int, tuple[int, ...]]] = deque()
    told = [_Lane() for _ in range(lanes)]
    pulled = given = 0
    source = iter(specs)
    while True:
        while (lane := told[pulled % lanes]).ahead_bytes < lookahead_bytes or pulled == given:
            spec = next(source, None)
            if spec is None:
                for lane in told:
                    lane.close()
                break
            waiting.append((spec, *shards_from(spec.step)))
            lane.add(waiting[-1][1], spec.spans, 0 if pulled < lanes else lookahead_bytes // 2)
            pulled += 1
        if not waiting:
            return
        yield told[given % lanes].give(*waiting.popleft())
        given += 1


def announce(storage: Storage, ahead: Ahead | None) -> None:
    """Tell the storage of this process."""
    if ahead is None:
        return
    if ahead.first:
        storage.forget()
    if ahead.shards is not None:
        storage.begin(ahead.shards)
    for group in ahead.groups:
        storage.will_need(group)


def _nbytes(spans: Spans) -> int:
    return int(spans.nbytes.sum())
