"""The receiver of prove: as careless as one can be, so that what is there was sent, and how often."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import RemoteDisconnected

import pytest

from ringfence.prove.receiving import Receiver, receiver


@pytest.fixture
def outside() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


def post(outside: Receiver, body: bytes, key: str = "k") -> int:
    request = urllib.request.Request(outside.url("pay"), body, {"Idempotency-Key": key})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return int(answer.status)


def test_each_arrival_counts_though_its_key_was_there(outside: Receiver) -> None:
    """No signature is looked at either: nothing but the host keeps a second one away."""
    for amount in (5, 5, 6):
        assert post(outside, json.dumps({"who": "alice", "amount": amount}).encode()) == 200
    post(outside, b'{"who": "bob"}')
    assert [body["amount"] for body in outside.of("alice")] == [5, 5, 6]
    assert len(outside.of("bob")) == 1 and outside.of("carol") == []


def test_what_is_no_object_is_kept_all_the_same(outside: Receiver) -> None:
    post(outside, b"[1]")
    post(outside, b"")
    assert outside.bodies == [{"body": [1]}, {}]


def test_a_look_up_settles_nothing(outside: Receiver) -> None:
    post(outside, b'{"who": "alice"}', "s/run/1/abc")
    with urllib.request.urlopen(outside.url("look?key=s/run/1/abc"), timeout=30) as answer:
        assert json.load(answer) == {"state": "unknown"}


def test_noise_ends_its_connection_and_nothing_else(outside: Receiver, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((RemoteDisconnected, urllib.error.URLError, ConnectionError)):
        post(outside, b"\xff{")
    assert outside.bodies == []
    assert post(outside, b'{"who": "alice"}') == 200
    assert len(outside.of("alice")) == 1
    capfd.readouterr()


def test_it_is_on_loopback_alone_and_gone_afterwards() -> None:
    with receiver() as made, socket.create_connection(("127.0.0.1", made.port), 30) as there:
        assert there.getpeername()[0] == "127.0.0.1"
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.2", made.port), 30)
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", made.port), 30)
