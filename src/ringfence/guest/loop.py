"""The process of one agent loop, on its own side of the socket to PID 1. Heavy imports are fine here.

It asks the host one thing at a time and waits. When the wire was lost it asks again: every ask may be said twice.
It must never end without having said run.finish or run.fail, unless it is killed.
"""

import _socket
import sys
from typing import Any

from ringfence.wire.framing import MAX_LOOP_FRAME, LineBuffer, LocalProtocolError, RemoteProtocolError, decode, encode

RECEIVE = 256 * 1024


class AskError(Exception):
    """The host answered with an error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Host:
    """The host, as one run sees it. Adds the run's token to each ask."""

    def __init__(self, sock: _socket.socket, token: str) -> None:
        self._sock = sock
        self._token = token
        self._lines = LineBuffer()
        self._ready: list[bytes] = []
        self._number = 0

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The result. AskError; LocalProtocolError when it is too large to be said. Ends the process when PID 1 is
        gone."""
        body = {"token": self._token, **params}
        number = self._say(method, body)
        while True:
            frame = decode(self._next())
            if frame.get("m") == "rewired":
                number = self._say(method, body)
            elif frame.get("re") == number:
                return _result(frame)

    def _say(self, method: str, body: dict[str, Any]) -> int:
        self._number += 1
        self._sock.sendall(encode({"id": self._number, "m": method, "p": body}, MAX_LOOP_FRAME))
        return self._number

    def _next(self) -> bytes:
        while not self._ready:
            data = self._sock.recv(RECEIVE)
            if not data:
                raise SystemExit(1)
            self._ready = self._lines.feed(data)
        return self._ready.pop(0)


def _result(frame: dict[str, Any]) -> dict[str, Any]:
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
        host.ask("run.finish", text=carry_out(start, host))
    except RunFailed as failure:
        host.ask("run.fail", code=failure.code, message=failure.message)
    except AskError as error:
        _give_up(host, error.code, error.message)
    except (LocalProtocolError, RemoteProtocolError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        _give_up(host, "loop_failed", f"{type(error).__name__}: {error}")
    sys.stderr.flush()


def _give_up(host: Host, code: str, message: str) -> None:
    """The host may have refused because the run is not ours any more: then nobody listens, and the end is the end."""
    try:
        host.ask("run.fail", code=code[:64], message=message[:4000])
    except AskError:
        raise SystemExit(2) from None
