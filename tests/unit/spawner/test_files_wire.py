"""The helper against a peer that breaks the wire: it ends, at once, with nothing half done."""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.spawner.files_helper import answer_all
from ringfence.spawner.files_protocol import Broken, Wire
from ringfence.spawner.protocol import FILES_ABORT, FILES_CHUNK, FILES_FRAME


def frame(body: Any) -> bytes:
    data = json.dumps(body).encode()
    return struct.pack(">I", len(data)) + data


def packed(path: bytes) -> str:
    return base64.b64encode(path).decode()


class Peer:
    """The helper's loop in a thread, as the test's own account, and this end of its socket."""

    def __init__(self, folder: Path, idle: float = 5) -> None:
        for name in ("home", "workspace", "tmp"):
            (folder / name).mkdir(exist_ok=True)
        self.home = folder / "home"
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(5)
        self.outcome = "running"
        self._thread = threading.Thread(target=self._serve, args=(folder, theirs, idle))
        self._thread.start()

    def _serve(self, folder: Path, sock: socket.socket, idle: float) -> None:
        tree_fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        with sock:
            try:
                answer_all(Wire(sock), tree_fd, idle)
                self.outcome = "ended"
            except Broken:
                self.outcome = "broken"
            finally:
                os.close(tree_fd)

    def ask(self, **request: Any) -> Any:
        self.sock.sendall(frame(request))
        return self.reply()

    def reply(self) -> Any:
        (length,) = struct.unpack(">I", self.exactly(4))
        return json.loads(self.exactly(length))

    def exactly(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            piece = self.sock.recv(length - len(data))
            assert piece, "the helper hung up"
            data += piece
        return data

    def end(self) -> str:
        self.sock.close()
        self._thread.join(5)
        return self.outcome


@contextmanager
def peer(folder: Path, idle: float = 5) -> Iterator[Peer]:
    made = Peer(folder, idle)
    try:
        yield made
    finally:
        made.end()


STAT = {"op": "stat", "path_b64": packed(b"home")}


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">I", FILES_FRAME + 1),
        struct.pack(">I", FILES_ABORT),
        struct.pack(">I", 3) + b"{x}",
        struct.pack(">I", 100_000) + b"[" * 100_000,
        struct.pack(">I", 2) + b"\xff\xff",
        frame([1]),
        frame({}),
        frame({"op": 7}),
        frame({"op": "open", "path_b64": ""}),
        frame({"op": "stat"}),
        frame({"op": "stat", "path_b64": "?"}),
        frame({"op": "stat", "path_b64": ["x"]}),
        frame({"op": "list", "path_b64": packed(b"home"), "limit": 0}),
        frame({"op": "list", "path_b64": packed(b"home"), "limit": 1001}),
        frame({"op": "list", "path_b64": packed(b"home"), "limit": True}),
        frame({"op": "list", "path_b64": packed(b"home"), "limit": 10, "after_b64": 3}),
        frame({"op": "put", "path_b64": packed(b"home/f"), "mode": 0o4755}),
        frame({"op": "put", "path_b64": packed(b"home/f")}),
    ],
)
def test_nonsense_ends_the_helper(tmp_path: Path, sent: bytes) -> None:
    with peer(tmp_path) as helper:
        helper.sock.sendall(frame(STAT) + sent)
        assert helper.reply()["ok"]["kind"] == "directory"
        assert helper.sock.recv(1) == b""
        assert helper.end() == "broken"


def test_an_idle_helper_ends(tmp_path: Path) -> None:
    with peer(tmp_path, idle=0.2) as helper:
        assert "ok" in helper.ask(**STAT)
        before = time.monotonic()
        assert helper.sock.recv(1) == b""
        assert time.monotonic() - before > 0.1
        assert helper.end() == "ended"


def test_a_peer_that_ends(tmp_path: Path) -> None:
    with peer(tmp_path) as helper:
        assert helper.end() == "ended"
    with peer(tmp_path) as helper:
        helper.sock.sendall(frame(STAT)[:7])
        assert helper.end() == "broken"


PUT = {"op": "put", "path_b64": packed(b"home/d/f"), "mode": 0o640}


@pytest.mark.parametrize(
    ("sent", "outcome"),
    [
        (b"", "broken"),
        (struct.pack(">I", 5) + b"hel", "broken"),
        (struct.pack(">I", 3) + b"hel", "broken"),
        (struct.pack(">I", FILES_CHUNK + 1), "broken"),
    ],
)
def test_a_put_without_its_end_leaves_nothing(tmp_path: Path, sent: bytes, outcome: str) -> None:
    with peer(tmp_path) as helper:
        assert helper.ask(**PUT) == {"ready": {}}
        staged = helper.home.parent / ".put"
        assert len(os.listdir(staged)) == 1 and os.listdir(helper.home / "d") == []
        helper.sock.sendall(sent)
        assert helper.end() == outcome
        assert os.listdir(staged) == [] == os.listdir(helper.home / "d")


def test_a_put_that_is_aborted(tmp_path: Path) -> None:
    with peer(tmp_path) as helper:
        assert helper.ask(**PUT) == {"ready": {}}
        helper.sock.sendall(struct.pack(">I", 1) + b"x" + struct.pack(">I", FILES_ABORT) + frame({"error": {}}))
        assert helper.reply()["error"]["code"] == "aborted"
        assert os.listdir(helper.home / "d") == []
        assert helper.ask(**PUT) == {"ready": {}}
        helper.sock.sendall(struct.pack(">I", 1) + b"x" + struct.pack(">I", 0))
        assert helper.reply()["ok"]["size"] == 1


def test_a_path_is_below_a_top_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "home" / "link").parent.mkdir()
    (tmp_path / "home" / "link").symlink_to("../secret")
    (tmp_path / "home" / "shop").symlink_to("../workspace")
    with peer(tmp_path) as helper:
        for path in (b"secret", b"", b".", b"../x", b"/", b"/home", b"home/../secret", b"home/link/.", b"home/shop/."):
            assert helper.ask(op="stat", path_b64=packed(path))["error"]["code"] == "refused", path
        for path in (b"home", b"home/", b"tmp", b"workspace/."):
            assert helper.ask(op="remove", path_b64=packed(path), recursive=True)["error"]["code"] != "not_found", path
        assert sorted(os.listdir(tmp_path)) == ["home", "secret", "tmp", "workspace"]


def test_a_top_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    with peer(tmp_path) as helper:
        helper.home.rmdir()
        (tmp_path / "elsewhere").mkdir()
        helper.home.symlink_to("elsewhere")
        assert helper.ask(**STAT)["error"]["code"] == "refused"


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_crash_it(tmp_path_factory: pytest.TempPathFactory, sent: bytes) -> None:
    with peer(tmp_path_factory.getbasetemp()) as helper:
        helper.sock.sendall(sent)
        helper.sock.shutdown(socket.SHUT_WR)
        assert helper.end() in ("ended", "broken")
