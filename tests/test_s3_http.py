"""Streaming from a web server: the same batches, ranges, errors that say what to do."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO

import pytest
from fault_proxy import Fault, FaultProxy
from packed import BINS, run
from s3_cases import PATIENT, RemoteDataset
from typer.testing import CliRunner
from uttershard.pipeline import ShardLoader, ShardSet
from uttershard.pipeline.errors import DataError, StorageError
from uttershard.scripts.cli.app import app


class _Ranges(SimpleHTTPRequestHandler):
    """A file server that answers ranges, which that of the standard library does not."""

    protocol_version = "HTTP/1.1"

    def send_head(self) -> BinaryIO | None:
        self.server.site.requests.append((self.path, self.headers.get("Range")))
        self.server.site.methods.append(self.command)
        if self.server.site.token and self.headers.get("Authorization") != self.server.site.token:
            self.send_error(403)
            return None
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None or not self.server.site.ranges:
            return super().send_head()
        path = Path(self.translate_path(self.path))
        size = path.stat().st_size
        start, stop = int(wanted[1]), min(size, int(wanted[2] or size - 1) + 1)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        self.wfile.write(path.read_bytes()[start:stop])
        return None

    def log_message(self, format: str, *args: object) -> None:
        pass


@dataclass
class Site:
    """A running web server."""

    endpoint: str
    ranges: bool = True
    token: str | None = None
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)


@pytest.fixture
def site(remote: RemoteDataset) -> Iterator[Site]:
    """The dataset on a web server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Ranges, directory=str(remote.packed.address)))
    server.site = Site(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.site
    server.shutdown()
    server.server_close()
    thread.join()


def loader(address: str, **settings: object) -> ShardLoader:
    return ShardLoader(address, **{"rank": 0, "world_size": 1, "batch_bins": BINS, **PATIENT, **settings})


def test_batches_are_those_of_a_local_disk(remote: RemoteDataset, site: Site, tmp_path: Path) -> None:
    expected = list(run(remote.packed.loader(), 0))
    assert list(run(loader(site.endpoint), 0)) == expected
    assert list(run(loader(site.endpoint, num_workers=2, multiprocessing_context="fork"), 0)) == expected
    assert list(run(loader(site.endpoint, cache=tmp_path), 0)) == expected
    windowed = list(run(remote.packed.loader(windows=3), 0))
    assert list(run(loader(site.endpoint, windows=3, num_workers=3, multiprocessing_context="fork"), 0)) == windowed
    for rank in range(2):
        world = {"rank": rank, "world_size": 2}
        local = remote.packed.loader(**world)
        assert list(run(loader(site.endpoint, cache=tmp_path, **world), 0)) == list(run(local, 0))
    site.requests.clear()
    again = loader(site.endpoint, cache=tmp_path)
    assert list(run(again, 0)) == expected
    assert not [path for path, _ in site.requests if path.endswith(".tar")]


def test_faults_pass(remote: RemoteDataset, site: Site) -> None:
    proxy = FaultProxy(site.endpoint).start()
    try:
        proxy.faults = [Fault(match=".tar", times=2, **fault) for fault in ({"status": 503}, {"end_after": 5000})]
        running = loader(proxy.endpoint)
        assert list(run(running, 0)) == list(run(remote.packed.loader(), 0))
        assert running.metrics()["storage"]["retries"] >= 4
    finally:
        proxy.stop()


def test_a_server_without_ranges_is_told(site: Site) -> None:
    site.ranges = False
    with pytest.raises(StorageError, match="sends whole files where a range is asked for"):
        list(run(loader(site.endpoint), 0))


def test_commands_read_no_tar_that_they_need_not(remote: RemoteDataset, site: Site) -> None:
    def facts(*arguments: str) -> dict[str, object]:
        result = CliRunner().invoke(app, [*arguments, "--json"])
        assert result.exit_code == 0, result.output
        return {**json.loads(result.stdout), "dataset": None}

    local = str(remote.packed.address)
    for command in (("info",), ("plan", "--batch-bins", "600", "--world-size", "2")):
        assert facts(command[0], site.endpoint, *command[1:]) == facts(command[0], local, *command[1:])
    report = facts("verify", site.endpoint)
    assert report["ok"] and report["unread_bytes"] == remote.tar_bytes()
    asked = [method for method, (path, _) in zip(site.methods, site.requests, strict=True) if path.endswith(".tar")]
    assert asked == ["HEAD"] * 8
    report = facts("verify", site.endpoint, "--full")
    assert report["ok"] and report["unread_bytes"] == 0


def test_what_is_not_there_and_what_is_not_allowed(remote: RemoteDataset, site: Site) -> None:
    with pytest.raises(DataError, match="no dataset at"):
        ShardSet.open(f"{site.endpoint}/nothing")
    site.token = "Bearer secret-of-the-test"
    with pytest.raises(StorageError, match=r"access denied \(HTTP 403.*headers"):
        ShardSet.open(site.endpoint)
    opened = ShardSet.open(site.endpoint, {"headers": {"Authorization": site.token}})
    assert opened.index().num_rows == 48
    assert "secret-of-the-test" not in repr(opened)


def test_any_file_system_of_fsspec(remote: RemoteDataset, tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    for path in remote.packed.address.iterdir():
        memory.pipe_file(f"/train/{path.name}", path.read_bytes())
    expected = list(run(remote.packed.loader(), 0))
    assert list(run(loader("memory://train"), 0)) == expected
    assert list(run(loader("memory://train", cache=tmp_path), 0)) == expected
    memory.pipe_file("/train/shard-000001.tar", b"short")
    with pytest.raises((DataError, StorageError), match=r"shard-000001\.tar"):
        list(run(loader("memory://train", read_deadline=1.0), 0))
    memory.rm("/train", recursive=True)
