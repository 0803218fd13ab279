"""The last step of scripts/demo: stream one epoch for one rank as a trainer would, and say what came."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from uttershard.pipeline import ShardLoader, ShardSet
from uttershard.pipeline.errors import ConfigError, UttershardError
from uttershard.pipeline.planning.frames import count_frames


@dataclass(frozen=True)
class EpochReport:
    """What one rank was handed in one epoch, and how fast."""

    device: str
    steps: int
    utterances: int
    hours: float
    padding: float
    fill: float
    lowest_fill: float
    first_batch_seconds: float
    wall_seconds: float
    utterances_per_second: float
    times_real_time: float


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, stream, print; 0 only if the whole epoch came."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", help="address of a packed dataset")
    parser.add_argument("--batch-bins", type=int, default=3000, help="frames a batch may hold, padding included")
    parser.add_argument("--world-size", type=int, default=4)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--epoch", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    arguments = parser.parse_args(argv)
    try:
        report = stream_epoch(
            arguments.dataset,
            arguments.batch_bins,
            rank=arguments.rank,
            world_size=arguments.world_size,
            epoch=arguments.epoch,
            device=arguments.device,
        )
    except UttershardError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(asdict(report)) if arguments.json else describe(report, arguments.rank, arguments.world_size))
    return 0


def stream_epoch(dataset: str, batch_bins: int, *, rank: int, world_size: int, epoch: int, device: str) -> EpochReport:
    """Stream one epoch for one rank, keeping count from the batches themselves."""
    sample_rate = rate_of(dataset)
    loader = ShardLoader(
        dataset, batch_bins=batch_bins, rank=rank, world_size=world_size, total_shards=world_size, device=device, seed=0
    )
    loader.set_epoch(epoch)
    started = time.perf_counter()
    first_batch_seconds = 0.0
    lengths: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
    for batch in loader:
        # A trainer would step here; copying the lengths back waits for the device, so the clock is honest.
        lengths.append(batch.audio_lengths.cpu().numpy().astype(np.int64))
        first_batch_seconds = first_batch_seconds or time.perf_counter() - started
    wall_seconds = time.perf_counter() - started

    frames = [count_frames(samples, sample_rate) for samples in lengths]
    padded = np.array([len(batch) * int(batch.max()) for batch in frames])
    utterances = sum(len(batch) for batch in frames)
    seconds = sum(int(samples.sum()) for samples in lengths) / sample_rate
    return EpochReport(
        device=device,
        steps=len(frames),
        utterances=utterances,
        hours=seconds / 3600,
        padding=1 - sum(int(batch.sum()) for batch in frames) / int(padded.sum()),
        fill=float(padded.mean()) / batch_bins,
        lowest_fill=float(padded.min()) / batch_bins,
        first_batch_seconds=first_batch_seconds,
        wall_seconds=wall_seconds,
        utterances_per_second=utterances / wall_seconds,
        times_real_time=seconds / wall_seconds,
    )


def rate_of(dataset: str) -> int:
    """The one sampling rate of a dataset, from its sidecars."""
    rates = ShardSet.open(dataset).index(["sample_rate"])["sample_rate"].unique().to_pylist()
    if len(rates) != 1:
        raise ConfigError(f"{dataset}: holds the sampling rates {sorted(rates)}, pack it with one: --sample-rate")
    return int(rates[0])


def describe(report: EpochReport, rank: int, world_size: int) -> str:
    """The report as lines for people."""
    rows = {
        "rank": f"{rank} of {world_size}, on {report.device}",
        "steps": f"{report.steps}",
        "utterances": f"{report.utterances}",
        "audio": f"{report.hours:.3f} h",
        "padding": f"{report.padding:.1%}",
        "fill": f"{report.fill:.3f} (lowest {report.lowest_fill:.3f})",
        "first batch": f"{report.first_batch_seconds:.3f} s",
        "speed": f"{report.utterances_per_second:,.0f} utterances/s, {report.times_real_time:,.0f} x real time",
    }
    return "\n".join(f"{name:<12} {value}" for name, value in rows.items())


if __name__ == "__main__":
    sys.exit(main())
