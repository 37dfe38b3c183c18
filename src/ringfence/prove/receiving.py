"""A receiver on loopback that keeps whatever arrives: where the throw-away installation's webhooks lead.

It is as careless as a receiver can be: it checks no signature and does every arrival, so that nothing but the host keeps a
second one from counting. Must never listen anywhere but on loopback.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """What came, in order; safe to read while it serves."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.bodies: list[dict[str, Any]] = []

    def of(self, who: str) -> list[dict[str, Any]]:
        """What came in the name of `who`, a word of the body."""
        return [body for body in list(self.bodies) if body.get("who") == who]

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"


class Answering(BaseHTTPRequestHandler):
    """What any receiver of this kind has."""

    def say(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what arrives is told by who reads it."""


class _Server(ThreadingHTTPServer):
    receiver: Receiver


class _Handler(Answering):
    server: _Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))) or b"{}")
        self.server.receiver.bodies.append(body if isinstance(body, dict) else {"body": body})
        self.say(b"{}")

    def do_GET(self) -> None:
        """A look-up: it knows nothing, so that nothing is settled by its word."""
        self.say(b'{"state": "unknown"}')


@contextlib.contextmanager
def receiver() -> Iterator[Receiver]:
    server = _Server(("127.0.0.1", 0), _Handler)
    server.receiver = Receiver(server.server_port)
    with at_work(server):
        yield server.receiver


@contextlib.contextmanager
def at_work(server: ThreadingHTTPServer) -> Iterator[None]:
    """It answers within, and is closed after."""
    thread = threading.Thread(target=server.serve_forever, daemon=True, name="prove-receiver")
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
