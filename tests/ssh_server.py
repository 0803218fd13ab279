"""An SSH server on a loopback port that runs commands for whoever has its key."""

import asyncio
import contextlib
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
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        server = await asyncssh.listen(
            "127.0.0.1", 0, server_host_keys=[host_key], process_factory=_run,
            authorized_client_keys=str(folder / "client.pub"),
        )  # fmt: skip
        found.append(server.get_port())
        ready.set()
        await over.wait()
        server.close()
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


async def _run(process: "asyncssh.SSHServerProcess[str]") -> None:
    child = await asyncio.create_subprocess_shell(
        process.command or "true",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    await process.redirect(stdin=child.stdin, stdout=child.stdout, stderr=child.stderr)
    hung_up = asyncio.ensure_future(process.wait_closed())
    ended = asyncio.ensure_future(child.wait())
    await asyncio.wait((hung_up, ended), return_when=asyncio.FIRST_COMPLETED)
    if child.returncode is None:
        child.terminate()
        await child.wait()
    if not hung_up.done():
        process.exit(child.returncode or 0)
