"""Counted messages: written and read as h11 would, and everything else by h11 itself."""

from __future__ import annotations

import h11
import pytest

from ringfence.host.egress import framing, head
from ringfence.host.egress.configuration import Bounds

BOUNDS, MOST = Bounds(), 64 << 10
Pairs = list[tuple[bytes, bytes]]


def asked(method: str = "GET", *fields: str, minor: int = 1) -> head.RequestHead:
    lines = [f"{method} /a HTTP/1.{minor}", "Host: api.test", *fields]
    return head.request("\r\n".join(lines).encode() + b"\r\n\r\n", BOUNDS)


def answered(status: int, *fields: str, minor: int = 1) -> head.ResponseHead:
    lines = [f"HTTP/1.{minor} {status} Fine", *fields]
    return head.response("\r\n".join(lines).encode() + b"\r\n\r\n", BOUNDS)


REQUESTS = [
    asked(*words, minor=minor)
    for method in ("GET", "HEAD", "DELETE", "OPTIONS")
    for fields in ((), ("Content-Length: 0",), ("Connection: keep-alive",), ("Connection: close",), ("X: a", "X: b"))
    for minor in (1, 0)
    for words in [(method, *fields)]
]
ANSWERS: list[tuple[int, Pairs]] = [
    (status, fields)
    for status in (200, 204, 206, 304, 404)
    for fields in (
        [],
        [(b"content-length", b"5")],
        [(b"content-length", b"0"), (b"x", b"y")],
        [(b"transfer-encoding", b"chunked")],
    )
]


def server(of: head.RequestHead) -> h11.Connection:
    made = h11.Connection(h11.SERVER)
    made.receive_data(of.raw)
    assert isinstance(made.next_event(), h11.Request)
    assert isinstance(made.next_event(), h11.EndOfMessage)
    return made


def body_of(of: head.RequestHead, status: int, fields: Pairs) -> bytes:
    length = next((int(value) for name, value in fields if name == b"content-length"), 5)
    return b"" if of.method == "HEAD" or status in (204, 304) else b"x" * length


@pytest.mark.parametrize(("status", "fields"), ANSWERS)
def test_an_answer_is_written_as_h11_writes_it(status: int, fields: Pairs) -> None:
    for of in REQUESTS:
        body, reply, other = body_of(of, status, fields), framing.Reply(of, MOST), server(of)
        ours = reply.head(status, b"Fine", fields)
        theirs = other.send(h11.Response(status_code=status, reason=b"Fine", headers=fields)) or b""
        if body:
            ours += reply.data(body)
            theirs += other.send(h11.Data(data=body)) or b""
        ours += reply.end()
        theirs += other.send(h11.EndOfMessage()) or b""
        assert ours == theirs, of.raw
        assert reply.alive == (other.our_state is h11.DONE and other.their_state is h11.DONE), of.raw


@pytest.mark.parametrize(("status", "fields"), ANSWERS)
@pytest.mark.parametrize("connection", ["", "Connection: close", "Connection: keep-alive", "Connection: x"])
def test_an_answer_is_counted_as_h11_counts_it(status: int, fields: Pairs, connection: str) -> None:
    said = answered(
        status, *(f"{name.decode()}: {value.decode()}" for name, value in fields), *filter(None, [connection])
    )
    for of in REQUESTS:
        length = framing.counted(of.method, said)
        if length is None:
            continue  # h11 reads it
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method=of.method, target=of.target, headers=[("Host", "api.test")]))
        client.send(h11.EndOfMessage())
        client.receive_data(said.raw + b"x" * length)
        events: list[object] = [client.next_event()]
        while not isinstance(events[-1], h11.EndOfMessage):
            events.append(client.next_event())
        assert sum(len(event.data) for event in events if isinstance(event, h11.Data)) == length
        assert client.their_state is h11.DONE  # the connection carries another: nothing was said against it
        assert client.trailing_data[0] == b""


def test_some_of_each_kind_are_counted() -> None:
    """That the two above compare something."""
    assert framing.counted("GET", answered(200, "Content-Length: 5")) == 5
    assert framing.counted("HEAD", answered(200, "Content-Length: 5")) == 0
    assert framing.counted("GET", answered(304)) == 0
    assert framing.counted("GET", answered(200)) is None
    assert framing.counted("GET", answered(200, "Transfer-Encoding: chunked")) is None
    assert framing.counted("GET", answered(200, "Content-Length: 5", "Connection: close")) is None
    assert framing.counted("GET", answered(200, "Content-Length: 5", minor=0)) is None


@pytest.mark.parametrize("of", REQUESTS)
def test_a_request_without_a_body_is_written_as_h11_writes_it(of: head.RequestHead) -> None:
    fields: Pairs = [(b"accept", b"*/*"), (b"host", b"api.test"), (b"x", b"\xe9 \t b")]
    question = framing.Question(of.method, of.target, fields, bodied=False, most=MOST)
    client = h11.Connection(h11.CLIENT)
    theirs = client.send(h11.Request(method=of.method, target=of.target, headers=fields)) or b""
    theirs += client.send(h11.EndOfMessage()) or b""
    assert question.head() + question.end() == theirs


@pytest.mark.parametrize("status", [100, 103])
def test_an_interim_answer_is_written_as_h11_writes_it(status: int) -> None:
    of, fields = asked(), [(b"link", b"</a>")]
    theirs = server(of).send(h11.InformationalResponse(status_code=status, headers=fields))
    assert framing.Reply(of, MOST).interim(status, fields) == theirs


def test_no_more_and_no_less_than_its_length_goes_out() -> None:
    for pieces in ([b"123456"], [b"1234"], [b"1234", b"56"]):
        reply = framing.Reply(asked(), MOST)
        reply.head(200, b"", [(b"content-length", b"5")])
        with pytest.raises(h11.LocalProtocolError):
            for piece in pieces:
                reply.data(piece)
            reply.end()
        assert not reply.alive


def test_an_answer_that_has_not_ended_leaves_no_connection() -> None:
    reply = framing.Reply(asked(), MOST)
    reply.head(200, b"", [(b"content-length", b"5")])
    assert not reply.alive
