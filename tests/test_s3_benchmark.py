"""The benchmark of reading from a store measures what it names; sizes are tiny, so no speed is looked at."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from fault_proxy import FaultProxy
from s3_cases import RemoteDataset, tar_requests
from uttershard.scripts.benchmarks.report import markdown
from uttershard.scripts.benchmarks.rounds import Spread
from uttershard.scripts.benchmarks.storage import RAW, SUBJECTS, Fetched, measure_storage
from uttershard.scripts.benchmarks.store_rounds import summarise
from uttershard.scripts.benchmarks.store_server import delayed
from uttershard.scripts.benchmarks.suite import Suite
from uttershard.scripts.benchmarks.targets import judge


def test_every_subject_reads_all_of_it(remote: RemoteDataset, tmp_path: Path) -> None:
    results: dict[str, list[Fetched]] = {}
    with delayed(remote.server.endpoint, 0.001) as endpoint:
        for subject in SUBJECTS:
            options = remote.server.options(endpoint)
            where = {"dataset": remote.address, "local": str(remote.packed.address), "cache": str(tmp_path / "cache")}
            results[subject] = [measure_storage(subject, options=options, **where)]
    for subject, (result,) in results.items():
        assert result.megabytes_per_second > 0
        asks = subject not in ("warm cache", "local")
        assert (result.requests_per_gigabyte > 0) == asks
        assert (result.fetched_of_read >= 1) == asks
    rates = {"direct": summarise({name: [asdict(result) for result in of] for name, of in results.items()})}
    rows: dict[str, Any] = {row["subject"]: row for row in rates["direct"]}
    assert rows[RAW]["of_raw"] is None and rows["spans"]["of_raw"]["median"] > 0
    assert rows["warm cache"]["of_local"]["median"] > 0
    first = {"direct": asdict(Spread.of([1.0]))}
    measured = {"storage": {"shards": 1000, "rates": rates, "first_batch": first}}
    machine = {"date": "", "processor": "", "cores": 2, "memory_gb": 1, "system": "", "load_at_start": 0, "python": ""}
    document = markdown({"machine": machine, "settings": asdict(Suite()), **measured})
    assert "## Storage" in document and "### Direct" in document
    assert {verdict.what for verdict in judge(measured)} == {
        "S3, direct, 16 windows: of the raw rate",
        "S3, direct, cold cache: of the raw rate",
        "S3, warm cache: of a local disk",
    }


def test_raw_fetches_every_byte_once(remote: RemoteDataset, proxy: FaultProxy) -> None:
    result = measure_storage(RAW, remote.address, "", "", remote.options(proxy))
    assert len(tar_requests(proxy)) == 8
    assert round(result.requests_per_gigabyte * remote.tar_bytes() / 1e9) == 8
