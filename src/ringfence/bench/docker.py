"""What the same would cost with a Docker engine on this host: its HTTP API and its command line. Measures; makes containers of its own
name and takes them away. The engine and an image are the user's.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
from typing import Any
from urllib.parse import quote

SOCKET = "/var/run/docker.sock"
_API = "/v1.41"
_TRUE, _WAIT = ["/bin/true"], ["/bin/sleep", "86400"]


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("docker", timeout=120)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Docker:
    """OSError, RuntimeError: there is no engine, or it refuses."""

    def __init__(self, image: str, path: str = SOCKET) -> None:
        self._image, self._path = image, path
        self._kept = _Connection(path)
        self._made: list[str] = []
        self.version = str(self._ask("GET", "/version")["Version"])

    def start(self, name: str) -> str:
        """A container that waits; its id."""
        body = {"Image": self._image, "Cmd": _WAIT, "HostConfig": {"AutoRemove": True, "Init": True}}
        made = self._ask("POST", f"/containers/create?name={quote(name)}", body)["Id"]
        self._made.append(made)
        self._ask("POST", f"/containers/{made}/start")
        return str(made)

    def command(self, container: str) -> None:
        """`true` in it, until its exit code is known."""
        made = self._ask("POST", f"/containers/{container}/exec", {"Cmd": _TRUE, "AttachStdout": True})["Id"]
        self._ask("POST", f"/exec/{made}/start", {"Detach": False}, raw=True)
        if self._ask("GET", f"/exec/{made}/json")["ExitCode"] != 0:
            raise RuntimeError("the command failed in the container")

    def pause(self, container: str) -> None:
        self._ask("POST", f"/containers/{container}/pause")

    def resume(self, container: str) -> None:
        self._ask("POST", f"/containers/{container}/unpause")

    def command_line(self, container: str) -> None:
        subprocess.run(["docker", "exec", container, *_TRUE], check=True, stdin=subprocess.DEVNULL)

    def command_line_cold(self) -> None:
        subprocess.run(["docker", "run", "--rm", self._image, *_TRUE], check=True, stdin=subprocess.DEVNULL)

    def close(self) -> None:
        for made in self._made:
            self._ask("DELETE", f"/containers/{made}?force=true", missing=True)
        self._kept.close()

    def _ask(self, method: str, path: str, body: Any = None, *, raw: bool = False, missing: bool = False) -> Any:
        # A stream of output ends with its connection, which is not the one that is kept.
        connection = _Connection(self._path) if raw else self._kept
        headers = {} if body is None else {"Content-Type": "application/json"}
        connection.request(method, _API + path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        said = answer.read()
        if raw:
            connection.close()
        if answer.status >= 400 and not (missing and answer.status in (404, 409)):
            raise RuntimeError(f"the Docker engine says {answer.status} to {method} {path}: {said[:300]!r}")
        return json.loads(said) if said and not raw else {}
