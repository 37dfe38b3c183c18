"""What tools of people ask, on loopback behind TLS: pages, a Python index, an npm registry, git. It keeps what arrives.

One server for all HOSTS, each by a certificate of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import ssl
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ringfence.prove.receiving import Answering, at_work
from tests.acceptance.test_packages import npm_package, wheel
from tests.support.egress_tls import Authority

READ, UNREAD, FETCH_ONLY = "tools.test", "unread.test", "fetch.test"
HOSTS = (READ, UNREAD, FETCH_ONLY)
WHEEL = "greeter-1.0-py3-none-any.whl"


@dataclass(frozen=True)
class Seen:
    host: str
    method: str
    path: str  # without the query
    credential: str  # of Authorization: what is behind Bearer or token, or Basic's password
    agent: str


@dataclass
class Tools:
    folder: Path
    port: int = 0
    seen: list[Seen] = field(default_factory=list)

    @property
    def ca(self) -> Path:
        return self.folder / "tools.pem"

    @property
    def repository(self) -> Path:
        return self.folder / "git" / "fence.git"

    def at(self, host: str) -> list[Seen]:
        return [each for each in list(self.seen) if each.host == host]


class _Server(ThreadingHTTPServer):
    tools: Tools
    daemon_threads = True


class _Handler(Answering):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._note()
        path, _, query = self.path.partition("?")
        if path.startswith("/git/"):
            self._git(path, query)
        elif path == "/simple/greeter/":
            self.page("text/html", f'<a href="/files/{WHEEL}">{WHEEL}</a>'.encode())
        elif path == f"/files/{WHEEL}":
            self.page("application/octet-stream", wheel())
        elif path == "/npm/waver":
            self.page("application/json", json.dumps(_packument(self._host)).encode())
        elif path.endswith(".tgz"):
            self.page("application/octet-stream", npm_package())
        else:
            self.page("application/json", b'{"login": "hello from outside"}')

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self._note()
        path, _, query = self.path.partition("?")
        self._git(path, query)

    def page(self, kind: str, data: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    @property
    def _host(self) -> str:
        return self.headers["Host"].partition(":")[0]

    def _note(self) -> None:
        path = self.path.partition("?")[0]
        credential = _credential(self.headers.get("Authorization", ""))
        self.server.tools.seen.append(
            Seen(self._host, self.command, path, credential, self.headers.get("User-Agent", ""))
        )

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        found = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def _git(self, path: str, query: str) -> None:
        """git-http-backend(1), whose answer is a CGI's; to whoever says who it is."""
        body = self._body()
        if "Authorization" not in self.headers:
            self.page("text/plain", b"who are you?", 401)
            return
        folder = self.server.tools.repository.parent
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "REMOTE_USER": "somebody",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path.removeprefix("/git"),
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
        }
        ran = subprocess.run(["git", "http-backend"], input=body, env=environment, capture_output=True, check=True)
        head, _, data = ran.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.page(fields["Content-Type"], data, int(fields.get("Status", "200").split()[0]))


def _credential(value: str) -> str:
    scheme, _, rest = value.partition(" ")
    return b64decode(rest).decode().partition(":")[2] if scheme == "Basic" else rest


def _packument(host: str) -> dict[str, Any]:
    integrity = "sha512-" + b64encode(hashlib.sha512(npm_package()).digest()).decode()
    dist = {"tarball": f"https://{host}/npm/waver/-/waver-1.0.0.tgz", "integrity": integrity}
    version = {"name": "waver", "version": "1.0.0", "bin": {"waver": "index.js"}, "dist": dist}
    return {"name": "waver", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}


def _made_repository(path: Path) -> None:
    path.parent.mkdir()
    environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(path)], env=environment, check=True)


@contextlib.contextmanager
def tools(folder: Path) -> Iterator[Tools]:
    """`folder`: for the CA, leaves and the repository."""
    made = Tools(folder)
    authority = Authority(folder, "tools")
    _made_repository(made.repository)
    contexts = {host: authority.context(host) for host in HOSTS}

    def chosen(session: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        session.context = contexts[name or READ]

    first = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    first.set_alpn_protocols(["http/1.1"])
    first.sni_callback = chosen
    server = _Server(("127.0.0.1", 0), _Handler)
    server.tools, made.port = made, server.server_port
    server.socket = first.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    with at_work(server):
        yield made
