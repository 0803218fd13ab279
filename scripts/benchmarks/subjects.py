"""Everything that is measured, by name; run as a module, it measures one of them in this process and prints JSON.

    python -m uttershard.scripts.benchmarks.subjects '{"subject": "flac: ours, 2 threads", ...}'
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

Measure = Callable[..., Any]


def _reading(codec: str) -> dict[str, Measure]:
    from .limits import bare_decode, least_copy
    from .peer import webdataset_buckets
    from .reading import ours

    limits: dict[str, Measure] = {
        "flac": {
            "bare decode, 1 process": partial(bare_decode, processes=1),
            "bare decode, 2 processes": partial(bare_decode, processes=2),
        },
        "wav": {"least copy, 1 process": least_copy},
    }[codec]
    return {
        **limits,
        "webdataset, 1 worker": partial(webdataset_buckets, num_workers=1),
        "webdataset, 2 workers": partial(webdataset_buckets, num_workers=2),
        "ours, 1 thread": partial(ours, threads=1),
        "ours, 2 threads": partial(ours, threads=2),
        "ours, 1 worker": partial(ours, num_workers=1),
        "ours, 2 workers": partial(ours, num_workers=2),
    }
