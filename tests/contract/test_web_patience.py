"""Connections that do not get to the point: closed in time, whatever they send; those at work are left alone."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from ringfence.host.web.patience import PatientProtocol
from tests.support.web_rig import Web, web

SECONDS = 0.6
HEALTH = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setattr(PatientProtocol, "header_seconds", SECONDS)
    with web() as made:
        made.user("alice")
        yield made


def connected(served: Web) -> socket.socket:
    found = socket.socket(socket.AF_UNIX)
    found.connect(served.socket)
    found.settimeout(10)
    return found


def asked(peer: socket.socket) -> bytes:
    peer.sendall(HEALTH)
    got = b""
    while not got.endswith(b"}"):
        got += peer.recv(4096)
    return got


def closed_after(peer: socket.socket, drip: bytes = b"") -> float:
    """Seconds until the server ends it, with a byte sent each 0.1 s; infinite: it does not within 30."""
    started, at = time.monotonic(), 0
    peer.settimeout(0.1)
    while time.monotonic() - started < 30:
        try:
            if not peer.recv(4096):
                return time.monotonic() - started
        except TimeoutError:
            if drip:
                peer.sendall(drip[at : at + 1])
                at += 1
        except ConnectionError:
            return time.monotonic() - started
    return float("inf")


@pytest.mark.parametrize("drip", [b"", b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 400])
def test_headers_that_do_not_come(served: Web, drip: bytes) -> None:
    with connected(served) as peer:
        assert SECONDS * 0.9 < closed_after(peer, drip) < float("inf")


def test_the_next_request_of_a_connection(served: Web) -> None:
    """A first byte of it stops uvicorn's own clock for idle connections."""
    with connected(served) as peer:
        assert asked(peer).startswith(b"HTTP/1.1 200")
        peer.sendall(b"G")
        assert closed_after(peer) < float("inf")


def test_an_idle_connection_is_kept_and_used_again(served: Web) -> None:
    with connected(served) as peer:
        for _ in range(2):
            assert asked(peer).startswith(b"HTTP/1.1 200")
            time.sleep(SECONDS * 2)


def test_streams_and_commands_last(served: Web) -> None:
    stream = b"GET /v1/tenants/default/threads/t/events/stream HTTP/1.1\r\nHost: x\r\nRingfence-As: alice\r\n\r\n"
    served.cli("thread", "add", "t", "--member", "alice")
    with connected(served) as peer:
        peer.sendall(stream)
        assert peer.recv(4096).startswith(b"HTTP/1.1 200")
        time.sleep(SECONDS * 2)
        served.does(served.engine.threads.talks["default", "t"].event("run.queued", {"late": True}))
        got = b""
        while b"late" not in got:
            got += peer.recv(4096)
    done = served.cli("exec", "alice", "--", "sh", "-c", f"sleep {SECONDS * 2}; echo still here")
    assert (done.returncode, done.stdout) == (0, b"still here\n")


def test_many_that_say_nothing_are_all_let_go(served: Web) -> None:
    peers = [connected(served) for _ in range(100)]
    time.sleep(SECONDS + 1)
    try:
        assert [peer.recv(10) for peer in peers] == [b""] * 100
    finally:
        for peer in peers:
            peer.close()
