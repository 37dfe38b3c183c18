"""The loop's end of its socket to PID 1: asks, their answers, and what arrives between."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from ringfence.guest.loop import MAX_NEWS, AskError, Host, Inbox
from ringfence.wire.framing import LineBuffer, RemoteProtocolError, decode, encode


class Pid1:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._lines = LineBuffer()

    def say(self, *frames: dict[str, Any]) -> None:
        self.sock.sendall(b"".join(encode(frame) for frame in frames))

    def asked(self) -> list[tuple[str, Any]]:
        return [(frame["m"], frame["p"]) for frame in map(decode, self._lines.feed(self.sock.recv(1 << 20)))]


@pytest.fixture
def ends() -> Iterator[tuple[Host, Pid1]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Host(ours, "tok"), Pid1(theirs)


def steer(cursor: int, text: str = "") -> dict[str, Any]:
    return {"m": "steer", "p": {"message": {"cursor": cursor, "text": text}}}


def wind_down(seconds: int) -> dict[str, Any]:
    return {"m": "wind_down", "p": {"seconds": seconds}}


def heard(host: Host) -> list[Any]:
    return [p["message"]["cursor"] if m == "steer" else m for m, p in host.news()]


def test_news_before_within_and_after_an_ask_are_kept_in_order(ends: tuple[Host, Pid1]) -> None:
    host, pid1 = ends
    pid1.say(steer(2), steer(3), {"re": 1, "ok": {"a": 1}}, steer(4))
    assert host.ask("x") == {"a": 1}
    pid1.say(steer(5))
    assert heard(host) == [2, 3, 4, 5]
    assert host.news() == []


def test_a_rewired_ask_is_said_again_and_loses_no_news(ends: tuple[Host, Pid1]) -> None:
    host, pid1 = ends
    pid1.say(steer(2), {"m": "rewired", "p": {}}, steer(3), {"re": 1, "ok": {"stale": 1}}, {"re": 2, "ok": {"b": 2}})
    assert host.ask("x", n=7) == {"b": 2}
    assert pid1.asked() == [("x", {"token": "tok", "n": 7})] * 2
    assert heard(host) == [2, 3]


def test_between_asks_rewired_and_stray_replies_are_nothing(ends: tuple[Host, Pid1]) -> None:
    host, pid1 = ends
    pid1.say({"m": "rewired", "p": {}}, {"re": 9, "ok": {}}, steer(2), {"m": "of_a_later_release", "p": {}})
    assert heard(host) == [2]
    pid1.say({"re": 1, "err": {"code": "conflict", "message": "no"}})
    with pytest.raises(AskError, match="conflict: no"):
        host.ask("x")
    assert len(pid1.asked()) == 1


def test_news_do_not_wait_for_the_rest_of_a_frame_and_do_not_lose_its_beginning(ends: tuple[Host, Pid1]) -> None:
    host, pid1 = ends
    whole = encode(steer(2, "x" * 1000))
    pid1.sock.sendall(whole[:500])
    assert host.news() == []
    pid1.sock.sendall(whole[500:] + encode(steer(3))[:5])
    assert heard(host) == [2]
    pid1.sock.sendall(encode(steer(3))[5:])
    assert heard(host) == [3]


def test_the_end_of_pid_1_ends_the_process_and_garbage_is_an_error(ends: tuple[Host, Pid1]) -> None:
    host, pid1 = ends
    pid1.sock.sendall(b"garbage\n")
    with pytest.raises(RemoteProtocolError):
        host.news()
    pid1.sock.shutdown(socket.SHUT_WR)
    with pytest.raises(SystemExit):
        host.news()


def test_wind_down_is_there_once_and_the_newest_counts(ends: tuple[Host, Pid1]) -> None:
    host, pid1 = ends
    pid1.say(wind_down(30), steer(2), wind_down(10))
    assert host.news() == [("steer", steer(2)["p"]), ("wind_down", {"seconds": 10})]


def test_news_are_bounded_and_never_have_a_gap() -> None:
    inbox = Inbox(100)
    for cursor, size in ((2, 60), (3, 60), (4, 10)):
        inbox.put("steer", steer(cursor)["p"], size)
    inbox.put("wind_down", {"seconds": 1}, 1000)
    assert [method for method, _ in inbox.take()] == ["steer", "wind_down"]
    inbox.put("steer", steer(5)["p"], 10)  # there is room again, but 3 and 4 are missing
    assert inbox.take() == []


def test_control_what_is_drained_makes_room() -> None:
    inbox = Inbox(100)
    for cursor in range(2, 50):
        inbox.put("steer", steer(cursor)["p"], 60)
        assert len(inbox.take()) == 1
    assert MAX_NEWS >= 4 << 20
