"""The real guest as PID 1 of a bubblewrap box, without a spawner, and a plain host that drives it over its socket.

Everything is synchronous: a test says what the host says, in order, and waits for what must come.
"""

from __future__ import annotations

import base64
import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringfence.host.install.guest_tree import build
from ringfence.wire.framing import LineBuffer, encode
from ringfence.wire.state import CLOSED, HOST, NOTIFY, REPLY, REQUEST, RUN, Connection, Event

PYTHON = "/usr/bin/python3"
BOX_UID = 1_780_000_008  # below every slice of the host, and in no other rig's range
PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass
class Ended:
    code: int | None
    signal: int | None
    reason: str
    message: str
    left: list[int]
    duration_ms: int
    stdout: bytes
    stderr: bytes
    raw: dict[str, Any]
    seq: int


@dataclass
class Output:
    """What a command has written so far."""

    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)


class LostWire(Exception):
    """The guest ended the connection."""


def readable(sock: socket.socket, seconds: float) -> bool:
    """Within so many seconds."""
    waiting = select.poll()  # select takes no descriptor above 1023
    waiting.register(sock, select.POLLIN)
    return bool(waiting.poll(seconds * 1000))


class Host:
    """One connection of a plain host: the client's half of the wire."""

    def __init__(self, path: Path, *, grant: bool = True, ack: bool = True) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        deadline = time.monotonic() + 30
        while True:
            try:
                self.sock.connect(str(path))
                break
            except OSError:
                if time.monotonic() > deadline:
                    self.sock.close()
                    raise
                time.sleep(0.002)
        self.connection = Connection(HOST)
        self.lines = LineBuffer()
        self.grant = grant
        self.ack = ack
        self.replies: dict[int, Event] = {}
        self.outputs: dict[str, Output] = {}
        self.ends: dict[str, list[Ended]] = {}
        self.loop_ends: list[dict[str, Any]] = []
        self.asks: list[tuple[str, bytes]] = []
        self.credit: dict[str, int] = {}
        self.greeting: dict[str, Any] = {}

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- saying

    def hello(self) -> dict[str, Any]:
        return self.request("hello", generation=1, box="b" * 16, host="h1")

    def send(self) -> None:
        self.sock.sendall(self.connection.data_to_send())

    def begin(self, method: str, **params: Any) -> int:
        number = self.connection.request(method, params)
        self.send()
        return number

    def request(self, method: str, **params: Any) -> dict[str, Any]:
        """The result; AssertionError when it is an error."""
        event = self.reply(self.begin(method, **params))
        assert event.ok is not None, f"{event.code}: {event.message}"
        return event.ok

    def reply(self, number: int, seconds: float = 30) -> Event:
        self.until(lambda: number in self.replies, seconds)
        return self.replies.pop(number)

    def notify(self, method: str, **params: Any) -> None:
        self.connection.notify(method, params)
        self.send()

    def to_loop(self, run: str, frame: dict[str, Any]) -> None:
        self.connection.relay(run, encode(frame))
        self.send()

    # --- hearing

    def until(self, true: Any, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            left = deadline - time.monotonic()
            assert left > 0, f"nothing came within {seconds} s"
            self.pump(left)

    def pump(self, seconds: float) -> None:
        """Reads once."""
        if not readable(self.sock, seconds):
            return
        try:
            data = self.sock.recv(1 << 20)
        except ConnectionError:
            data = b""
        if not data:
            self.connection.close()
            raise LostWire
        for line in self.lines.feed(data):
            self._hear(self.connection.receive(line))
        if self.connection.state != CLOSED:
            self.send()

    def _hear(self, event: Event) -> None:
        if event.kind == REPLY:
            self.replies[event.id] = event
        elif event.kind == RUN:
            self.asks.append((event.run, event.frame))
        else:
            assert event.kind in (NOTIFY, REQUEST)
            self._noted(event)

    def _noted(self, event: Event) -> None:
        p = event.params
        if event.method == "cmd.output":
            data = base64.b64decode(p["data_b64"], validate=True)
            output = self.outputs.setdefault(p["key"], Output())
            (output.out if p["stream"] == 1 else output.err).extend(data)
            if self.grant:
                self.connection.notify("cmd.grant", {"key": p["key"], "bytes": len(data)})
        elif event.method == "cmd.ended":
            assert event.seq is not None
            self.ends.setdefault(p["key"], []).append(_ended(p, self.outputs.get(p["key"], Output()), event.seq))
        elif event.method == "loop.ended":
            self.loop_ends.append(p)
        elif event.method == "cmd.credit":
            self.credit[p["key"]] = self.credit.get(p["key"], 0) + p["bytes"]
        if event.seq is not None and self.ack:
            self.connection.notify("ack", {"seqs": [event.seq]})

    # --- commands

    def spawn(self, key: str, *argv: str | bytes, **options: Any) -> dict[str, Any]:
        return self.request("cmd.spawn", **spec(key, *argv, **options))

    def run(self, key: str, *argv: str | bytes, seconds: float = 20, **options: Any) -> Ended:
        """Starts it and waits for its end."""
        self.begin("cmd.spawn", **spec(key, *argv, **options))
        return self.ended(key, seconds)

    def sh(self, key: str, script: str, **options: Any) -> Ended:
        return self.run(key, "/bin/sh", "-c", script, **options)

    def ended(self, key: str, seconds: float = 20) -> Ended:
        self.until(lambda: key in self.ends, seconds)
        return self.ends[key][0]

    def feed(self, key: str, data: bytes, eof: bool = True) -> None:
        """Stdin, within the guest's credit."""
        self.credit.setdefault(key, 0)
        room = 256 * 1024
        chunk = 48 * 1024
        for start in range(0, len(data), chunk):
            part = data[start : start + chunk]
            while room < len(part):
                self.until(lambda: self.credit[key] > 0 or key in self.ends)
                if key in self.ends:
                    return
                room += self.credit[key]
                self.credit[key] = 0
            room -= len(part)
            self.notify("cmd.stdin", key=key, data_b64=base64.b64encode(part).decode(), eof=False)
        if eof:
            self.notify("cmd.stdin", key=key, data_b64="", eof=True)


def spec(
    key: str,
    *argv: str | bytes,
    env: dict[str, str] | None = None,
    cwd: str = "/home/user",
    stdin: str = "null",
    output: str = "stream",
    timeout: float | None = 30,
    grace: float = 2.0,
) -> dict[str, Any]:
    """The fields of CmdSpawn."""
    raw = [item if isinstance(item, bytes) else item.encode() for item in argv]
    return {
        "key": key,
        "argv_b64": [base64.b64encode(item).decode() for item in raw],
        "env_b64": {
            k: base64.b64encode(v.encode()).decode() for k, v in ({"PATH": PATH} if env is None else env).items()
        },
        "cwd": cwd,
        "stdin": stdin,
        "output": output,
        "timeout_ms": None if timeout is None else int(timeout * 1000),
        "grace_ms": int(grace * 1000),
    }


def _ended(p: dict[str, Any], output: Output, seq: int) -> Ended:
    def text(kept: dict[str, Any] | None, streamed: bytearray) -> bytes:
        if kept is None:
            return bytes(streamed)
        return base64.b64decode(kept["head_b64"]) + base64.b64decode(kept["tail_b64"])

    return Ended(
        p["code"],
        p["signal"],
        p["reason"],
        p["message"],
        p["left"],
        p["duration_ms"],
        text(p["stdout"], output.out),
        text(p["stderr"], output.err),
        p,
        seq,
    )


class Box:
    """A box with the guest in it. Its files are on the host in `home`."""

    def __init__(self, folder: Path, tree: Path, *, seccomp: bytes = b"", cmds: tuple[int, ...] = ()) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.socket = folder / "s"
        folder.chmod(0o755)
        for name in ("home", "workspace"):
            (folder / name).mkdir()
            if os.geteuid() == 0:
                os.chown(folder / name, BOX_UID, BOX_UID)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.socket))
        filter_fd = os.memfd_create("seccomp", 0)
        os.write(filter_fd, seccomp)
        os.lseek(filter_fd, 0, os.SEEK_SET)
        fds = [listener.fileno(), *cmds, *([filter_fd] if seccomp else [])]
        self.stderr_read, stderr = os.pipe()
        extra: dict[str, Any] = {}
        if os.geteuid() == 0:
            extra = {"user": BOX_UID, "group": BOX_UID, "extra_groups": []}
        self.process = subprocess.Popen(
            self._argv(tree, listener.fileno(), filter_fd if seccomp else -1, ",".join(map(str, cmds)) or "-"),
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
            env={},
            cwd="/",
            **extra,
        )
        os.close(stderr)
        os.close(filter_fd)
        listener.close()

    def _argv(self, tree: Path, listener: int, filter_fd: int, cmds: str) -> list[str]:
        binds = []
        for name in ("usr", "etc/alternatives", "etc/ld.so.cache"):
            binds += ["--ro-bind", f"/{name}", f"/{name}"]
        for name in ("bin", "lib", "lib64", "sbin"):
            binds += ["--symlink", f"usr/{name}", f"/{name}"]
        return [
            "/usr/bin/bwrap",
            *["--unshare-user", "--unshare-pid", "--as-pid-1", "--unshare-ipc", "--unshare-uts", "--unshare-net"],
            *[
                "--uid",
                "1000",
                "--gid",
                "1000",
                "--hostname",
                "box",
                "--clearenv",
                "--setenv",
                "PATH",
                "/usr/bin:/bin",
                "--new-session",
            ],
            *binds,
            *("--ro-bind", str(tree), "/opt/ringfence", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
            *(["--seccomp", str(filter_fd)] if filter_fd >= 0 else []),
            *("--bind", str(self.home), "/home/user", "--bind", str(self.folder / "workspace"), "/workspace"),
            *("--", PYTHON, "-I", "-S", "/opt/ringfence/init.pyc", str(listener), cmds, "digest"),
        ]

    def dial(self, **options: Any) -> Host:
        """A host that has said hello."""
        try:
            host = Host(self.socket, **options)
        except OSError as error:
            raise AssertionError(f"the guest does not listen: {self.said()}") from error
        try:
            host.greeting = host.hello()
        except BaseException:
            host.close()
            raise
        return host

    def guest_pid(self) -> int:
        """Of PID 1, as the machine counts. Needs the same user or root."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            for word in children.read_text().split():
                status = Path(f"/proc/{word}/status").read_text()
                if "NSpid" in status and status.split("NSpid:")[1].splitlines()[0].split()[-1] == "1":
                    return int(word)
            time.sleep(0.01)
        raise AssertionError("no PID 1")

    def command_lines(self) -> dict[int, str]:
        """Of `processes`, without those that end meanwhile."""
        lines = {}
        for pid in self.processes():
            with contextlib.suppress(OSError):
                lines[pid] = Path(f"/proc/{pid}/cmdline").read_text()
        return lines

    def processes(self) -> list[int]:
        """Pids in the box without bwrap's monitor, as the machine counts."""
        found, queue = [], [self.process.pid]
        while queue:
            pid = queue.pop()
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                found += [int(word) for word in words]
                queue += [int(word) for word in words]
        return found

    def said(self) -> str:
        """What came on stderr until now."""
        os.set_blocking(self.stderr_read, False)
        with contextlib.suppress(BlockingIOError):
            return os.read(self.stderr_read, 1 << 16).decode("utf-8", "replace")
        return ""

    def end(self) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(AssertionError, OSError):
                os.kill(self.guest_pid(), signal.SIGKILL)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(5)
        with contextlib.suppress(OSError):
            os.close(self.stderr_read)


@contextlib.contextmanager
def built_tree() -> Iterator[Path]:
    """A guest tree that the box's user can reach: not below pytest's own folder, which is root's."""
    folder = Path(tempfile.mkdtemp(prefix="rf-"))
    folder.chmod(0o755)
    try:
        build(folder / "guest", PYTHON)
        yield folder / "guest"
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def running_box(tree: Path, **options: Any) -> Iterator[Box]:
    folder = Path(tempfile.mkdtemp(prefix="rf-"))  # short: a socket's path has 107 bytes
    try:
        box = Box(folder, tree, **options)
        try:
            yield box
        finally:
            box.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
