"""An SSH server on a loopback port that runs commands for whoever has its key."""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import asyncssh


@dataclass(frozen=True)
class SshServer:
    """A server that runs."""

    port: int
    client_key: Path


@contextlib.contextmanager
def running_ssh_server(folder: Path) -> Iterator[SshServer]:
    """Start it in a thread; what it has started ends with it."""
    folder.mkdir()
    host_key, client_key = asyncssh.generate_private_key("ssh-ed25519"), asyncssh.generate_private_key("ssh-ed25519")
    client_key.write_private_key(str(folder / "client"))
    client_key.write_public_key(str(folder / "client.pub"))
    ready, over = threading.Event(), asyncio.Event()
    found: list[int] = []
    running: list[asyncio.Task[None]] = []
    loop = asyncio.new_event_loop()

    def run(process: "asyncssh.SSHServerProcess[bytes]") -> None:
        running.append(asyncio.ensure_future(_run(process, over)))

    async def serve() -> None:
        server = await asyncssh.listen(
            "127.0.0.1", 0, server_host_keys=[host_key], process_factory=run, encoding=None,
            authorized_client_keys=str(folder / "client.pub"),
        )  # fmt: skip
        found.append(server.get_port())
        ready.set()
        await over.wait()
        server.close()
        await asyncio.gather(*running)
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(30)
    try:
        yield SshServer(found[0], folder / "client")
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(30)
        loop.close()


async def _run(process: "asyncssh.SSHServerProcess[bytes]", over: asyncio.Event) -> None:
    child = await asyncio.create_subprocess_shell(
        process.command or "true",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    copies = [
        asyncio.ensure_future(_copy(source, sink))
        for source, sink in ((child.stdout, process.stdout), (child.stderr, process.stderr))
    ]
    ends = [asyncio.ensure_future(end) for end in (asyncio.wait(copies), process.wait_closed(), over.wait())]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    for each in (*copies, *ends):
        each.cancel()
    await asyncio.wait(copies)
    await child.communicate()  # asyncio waits for one whose output nobody reads
    process.exit(child.returncode or 0)


async def _copy(source: asyncio.StreamReader, sink: "asyncssh.SSHWriter[bytes]") -> None:
    # Not by `redirect`, which reads twice at a time when there is much.
    with contextlib.suppress(BrokenPipeError):
        while chunk := await source.read(1 << 16):
            sink.write(chunk)
            await sink.drain()
