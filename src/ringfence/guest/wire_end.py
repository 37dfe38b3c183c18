"""PID 1's end of the wire: the listening socket, the one connection, what waits to be sent and to be acknowledged.

The host dials, the newest connection wins. Nothing blocks: what does not go out now is held, and while too much is
held `full` says so and whoever produces stops. A broken rule ends the connection, never the box.
"""

import _socket
import binascii

from ringfence.guest.forks import say
from ringfence.guest.poller import READ, WRITE, Poller
from ringfence.wire.framing import LineBuffer, LocalProtocolError, RemoteProtocolError, encode
from ringfence.wire.reports import Unacknowledged
from ringfence.wire.state import GREETED, GUEST, Connection, Event

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_WAITING = 1024 * 1024
"""Bytes that wait for the host to read, above which nothing more is produced."""
RECEIVE = 64 * 1024
"""Below the size from which the C library maps and unmaps memory for each buffer (128 KiB)."""


class WireEnd:
    __slots__ = ("_buffer", "_connection", "_lines", "_listener", "_poller", "_sock", "_told", "_writing",
                 "on_change", "on_event", "on_loss", "reports")  # fmt: skip

    def __init__(self, poller: Poller, listener: int) -> None:
        """`listener`: a bound stream socket. It is made to listen here: the host proves its peer by that."""
        self.reports = Unacknowledged()
        self.on_event: Callable[[Event], None] = lambda event: None
        self.on_change: Callable[[], None] = lambda: None  # `greeted` or `full` has changed
        self.on_loss: Callable[[], None] = lambda: None
        self._poller = poller
        self._sock: _socket.socket | None = None
        self._connection = Connection(GUEST)
        self._lines = LineBuffer()
        self._buffer = bytearray()
        self._writing = False  # the poller tells us when there is room
        self._told = (False, False)
        self._listener = _socket.socket(fileno=listener)
        self._listener.listen(8)
        self._listener.setblocking(False)
        poller.watch(listener, self._accept)

    @property
    def greeted(self) -> bool:
        return self._connection.state == GREETED

    @property
    def full(self) -> bool:
        return len(self._buffer) > MAX_WAITING or self.reports.full

    # --- saying

    def reply(self, request: int, ok: "dict[str, Any]") -> None:
        """Nothing, when the connection that asked is gone."""
        if request in self._connection.unanswered():
            self._connection.reply(request, ok)

    def reply_error(self, request: int, code: str, message: str) -> None:
        if request in self._connection.unanswered():
            self._connection.reply_error(request, code, message)

    def notify(self, method: str, params: "dict[str, Any]") -> None:
        if self.greeted:
            self._connection.notify(method, params)

    def notify_output(self, frame: bytes, data: bytes) -> None:
        """`frame`: of `output_frame`. The hot path of large outputs: nothing is quoted or looked through again."""
        if self.greeted:
            encoded = binascii.b2a_base64(data, newline=False)
            self._connection.send_encoded(frame + encoded + b'"}}\n')

    def relay(self, run: str, frame: bytes) -> None:
        if self.greeted:
            self._connection.relay(run, frame)

    def report(self, method: str, params: "dict[str, Any]") -> int:
        """Its number. Kept until it is acknowledged, whatever becomes of this connection."""
        number, frame = self.reports.add(method, params)
        if self.greeted:
            self._connection.send_encoded(frame)
        return number

    def repeat(self, number: int) -> None:
        frame = self.reports.frame(number)
        if frame is not None and self.greeted:
            self._connection.send_encoded(frame)

    def repeat_all(self) -> None:
        for frame in self.reports.frames():
            self._connection.send_encoded(frame)

    def flush(self) -> None:
        """Sends what goes now. Once for each turn of the loop."""
        data = self._connection.data_to_send()
        if self._sock is None:
            self._tell()
            return
        if data and not self._buffer:
            data = data[self._send(data) :]
        self._buffer += data
        if self._buffer and not self._writing:
            self._watch(True)
        self._tell()

    # --- the connection

    def drop(self, why: str) -> None:
        """Ends the connection. What was in flight has ended without an answer; the box goes on."""
        if self._sock is None:
            return
        if why:
            say(f"guest: wire: {why}")
        self._poller.forget(self._sock.fileno())
        self._sock.close()
        self._sock = None
        self._connection.close()
        self._buffer.clear()
        self._writing = False
        self.on_loss()

    def _accept(self, events: int) -> None:
        try:
            fd, _ = self._listener._accept()  # type: ignore[attr-defined]
        except OSError:
            return
        self.drop("")
        self._sock = _socket.socket(fileno=fd)
        self._sock.setblocking(False)
        self._connection = Connection(GUEST)
        self._lines = LineBuffer()
        self._watch(False)

    def _watch(self, writing: bool) -> None:
        if self._sock is not None:
            self._writing = writing
            self._poller.watch(self._sock.fileno(), self._ready, READ | WRITE if writing else READ)

    def _ready(self, events: int) -> None:
        if events & WRITE:
            del self._buffer[: self._send(memoryview(self._buffer)[: 4 * RECEIVE])]
            if not self._buffer:
                self._watch(False)
        if events & ~WRITE:
            self._receive()

    def _send(self, data: bytes | memoryview) -> int:
        """Bytes that went out."""
        if self._sock is None:
            return 0
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError:  # the end of file that follows drops it
            return len(data)

    def _receive(self) -> None:
        sock = self._sock
        if sock is None:
            return
        try:
            data = sock.recv(RECEIVE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            if not data:
                self._lines.at_eof()
                self.drop("")
                return
            for line in self._lines.feed(data):
                self.on_event(self._connection.receive(line))
                if self._sock is not sock:
                    return
        except (RemoteProtocolError, LocalProtocolError) as error:
            self.drop(str(error))

    def _tell(self) -> None:
        now = (self.greeted, self.full)
        if now != self._told:
            self._told = now
            self.on_change()


def output_frame(key: str, stream: int) -> bytes:
    """A `cmd.output` frame up to its data, which needs no quoting."""
    return encode({"m": "cmd.output", "p": {"key": key, "stream": stream, "data_b64": ""}})[: -len(b'"}}\n')]
