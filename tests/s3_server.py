"""A real S3 server (SeaweedFS) on free loopback ports, and datasets put there."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import s3fs

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
_READY_SECONDS = 60.0


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
        """Return a file system of its own."""
        return s3fs.S3FileSystem(**self.options(), skip_instance_cache=True)

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
    master, volume, filer, s3 = _free_ports(4)
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
    _wait_until_ready(server, process, folder / "weed.log")
    for bucket in (BUCKET, ARCHIVE, PUBLIC):
        server.filesystem().mkdir(bucket)
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


def _free_ports(count: int) -> list[int]:
    """Find ports that are free, and free 10,000 higher too: the server listens for gRPC there."""
    found: list[int] = []
    while len(found) < count:
        with ExitStack() as held:
            low = held.enter_context(socket.socket())
            low.bind(("127.0.0.1", 0))
            port = low.getsockname()[1]
            high = held.enter_context(socket.socket())
            try:
                high.bind(("127.0.0.1", port + 10_000))
            except (OSError, OverflowError):
                continue
            if port not in found:
                found.append(port)
    return found


def _wait_until_ready(server: S3Server, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        try:
            urllib.request.urlopen(f"{server.endpoint}/healthz", timeout=1).close()
            return
        except (urllib.error.URLError, OSError):
            if process.poll() is not None or time.monotonic() > deadline:
                stop(process)
                raise RuntimeError(f"the S3 server did not start:\n{log.read_text(errors='replace')[-3000:]}") from None
            time.sleep(0.05)
