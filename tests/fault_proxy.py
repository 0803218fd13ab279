"""An HTTP proxy in front of a real server, with the faults that stores and networks have.

It counts requests and passes headers on as they are, Host too, so that signatures hold.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

FOR_EVER = 1 << 60
_CHUNK = 64 << 10


@dataclass
class Fault:
    """What happens to requests that match; `times` counts down.

    Attributes:
        match: Part of the path of a request.
        times: How many of them.
        skip: How many matching requests pass unharmed first.
        status: Answer with this status at once.
        code: What S3 calls it, in the body.
        lose: Pass the request on, and lose the answer.
        delay: Seconds before the answer.
        rate: Bytes a second of the body.
        reset_after: Send RST after so many bytes of the body (0: at once).
        end_after: Close after so many bytes of the body.
        stall_after: Send nothing more after so many bytes of the body.
        flip: Change one bit of the byte at this place of the body.
        header: Header line to put in place of the server's one of that name.
        hold: Answer once this is set.
    """

    match: str = ""
    times: int = FOR_EVER
    skip: int = 0
    status: int | None = None
    code: str = ""
    lose: bool = False
    delay: float = 0.0
    rate: float | None = None
    reset_after: int | None = None
    end_after: int | None = None
    stall_after: int | None = None
    flip: int | None = None
    header: str | None = None
    hold: threading.Event | None = None

    def takes(self, path: str) -> bool:
        """Whether it befalls this request."""
        if self.match not in path or not self.times:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


@dataclass
class FaultProxy:
    """The proxy, running in a thread of its own between `start` and `stop`."""

    target: str
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    body_bytes: int = 0
    on_request: Callable[[str], None] = lambda path: None
    keys: list[str] = field(default_factory=list)
    """Access keys that requests were signed with."""
    expired: set[str] = field(default_factory=set)
    """Access keys that are refused, as the store refuses temporary ones that are over."""

    def start(self) -> FaultProxy:
        """Listen."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        serving = asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
        self._server = asyncio.run_coroutine_threadsafe(serving, self._loop).result(60)
        return self

    @property
    def endpoint(self) -> str:
        """Where clients go."""
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        """Close everything, and wait until it is closed."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        serving = asyncio.all_tasks() - {asyncio.current_task()}
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await _read_head(reader):
                if _header(head, b"expect"):
                    # Who sends a body may wait for this first; the server is not asked again.
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    head = _without_header(head, b"expect")
                body = await reader.readexactly(int(_header(head, b"content-length") or 0))
                path = head.split(b" ", 2)[1].decode()
                self.requests.append(path)
                self.on_request(path)
                fault = next((fault for fault in self.faults if fault.takes(path)), Fault())
                signed = re.search(rb"Credential=([^/]+)/", head)
                if signed is not None:
                    self.keys.append(signed[1].decode())
                    if self.keys[-1] in self.expired:
                        fault = Fault(status=400, code="ExpiredToken")
                if not await self._answer(head + body, fault, writer):
                    return
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client went away, as clients of a store may, or the test is over
        finally:
            writer.close()

    async def _answer(self, request: bytes, fault: Fault, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(fault.delay)
        while fault.hold is not None and not fault.hold.is_set():
            await asyncio.sleep(0.01)
        if fault.status is not None:
            body = f"<Error><Code>{fault.code}</Code></Error>" if fault.code else ""
            writer.write(f"HTTP/1.1 {fault.status} Fault\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            return True
        if fault.reset_after == 0:
            return _reset(writer)
        address = urlsplit(self.target)
        upstream, request_writer = await asyncio.open_connection(address.hostname, address.port, limit=1 << 20)
        try:
            request_writer.write(request)
            head = await _read_head(upstream)
            if fault.lose:
                return _reset(writer)
            length = 0 if request.startswith(b"HEAD") else int(_header(head, b"content-length") or 0)
            writer.write(_with_header(head, fault.header) if fault.header else head)
            return await self._pass_body(upstream, writer, length, fault)
        finally:
            request_writer.close()

    async def _pass_body(
        self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter, length: int, fault: Fault
    ) -> bool:
        ends = [at for at in (fault.reset_after, fault.end_after, fault.stall_after) if at is not None]
        stop, sent = min([length, *ends]), 0
        while sent < stop:
            chunk = bytearray(await upstream.read(min(_CHUNK, stop - sent)))
            if fault.flip is not None and sent <= fault.flip < sent + len(chunk):
                chunk[fault.flip - sent] ^= 1
            writer.write(chunk)
            await writer.drain()
            sent += len(chunk)
            self.body_bytes += len(chunk)
            if fault.rate:
                await asyncio.sleep(len(chunk) / fault.rate)
        if stop == length:
            return True
        if fault.stall_after is not None:
            await asyncio.sleep(3600)
        return _reset(writer) if fault.reset_after is not None else False


def _reset(writer: asyncio.StreamWriter) -> bool:
    endpoint: socket.socket = writer.get_extra_info("socket")
    endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


def _header(head: bytes, name: bytes) -> bytes | None:
    lines = (line.partition(b":") for line in head.split(b"\r\n"))
    return next((value.strip() for key, _, value in lines if key.lower() == name), None)


def _with_header(head: bytes, line: str) -> bytes:
    first, *others = _without_header(head, line.partition(":")[0].lower().encode()).split(b"\r\n")
    return b"\r\n".join([first, line.encode(), *others])


def _without_header(head: bytes, name: bytes) -> bytes:
    return b"\r\n".join(one for one in head.split(b"\r\n") if one.partition(b":")[0].lower() != name)
