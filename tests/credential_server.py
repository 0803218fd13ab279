"""A server on loopback that hands out credentials, as that of an instance (IMDS) or a container does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_ROLE = "/latest/meta-data/iam/security-credentials/"


@dataclass
class CredentialServer:
    """What it hands out; `minutes` is how long each lasts."""

    identity: tuple[str, str]
    """Key and secret: changed together, while another thread hands them out."""
    minutes: float = 60.0
    endpoint: str = ""
    handed_out: list[str] = field(default_factory=list)

    @property
    def as_container(self) -> dict[str, str]:
        """Environment of a process in a container."""
        return {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{self.endpoint}/container"}

    @property
    def as_instance(self) -> dict[str, str]:
        """Environment of a process on an instance."""
        patience = {"AWS_METADATA_SERVICE_TIMEOUT": "20", "AWS_METADATA_SERVICE_NUM_ATTEMPTS": "3"}
        return {"AWS_EC2_METADATA_SERVICE_ENDPOINT": self.endpoint, **patience}

    def hand_out(self) -> str:
        """Return credentials as JSON."""
        key, secret = self.identity
        self.handed_out.append(key)
        expires = (datetime.now(UTC) + timedelta(minutes=self.minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")
        found = {"AccessKeyId": key, "SecretAccessKey": secret, "Token": "", "Expiration": expires}
        return json.dumps({"Code": "Success", "Type": "AWS-HMAC", "LastUpdated": expires, **found})


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, server: CredentialServer, *arguments: object) -> None:
        self._credentials = server
        super().__init__(*arguments)

    def do_PUT(self) -> None:
        self._answer("token" if self.path == "/latest/api/token" else None)

    def do_GET(self) -> None:
        if self.path == _ROLE:
            self._answer("training")
        elif self.path in ("/container", f"{_ROLE}training"):
            self._answer(self._credentials.hand_out())
        else:
            self._answer(None)

    def _answer(self, text: str | None) -> None:
        body = (text or "").encode()
        self.send_response(200 if text is not None else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def running_credential_server(key: str, secret: str) -> Iterator[CredentialServer]:
    """Run a server until the block ends."""
    credentials = CredentialServer((key, secret))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, credentials))
    credentials.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield credentials
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
