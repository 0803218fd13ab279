"""A real S3 server (SeaweedFS) on free loopback ports, and datasets put there."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import s3fs
from free_ports import free_ports

ACCESS, SECRET = "test-access-key", "test-secret-key"
READER, READER_SECRET = "read-access-key", "read-secret-key"
PACKER, PACKER_SECRET = "4711000815", "0123456789"
"""Made of digits, as some stores make them. It has no business in the archive."""
ARCHIVIST, ARCHIVIST_SECRET = "archive-access-key", "archive-secret-key"
BUCKET = "speech"
ARCHIVE = "archive"
"""Read by its own identity only."""
PUBLIC = "public"
"""Read by everybody."""
_READY_SECONDS = 120.0


@dataclass(frozen=True)
class S3Server:
    """A running server."""

    endpoint: str

    def options(self, endpoint: str | None = None, **more: Any) -> dict[str, Any]:
        """Return storage_options for it, or for a proxy in front of it."""
        return {
            "key": ACCESS,
            "secret": SECRET,
            "endpoint_url": endpoint or self.endpoint,
            "config_kwargs": {"s3": {"addressing_style": "path"}},
            **more,
        }

    def filesystem(self) -> s3fs.S3FileSystem:
        """Return a file system that remembers no listings."""
        return self._filesystem

    @cached_property
    def _filesystem(self) -> s3fs.S3FileSystem:
        # One for all: each takes some 12 MB and a fifth of a second.
        return s3fs.S3FileSystem(**self.options(), skip_instance_cache=True, use_listings_cache=False)

    def upload(self, folder: Path, prefix: str, bucket: str = BUCKET) -> str:
        """Put the files of a folder there, and of those in it, and return the address."""
        filesystem = self.filesystem()
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                filesystem.pipe_file(f"{bucket}/{prefix}/{path.relative_to(folder)}", path.read_bytes())
        return f"s3://{bucket}/{prefix}"


def start_server(folder: Path) -> tuple[S3Server, subprocess.Popen[bytes]]:
    """Start a server whose data is in `folder`; the caller ends the process."""
    identities = [
        _identity("admin", ACCESS, SECRET, ["Admin", "Read", "List", "Tagging", "Write"]),
        _identity("reader", READER, READER_SECRET, ["Read", "List"]),
        _identity("packer", PACKER, PACKER_SECRET, [f"{action}:{BUCKET}" for action in ("Read", "List", "Write")]),
        _identity("archivist", ARCHIVIST, ARCHIVIST_SECRET, [f"Read:{ARCHIVE}", f"List:{ARCHIVE}"]),
        {"name": "anonymous", "actions": [f"Read:{PUBLIC}", f"List:{PUBLIC}"]},
    ]
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": identities}), "utf-8")
    # It listens for gRPC 10,000 higher.
    master, volume, filer, s3 = free_ports(4, above=10_000)
    home = folder / "home"
    home.mkdir()
    with (folder / "weed.log").open("wb") as log:
        process = subprocess.Popen(
            [
                str(Path(sys.executable).with_name("weed")),
                "mini",
                f"-dir={folder}",
                "-ip=127.0.0.1",
                "-ip.bind=127.0.0.1",
                f"-master.port={master}",
                f"-volume.port={volume}",
                f"-filer.port={filer}",
                f"-s3.port={s3}",
                f"-s3.config={config}",
                "-s3.port.iceberg=0",
                "-s3.port.lance=0",
                "-admin.ui=false",
                "-webdav=false",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
            cwd=folder,
        )
    server = S3Server(f"http://127.0.0.1:{s3}")
    try:
        _wait_until_done(lambda: urllib.request.urlopen(f"{server.endpoint}/healthz", timeout=5).close(), process)
        # Healthy before it has a volume to write to.
        for bucket in (BUCKET, ARCHIVE, PUBLIC):
            _wait_until_done(partial(_write_something, server, bucket), process)
    except BaseException as error:
        stop(process)
        error.add_note((folder / "weed.log").read_text(errors="replace")[-3000:])
        raise
    return server, process


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process, by force if it does not end by itself."""
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _identity(name: str, key: str, secret: str, actions: list[str]) -> dict[str, Any]:
    return {"name": name, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": actions}


def _write_something(server: S3Server, bucket: str) -> None:
    filesystem, path = server.filesystem(), f"{bucket}/something"
    filesystem.makedirs(bucket, exist_ok=True)
    filesystem.pipe_file(path, b"something")
    filesystem.rm_file(path)


def _wait_until_done(attempt: Callable[[], None], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        try:
            return attempt()
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
