"""All that is measured, by name. As a module it measures one of them, in a process where nothing else has run.

python -m uttershard.scripts.benchmarks.subjects "wav: ours, 2 threads" '{"dataset": …, "warm_up_seconds": …}'
"""

import json
import sys
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Reader:
    """Something that reads: a function of this package, imported where it runs, since most bring torch along."""

    module: str
    function: str
    arguments: dict[str, int] = field(default_factory=dict)

    def measure(self, dataset: str, warm_up_seconds: float, seconds: float) -> dict[str, Any]:
        """Measure it in this process."""
        from .reading import Window

        function = getattr(import_module(f".{self.module}", __package__), self.function)
        return asdict(function(Path(dataset), Window(warm_up_seconds, seconds), **self.arguments))


LEAST_COPY = "least copy, 1 process"
LEAST_COPY_IN_TURN = "least copy, 2 buffers in turn"
_ANY_CODEC = {
    "webdataset, 1 worker": Reader("peer", "webdataset_buckets", {"num_workers": 1}),
    "webdataset, 2 workers": Reader("peer", "webdataset_buckets", {"num_workers": 2}),
    "ours, 1 thread": Reader("reading", "ours", {"threads": 1}),
    "ours, 2 threads": Reader("reading", "ours", {"threads": 2}),
    "ours, 1 worker": Reader("reading", "ours", {"num_workers": 1}),
    "ours, 2 workers": Reader("reading", "ours", {"num_workers": 2}),
}
READING = {
    "flac": {
        "bare decode, 1 process": Reader("limits", "bare_decode", {"processes": 1}),
        "bare decode, 2 processes": Reader("limits", "bare_decode", {"processes": 2}),
        **_ANY_CODEC,
    },
    "wav": {
        LEAST_COPY: Reader("limits", "least_copy", {"buffers": 1}),
        LEAST_COPY_IN_TURN: Reader("limits", "least_copy", {"buffers": 2}),
        **_ANY_CODEC,
    },
}
"""What reads, by codec and name."""

PARTS = (*READING, "planning", "padding", "storage", "packing")
"""What can be run by itself."""


def measure(name: str, arguments: dict[str, Any]) -> Any:
    """Measure one subject; `arguments` and the result are JSON values."""
    codec, _, subject = name.partition(": ")
    if codec == "packing":
        from .packing import measure_packing

        return measure_packing(subject, **arguments)
    from .planner import measure_padding, measure_planning
    from .storage import measure_first_batch, measure_storage

    if name == "planning":
        return asdict(measure_planning(**arguments))
    if name == "padding":
        return [asdict(draw) for draw in measure_padding(**arguments)]
    if name == "first batch":
        return measure_first_batch(**arguments)
    if codec == "storage":
        return asdict(measure_storage(subject, **arguments))
    return READING[codec][subject].measure(**arguments)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], json.loads(sys.argv[2]))))
