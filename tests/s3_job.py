"""A job of its own that streams a dataset: `python s3_job.py '{"dataset": …, "epochs": 1, "settings": {…}}'`.

Prints one JSON object a finished epoch: a digest of all that was seen, the storage's counts, and what was logged.
"""

from __future__ import annotations

import json
import logging
import sys

import xxhash
from packed import BINS, run
from uttershard.pipeline import ShardLoader


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def digest(loader: ShardLoader, epoch: int) -> str:
    """Return a digest of an epoch as the trainer sees it."""
    return xxhash.xxh3_64_hexdigest(repr(list(run(loader, epoch))).encode())


def main() -> None:
    """Run the job."""
    job = json.loads(sys.argv[1])
    log = _Lines()
    logging.getLogger("uttershard").addHandler(log)
    loader = ShardLoader(job["dataset"], **{"rank": 0, "world_size": 1, "batch_bins": BINS, **job["settings"]})
    for epoch in range(job["epochs"]):
        seen = digest(loader, epoch)
        print(
            json.dumps({"digest": seen, "storage": loader.metrics()["epoch"]["storage"], "log": log.lines}), flush=True
        )


if __name__ == "__main__":
    main()
