"""Where a message ends, on both legs of one exchange. What is counted (no body, or a Content-Length) is framed here, all else by
h11: chunks, ends of connections, HTTP/1.0, bodies of requests.

A counted message has one reading, and its head was read strictly before (head.py); h11 would read it a second time and write it
the same, at a third of the processor time of a request. Pure. It must never let more or less of a body through than its length,
nor call a connection good for another message that h11 would not.
"""

from __future__ import annotations

from collections.abc import Sequence

import h11

from ringfence.host.egress.head import Fields, RequestHead, ResponseHead
from ringfence.host.egress.refusals import Code, Refusal

Written = Sequence[tuple[bytes, bytes]]
_BODILESS = frozenset({204, 304})  # RFC 9112 section 6.3; 1xx are no answers yet


class Unframed(Refusal):
    """`malformed`: not framed as its head says."""

    def __init__(self) -> None:
        super().__init__(Code.MALFORMED, "the message is not framed as HTTP/1.1 has it", close=True)


def event(connection: h11.Connection) -> object:
    """The next of it. Unframed."""
    try:
        return connection.next_event()
    except h11.RemoteProtocolError:
        raise Unframed from None


def counted(method: str, head: ResponseHead) -> int | None:
    """Bytes of the body of the answer to `method`; None: it is h11's to say, and whether the connection goes on."""
    if head.minor != 1 or not _stays(head.fields):
        return None
    length = None
    for name, value in head.fields:
        if name == b"transfer-encoding":
            return None
        if name == b"content-length":
            length = int(value)
    if method == "HEAD" or head.status in _BODILESS:
        return 0
    return length


def _stays(fields: Fields) -> bool:
    """Whether the sender says nothing of its connection but that it is kept."""
    return all(value.lower() == b"keep-alive" for name, value in fields if name == b"connection")


def _written(line: bytes, fields: Written) -> bytes:
    """Host first: RFC 9110 section 7.2."""
    lines = [line]
    lines += [b"%s: %s" % pair for pair in fields if pair[0] == b"host"]
    lines += [b"%s: %s" % pair for pair in fields if pair[0] != b"host"]
    return b"\r\n".join(lines) + b"\r\n\r\n"


class Question:
    """A request as a server gets it, and how its answer is framed. `fields`: checked, with Host and framing. `bodied`: it has
    a body, which goes by `data` and `end`."""

    def __init__(self, method: str, target: bytes, fields: Written, *, bodied: bool, most: int) -> None:
        self._method, self._target, self._fields, self._bodied, self._most = method, target, fields, bodied, most
        self._sent: h11.Connection | None = None  # with the request said to it

    def head(self) -> bytes:
        if self._bodied:
            self._sent = self._connection()
            return self._sent.send(self._request()) or b""
        return _written(b"%s %s HTTP/1.1" % (self._method.encode(), self._target), self._fields)

    def data(self, piece: bytes) -> bytes:
        return self.asked.send(h11.Data(data=piece)) or b""

    def end(self) -> bytes:
        return (self.asked.send(h11.EndOfMessage()) or b"") if self._bodied else b""

    def counted(self, head: ResponseHead) -> int | None:
        return None if self._bodied else counted(self._method, head)

    @property
    def asked(self) -> h11.Connection:
        """A client's that has sent this."""
        if self._sent is None:
            self._sent = self._connection()
            self._sent.send(self._request())
            self._sent.send(h11.EndOfMessage())
        return self._sent

    @property
    def over(self) -> bool:
        """Of what h11 framed: nothing is to come on either way, and nothing came behind."""
        sent = self.asked
        return sent.our_state is h11.DONE and sent.their_state is h11.DONE and not sent.trailing_data[0]

    def _connection(self) -> h11.Connection:
        return h11.Connection(h11.CLIENT, max_incomplete_event_size=self._most)

    def _request(self) -> h11.Request:
        return h11.Request(method=self._method.encode(), target=self._target, headers=list(self._fields))


class Reply:
    """How the request of a box is framed, and its answer. `most`: bytes of a head."""

    def __init__(self, asked: RequestHead, most: int) -> None:
        self._asked, self._most = asked, most
        self._plain = asked.minor == 1 and not asked.has_body and _stays(asked.fields)
        self._left: int | None = None  # of the body of a counted answer
        self._over = False
        self._heard: h11.Connection | None = None

    @property
    def heard(self) -> h11.Connection:
        """A server's that has read the head of the request. Refusal `malformed`."""
        if self._heard is None:
            self._heard = h11.Connection(h11.SERVER, max_incomplete_event_size=self._most)
            self._heard.receive_data(self._asked.raw)
            if not isinstance(event(self._heard), h11.Request):
                raise Refusal(Code.MALFORMED, "the head is not complete", close=True)
            if not self._asked.has_body:
                event(self._heard)  # EndOfMessage: the state goes on, nothing is read
        return self._heard

    @property
    def behind(self) -> bytes:
        """What h11 has taken beyond the request."""
        return self._heard.trailing_data[0] if self._heard is not None else b""

    def interim(self, status: int, fields: Written) -> bytes:
        if self._plain:
            return _written(b"HTTP/1.1 %d " % status, fields)
        return self.heard.send(h11.InformationalResponse(status_code=status, headers=list(fields))) or b""

    def head(self, status: int, reason: bytes, fields: Written) -> bytes:
        """`fields`: checked, those of framing among them."""
        self._left = self._length(status, fields) if self._plain else None
        if self._left is not None:
            return _written(b"HTTP/1.1 %d %s" % (status, reason), fields)
        return self.heard.send(h11.Response(status_code=status, reason=reason, headers=list(fields))) or b""

    def _length(self, status: int, fields: Written) -> int | None:
        """None: not counted. An answer to HEAD without a length would be chunked if there were a body: h11 says so."""
        if any(name == b"transfer-encoding" for name, _ in fields):
            return None
        length = next((int(value) for name, value in fields if name == b"content-length"), None)
        bodiless = status in _BODILESS or (self._asked.method == "HEAD" and length is not None)
        return 0 if bodiless else length

    def data(self, piece: bytes) -> bytes:
        if self._left is None:
            return self.heard.send(h11.Data(data=piece)) or b""
        if len(piece) > self._left:
            raise h11.LocalProtocolError("more of a body than its length")
        self._left -= len(piece)
        return piece

    def end(self) -> bytes:
        if self._left is None:
            return self.heard.send(h11.EndOfMessage()) or b""
        if self._left:
            raise h11.LocalProtocolError("less of a body than its length")
        self._over = True
        return b""

    @property
    def alive(self) -> bool:
        """Whether the connection can carry another request."""
        if self._over or self._heard is None:
            return self._over
        return self._heard.our_state is h11.DONE and self._heard.their_state is h11.DONE
