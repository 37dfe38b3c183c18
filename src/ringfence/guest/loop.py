"""The process of one agent loop, on its own side of the socket to PID 1. A turn waits for its imports: `typing` and `re`
alone would take 10 ms.

It asks the host one thing at a time and waits. When the wire was lost it asks again: every ask may be said twice.
It must never end without having said run.finish or run.fail, unless it is killed.
"""

import _socket
import sys

from ringfence.wire.framing import MAX_LOOP_FRAME, LineBuffer, RemoteProtocolError, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    News = list[tuple[str, dict[str, Any]]]

RECEIVE = 256 * 1024
MAX_NEWS = 8 * 1024 * 1024
"""Bytes of news that nobody has drained: 32 of the largest messages, said while one tool was at work."""
STEER, WIND_DOWN = "steer", "wind_down"


class AskError(Exception):
    """The host answered with an error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Inbox:
    """What the host told without being asked, in order, until the loop looks. Bounded: a steer that finds no room is
    left out and so is every later one, for what the loop takes up must have no gap; run.finish is answered with them."""

    def __init__(self, most: int = MAX_NEWS) -> None:
        self._news: News = []
        self._size = 0
        self._most = most
        self._behind = False

    def put(self, method: str, params: "dict[str, Any]", size: int) -> None:
        """`size`: bytes of the frame. Methods that this loop does not know are nothing."""
        if method == WIND_DOWN:
            self._news = [item for item in self._news if item[0] != WIND_DOWN]  # at most one: the newest counts
            self._news.append((method, params))
        elif method == STEER:
            self._behind = self._behind or self._size + size > self._most
            if not self._behind:
                self._size += size
                self._news.append((method, params))

    def take(self) -> "News":
        news, self._news, self._size = self._news, [], 0
        return news


class Host:
    """The host, as one run sees it. Adds the run's token to each ask."""

    def __init__(self, sock: _socket.socket, token: str) -> None:
        self._sock = sock
        self._token = token
        self._lines = LineBuffer()
        self._ready: list[bytes] = []
        self._inbox = Inbox()
        self._number = 0

    def ask(self, method: str, **params: "Any") -> "dict[str, Any]":
        """The result. AskError; LocalProtocolError when it is too large to be said. Ends the process when PID 1 is
        gone."""
        body = {"token": self._token, **params}
        number = self._say(method, body)
        while True:
            frame = self._hear(self._next())
            if frame.get("m") == "rewired":
                number = self._say(method, body)
            elif frame.get("re") == number:
                return _result(frame)

    def news(self) -> "News":
        """(method, parameters) of what the host has told since the last call: `steer` {message}, `wind_down` {seconds}.
        Does not wait. Ends the process when PID 1 is gone."""
        while self._ready or self._receive(_socket.MSG_DONTWAIT):
            while self._ready:  # no ask is in flight: a reply is one of an earlier wire, and `rewired` is nothing
                self._hear(self._ready.pop(0))
        return self._inbox.take()

    def _say(self, method: str, body: "dict[str, Any]") -> int:
        self._number += 1
        self._sock.sendall(encode({"id": self._number, "m": method, "p": body}, MAX_LOOP_FRAME))
        return self._number

    def _hear(self, line: bytes) -> "dict[str, Any]":
        frame = decode(line)
        method, params = frame.get("m"), frame.get("p")
        if isinstance(method, str) and isinstance(params, dict):
            self._inbox.put(method, params, len(line))
        return frame

    def _next(self) -> bytes:
        while not self._ready:
            self._receive(0)
        return self._ready.pop(0)

    def _receive(self, flags: int) -> bool:
        """False: nothing has arrived."""
        try:
            data = self._sock.recv(RECEIVE, flags)
        except BlockingIOError:
            return False
        if not data:
            raise SystemExit(1)
        self._ready = self._lines.feed(data)
        return True


def _result(frame: "dict[str, Any]") -> "dict[str, Any]":
    error = frame.get("err")
    if isinstance(error, dict):
        raise AskError(str(error.get("code")), str(error.get("message")))
    result = frame.get("ok")
    if not isinstance(result, dict):
        raise RemoteProtocolError("a reply with neither a result nor an error")
    return result


def main(sock: _socket.socket, first: bytes) -> None:
    """`first`: the run.start frame as PID 1 got it."""
    from ringfence.guest.native import RunFailed, carry_out

    start = decode(first.rstrip(b"\n"))["p"]
    sock.setblocking(True)
    host = Host(sock, start["token"])
    try:
        carry_out(start, host)  # returns once its run.finish was the end of the run
    except (RunFailed, AskError) as error:
        _give_up(host, error.code, error.message)
    except Exception as error:  # a fault of the loop's own ends its run with a word, not with a silence
        _give_up(host, "loop_failed", f"{type(error).__name__}: {error}")
    sys.stderr.flush()


def _give_up(host: Host, code: str, message: str) -> None:
    """The host may have refused because the run is not ours any more: then nobody listens, and the end is the end."""
    try:
        host.ask("run.fail", code=code[:64], message=message[:4000])
    except AskError:
        raise SystemExit(2) from None
