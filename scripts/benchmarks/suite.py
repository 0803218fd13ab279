"""The whole run: which parts, how large, how long; its results as JSON values."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from uttershard.pipeline.errors import ConfigError

from .corpus import SHARDS, make_corpus
from .machine import describe_machine
from .packing import COPY, LIMIT, make_files, packing_subjects
from .rounds import Meter, Spread, measure_apart, measure_in_rounds
from .store_rounds import MEASUREMENTS_A_ROUND, measure_store
from .subjects import LEAST_COPY, LEAST_COPY_IN_TURN, PARTS, READING


@dataclass(frozen=True)
class Suite:
    """What is run.

    Attributes:
        parts: Of `PARTS`.
        data: Folder of the corpus, which is kept.
        speech: Folder of the recordings that it is made of.
        hours: About how much audio.
        rounds: How often everything is measured.
        seconds: How long the clock runs on a stream.
        warm_up_seconds: How long a stream runs before.
        utterances: Sizes of corpora to plan for.
        ranks: Numbers of ranks to plan for.
        padding_utterances: Size of the corpus that padding and fill are looked up for.
        padding_ranks: Numbers of ranks for that.
        padding_seeds: Of the draws of lengths for that.
        packing_hours: About how much audio is packed: so much that starting a job does not count for much.
    """

    parts: tuple[str, ...] = PARTS
    data: Path = Path("bench-data")
    speech: Path = Path("demo/audio")
    hours: float = 6.0
    rounds: int = 3
    seconds: float = 3.0
    warm_up_seconds: float = 2.0
    utterances: tuple[int, ...] = (10_000, 1_000_000, 10_000_000)
    ranks: tuple[int, ...] = (1, 8, 64, 1024)
    padding_utterances: int = 60_000
    padding_ranks: tuple[int, ...] = (1, 8)
    padding_seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    packing_hours: float = 24.0

    def __post_init__(self) -> None:
        unknown = [part for part in self.parts if part not in PARTS]
        if unknown:
            raise ConfigError(f"no part {unknown[0]!r} in the benchmarks: choose of {', '.join(PARTS)}")
        if self.rounds < 1:
            raise ConfigError(f"rounds={self.rounds}: at least 1, and 3 for numbers that mean something")
        for name in ("hours", "seconds", "warm_up_seconds", "packing_hours"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)!r}: must be above 0")

    def run(self) -> dict[str, Any]:
        """Run it; results by part, and what they were measured on."""
        machine = describe_machine()
        reads = any(part in READING or part == "storage" for part in self.parts)
        datasets = make_corpus(self.data, self.speech, self.hours) if reads else {}
        meter = Meter(self._measurements())
        results: dict[str, Any] = {"machine": machine, "settings": self._describe()}
        for part in self.parts:
            if part in READING:
                results[part] = self._read(part, datasets[part], meter)
            elif part == "storage":
                results[part] = measure_store(datasets["wav"], self.data, self.rounds, meter)
            elif part == "planning":
                results[part] = self._plan(meter)
            elif part == "packing":
                results[part] = self._pack(meter)
            else:
                results[part] = self._pad(meter)
        return results

    def _describe(self) -> dict[str, Any]:
        paths = ("data", "speech")
        return {**{name: value for name, value in asdict(self).items() if name not in paths}, "shards": SHARDS}

    def _measurements(self) -> int:
        each = {codec: self.rounds * len(subjects) for codec, subjects in READING.items()}
        each["planning"] = len(self.utterances) * len(self.ranks)
        each["padding"] = len(self.padding_ranks)
        each["packing"] = self.rounds * len(packing_subjects())
        each["storage"] = self.rounds * MEASUREMENTS_A_ROUND
        return sum(each[part] for part in self.parts)

    def _read(self, codec: str, dataset: Path, meter: Meter) -> list[dict[str, Any]]:
        names = [f"{codec}: {subject}" for subject in READING[codec]]
        window = {"warm_up_seconds": self.warm_up_seconds, "seconds": self.seconds}
        results = measure_in_rounds(names, {"dataset": str(dataset), **window}, self.rounds, meter)
        speeds = {
            name.partition(": ")[2]: [result["utterances_per_second"] for result in results[name]] for name in names
        }
        return [_summarise(codec, subject, speeds, results[f"{codec}: {subject}"]) for subject in speeds]

    def _plan(self, meter: Meter) -> list[dict[str, Any]]:
        results = []
        for utterances in self.utterances:
            for ranks in self.ranks:
                sizes = {"utterances": utterances, "ranks": ranks, "rounds": self.rounds}
                result = measure_apart("planning", sizes)
                meter.tell(f"planning {utterances:,} utterances, {ranks:,} ranks: {result['epoch_seconds']:.3f} s")
                results.append(result)
        return results

    def _pad(self, meter: Meter) -> list[dict[str, Any]]:
        results = []
        for ranks in self.padding_ranks:
            sizes = {"utterances": self.padding_utterances, "ranks": ranks, "seeds": self.padding_seeds}
            results += measure_apart("padding", sizes)
            meter.tell(f"padding on {ranks} ranks")
        return results

    def _pack(self, meter: Meter) -> list[dict[str, Any]]:
        names = [f"packing: {subject}" for subject in packing_subjects()]
        folder = make_files(self.data, self.speech, self.packing_hours)
        places = {"folder": str(folder), "scratch": str(self.data / "packed")}
        results = measure_in_rounds(names, places, self.rounds, meter)
        rounds = {name.partition(": ")[2]: results[name] for name in names}
        return [_summarise_packing(subject, rounds) for subject in rounds]


def _summarise_packing(subject: str, rounds: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    def spread(name: str, beside: str | None = None) -> dict[str, float] | None:
        values = [result[name] for result in rounds[subject]]
        if beside is not None and subject != beside:
            values = _ratios(values, [result[name] for result in rounds[beside]])
        return asdict(Spread.of(values))

    copies = subject != LIMIT
    return {
        "subject": subject,
        "seconds": spread("seconds") if copies else None,
        "megabytes_per_second": spread("megabytes_per_second") if copies else None,
        "audio_seconds_per_second": spread("audio_seconds_per_second"),
        "of_copy": spread("megabytes_per_second", COPY) if copies and subject != COPY else None,
        "of_limit": spread("audio_seconds_per_second", LIMIT) if subject.endswith("FLAC") else None,
    }


def _summarise(
    codec: str, subject: str, speeds: dict[str, list[float]], results: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return one subject's row. Ratios are taken in each round: its two measurements stand side by side in time."""
    limit, peer = _beside(codec, subject)
    starts = [result["first_batch_seconds"] for result in results if result["first_batch_seconds"] is not None]
    return {
        "subject": subject,
        "utterances_per_second": asdict(Spread.of(speeds[subject])),
        "of_limit": asdict(Spread.of(_ratios(speeds[subject], speeds[limit]))) if limit else None,
        "of_peer": asdict(Spread.of(_ratios(speeds[subject], speeds[peer]))) if peer else None,
        "first_batch_seconds": asdict(Spread.of(starts)) if starts else None,
    }


def _beside(codec: str, subject: str) -> tuple[str | None, str | None]:
    """Name the limit and the peer that a subject is held against: those with as many processes."""
    limit = LEAST_COPY
    if subject.startswith(("bare", "least")):
        return (limit if subject == LEAST_COPY_IN_TURN else None), None
    count = 2 if " 2 " in subject else 1
    if codec == "flac":
        limit = f"bare decode, {count} process{'es' if count > 1 else ''}"
    peer = f"webdataset, {count} worker{'s' if count > 1 else ''}"
    return limit, None if subject == peer else peer


def _ratios(values: list[float], others: list[float]) -> list[float]:
    return [value / other for value, other in zip(values, others, strict=True)]
