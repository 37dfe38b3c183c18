"""GitHub and a provider of models on loopback, for tests of real servers: they keep what arrives, and wait where a test says."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ringfence.prove.receiving import Answering, at_work
from tests.support.egress_tls import Authority
from tests.support.provider_double import chat, event

API = "api.github.com"
PATIENCE = 120.0
PULLS = (
    {
        "number": 42,
        "title": "Mend the fence",
        "state": "OPEN",
        "url": "https://github.com/team/fence/pull/42",
        "headRefName": "mend",
        "headRepositoryOwner": {"id": "O_1", "login": "team"},
        "isCrossRepository": False,
        "isDraft": False,
        "createdAt": "2026-01-02T03:04:05Z",
    },
)


@dataclass
class GitHub:
    ca: Path
    port: int = 0
    seen: list[tuple[str, str]] = field(default_factory=list)  # request line, Authorization
    arrived: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)  # no query is answered before


class _GitHubServer(ThreadingHTTPServer):
    double: GitHub


class _GitHubHandler(Answering):
    server: _GitHubServer

    def do_GET(self) -> None:
        self._note()
        self.say(b"{}")

    def do_POST(self) -> None:
        self._note()
        query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["query"]
        assert "pullRequests" in query, query
        self.server.double.arrived.set()
        assert self.server.double.go_on.wait(PATIENCE)
        page = {"hasNextPage": False, "endCursor": None}
        found = {"totalCount": len(PULLS), "nodes": PULLS, "pageInfo": page}
        self.say(json.dumps({"data": {"repository": {"pullRequests": found}}}).encode())

    def _note(self) -> None:
        self.server.double.seen.append((self.requestline, self.headers.get("Authorization", "")))


@contextlib.contextmanager
def github(folder: Path) -> Iterator[GitHub]:
    """With a certificate for API, by a CA that is written into the folder."""
    authority = Authority(folder, "github")
    server = _GitHubServer(("127.0.0.1", 0), _GitHubHandler)
    server.double = GitHub(authority.path, server.server_port)
    server.socket = authority.context(API).wrap_socket(server.socket, server_side=True)
    with at_work(server):
        try:
            yield server.double
        finally:
            server.double.go_on.set()


@dataclass
class Model:
    """To a message with `command` in it that no tool has answered yet it calls the shell with that; before it says anything
    after a tool's answer it waits for `go_on`. What comes without tools is a client of a box."""

    command: str
    port: int = 0
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    go_on: threading.Event = field(default_factory=threading.Event)

    @property
    def after_the_tool(self) -> int:
        """How often it was asked what comes after the tool's answer."""
        return sum(each["messages"][-1]["role"] == "tool" for each in list(self.asked))


class _ModelServer(ThreadingHTTPServer):
    double: Model


class _ModelHandler(Answering):
    server: _ModelServer

    def do_POST(self) -> None:
        double, body = self.server.double, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        double.keys.add(self.headers.get("Authorization", ""))
        double.asked.append(body)
        last = body["messages"][-1]
        if not body.get("tools"):
            self.say(json.dumps(_whole("pong")).encode())
        elif last["role"] == "tool":
            assert double.go_on.wait(PATIENCE)
            with contextlib.suppress(OSError):  # whoever asked first may have been killed
                self._stream(chat("It is ", "listed."))
        elif "pull requests" in last["content"]:
            self._stream(_call(double.command))
        else:
            self._stream(chat("Noted."))

    def _stream(self, pieces: list[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(piece)
            self.wfile.flush()


def _call(command: str) -> list[bytes]:
    part = {"index": 0, "id": "c1", "type": "function"}
    function = {"name": "shell", "arguments": json.dumps({"command": command})}
    said = {
        "choices": [{"index": 0, "delta": {"content": "Looking. ", "tool_calls": [{**part, "function": function}]}}]
    }
    return [
        event(said),
        event({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
        event("[DONE]"),
    ]


def _whole(text: str) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    used = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": used}


@contextlib.contextmanager
def model(command: str) -> Iterator[Model]:
    server = _ModelServer(("127.0.0.1", 0), _ModelHandler)
    server.double = Model(command, server.server_port)
    with at_work(server):
        try:
            yield server.double
        finally:
            server.double.go_on.set()
