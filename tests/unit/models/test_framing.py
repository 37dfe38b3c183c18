"""What the gateway frames itself has one reading, and h11 reads the same; what h11 would read otherwise, or refuses, is h11's."""

from __future__ import annotations

import random

import h11
import pytest

from ringfence.host.models import framing
from ringfence.host.models.framing import Chunks, Malformed

HOST = "host: model-gateway"
USUAL = [
    ("POST /model/x HTTP/1.1", HOST, "content-length: 12", "Accept: a", "accept: b"),
    ("POST /x?y=%20 HTTP/1.1", HOST, "content-length:0", "connection: Keep-Alive"),
    ("GET /model/x HTTP/1.1", HOST, "x-odd: \t caf\xe9 \t"),
]
UNUSUAL = [
    ("POST /x HTTP/1.1", HOST, "content-length: 12", "transfer-encoding: chunked"),
    ("POST /x HTTP/1.1", HOST, "content-length: 12", "content-length: 12"),
    ("POST /x HTTP/1.1", HOST, "content-length: +12"),
    ("POST /x HTTP/1.1", HOST, "content-length: 12, 12"),
    ("POST /x HTTP/1.1", HOST, "content-length : 12"),
    ("POST /x HTTP/1.1", HOST, "content-length: 12", " folded: 1"),
    ("POST /x HTTP/1.1", HOST, "content-length: 12", "a: b\nc: d"),
    ("POST /x HTTP/1.1", HOST, "content-length: 12", "a: b\0"),
    ("POST /x HTTP/1.1", HOST, "content-length: 12", "expect: 100-continue"),
    ("POST /x HTTP/1.1", HOST, "content-length: 12", "connection: close"),
    ("POST /x HTTP/1.1", HOST, "connection: upgrade", "upgrade: websocket"),
    ("POST /x HTTP/1.1", HOST, "upgrade: websocket"),
    ("POST /x HTTP/1.1", HOST, HOST),
    ("POST /x HTTP/1.1", "content-length: 12"),
    ("POST /x HTTP/1.0", HOST, "content-length: 12"),
    ("POST  /x HTTP/1.1", HOST),
    ("POST http://a/x HTTP/1.1", HOST),
    ("POST /x", HOST),
    ("HEAD /x HTTP/1.1", HOST),
    ("CONNECT /x HTTP/1.1", HOST),
    ("POST /x HTTP/1.1", HOST, "a: " + "b" * framing.MAX_HEAD),
]


def raw(lines: tuple[str, ...]) -> bytes:
    return "\r\n".join(lines).encode("latin-1")


def by_h11(head: bytes, role: type[h11.SERVER | h11.CLIENT] = h11.SERVER) -> h11.Event | None:
    """None: refused."""
    other = h11.Connection(role, max_incomplete_event_size=1 << 20)
    if role is h11.CLIENT:
        other.send(h11.Request(method="POST", target="/", headers=[("host", "a")]))
        other.send(h11.EndOfMessage())
    other.receive_data(head + framing.END)
    try:
        event = other.next_event()
    except h11.RemoteProtocolError:
        return None
    return None if isinstance(event, type) else event


@pytest.mark.parametrize("lines", USUAL)
def test_a_usual_request_is_read_as_h11_reads_it(lines: tuple[str, ...]) -> None:
    ours, theirs = framing.request(raw(lines)), by_h11(raw(lines))
    assert ours is not None and isinstance(theirs, h11.Request)
    assert (ours.method.encode(), ours.target) == (theirs.method, theirs.target)
    assert ours.headers == {name.decode(): value.decode("latin-1") for name, value in theirs.headers}
    assert ours.length == int(ours.headers.get("content-length", "0"))


@pytest.mark.parametrize("lines", UNUSUAL)
def test_any_other_is_left_to_h11(lines: tuple[str, ...]) -> None:
    assert framing.request(raw(lines)) is None


def test_whatever_is_done_to_a_head_it_is_read_as_h11_reads_it_or_left_to_it() -> None:
    chance, taken = random.Random(7), 0
    for _ in range(20_000):
        head = bytearray(raw(chance.choice(USUAL)))
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(head))
            head[at : at + chance.randint(0, 2)] = chance.choice(
                [b"", b" ", b"\t", b"\n", b"\r", b"\0", b":", b"1", b"-", b"\xff", b"\r\n", b"content-length: 3\r\n"]
            )
        if framing.END in head + framing.END[:-1] or (ours := framing.request(bytes(head))) is None:
            continue
        theirs = by_h11(bytes(head))
        assert isinstance(theirs, h11.Request), head
        assert (ours.method.encode(), ours.target) == (theirs.method, theirs.target), head
        assert ours.headers == {name.decode(): value.decode("latin-1") for name, value in theirs.headers}, head
        taken += 1
    assert taken > 1000, "else nothing was compared"


ANSWERS = [
    (("HTTP/1.1 200 OK", "Content-Length: 5", "X: a", "X: b"), 5),
    (("HTTP/1.1 429", "content-length: 0"), 0),
    (("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", "connection: keep-alive"), None),
]


@pytest.mark.parametrize(("lines", "length"), ANSWERS)
def test_a_usual_answer_is_read_as_h11_reads_it(lines: tuple[str, ...], length: int | None) -> None:
    ours, theirs = framing.reply(raw(lines)), by_h11(raw(lines), h11.CLIENT)
    assert ours is not None and isinstance(theirs, h11.Response)
    firsts = {name.decode(): value.decode("latin-1") for name, value in reversed(list(theirs.headers))}
    assert (ours.status, ours.headers, ours.length) == (theirs.status_code, firsts, length)


@pytest.mark.parametrize(
    "lines",
    [
        ("HTTP/1.0 200 OK", "content-length: 5"),
        ("HTTP/1.1 200 OK",),  # as long as the connection
        ("HTTP/1.1 200 OK", "content-length: 5", "connection: close"),
        ("HTTP/1.1 200 OK", "content-length: 5", "transfer-encoding: chunked"),
        ("HTTP/1.1 200 OK", "transfer-encoding: gzip, chunked"),
        ("HTTP/1.1 200 OK", "transfer-encoding: chunked", "transfer-encoding: chunked"),
        ("HTTP/1.1 200 OK", "content-length: 5", "content-length: 6"),
        ("HTTP/1.1 100 Continue", "content-length: 0"),
        ("HTTP/1.1 204 None", "content-length: 5"),
        ("HTTP/1.1 304 None", "content-length: 5"),
        ("ICY 200 OK", "content-length: 5"),
    ],
)
def test_any_other_answer_is_left_to_h11(lines: tuple[str, ...]) -> None:
    assert framing.reply(raw(lines)) is None


def test_a_head_is_written_so_that_h11_reads_what_was_meant() -> None:
    fields = [("host", "a"), ("content-type", "text/event-stream; x=caf\xe9"), ("content-length", "0")]
    other = h11.Connection(h11.SERVER)
    other.receive_data(framing.written(b"POST /x HTTP/1.1", fields))
    read = other.next_event()
    assert isinstance(read, h11.Request)
    assert list(read.headers) == [(name.encode(), value.encode("latin-1")) for name, value in fields]


@pytest.mark.parametrize(
    "field", [("a", "b\r\nc: d"), ("a", "b\n"), ("a", "b\0"), ("a b", "c"), ("", "a"), ("a\r\nb", "c")]
)
def test_a_field_that_would_be_two_is_not_written(field: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="cannot be written") as caught:
        framing.written(b"POST /x HTTP/1.1", [("host", "a"), field])
    assert not any(part in str(caught.value) for part in field if len(part) > 1), "it may be a key"


def joined(data: bytes, chance: random.Random) -> tuple[bytes, Chunks]:
    """What is made of it, however it is cut."""
    chunks, found, at = Chunks(), b"", 0
    while at < len(data) and not chunks.ended:
        size = chance.choice((1, 2, 3, 10, 1000))
        found += chunks.take(data[at : at + size])
        at += size
    chunks.behind += data[at:] if chunks.ended else b""
    return found, chunks


def test_chunks_are_read_as_h11_reads_them_however_they_are_cut() -> None:
    chance = random.Random(7)
    for _ in range(500):
        pieces = [chance.randbytes(chance.choice((1, 5, 300))) for _ in range(chance.randint(0, 5))]
        ends = [b"", b" ", b";a=b", b"; a "]
        data = b"".join(b"%x%s\r\n%b\r\n" % (len(each), chance.choice(ends), each) for each in pieces)
        data += chance.choice([framing.LAST_CHUNK, b"000\r\nA: b\r\nC: d\r\n\r\n"])
        other = h11.Connection(h11.CLIENT)
        other.send(h11.Request(method="POST", target="/", headers=[("host", "a")]))
        other.send(h11.EndOfMessage())
        other.receive_data(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + data)
        assert isinstance(other.next_event(), h11.Response)
        theirs = b""
        while isinstance(event := other.next_event(), h11.Data):
            theirs += bytes(event.data)
        assert isinstance(event, h11.EndOfMessage)
        found, chunks = joined(data + b"HTTP/1.1 200 OK", chance)
        assert found == theirs == b"".join(pieces)
        assert chunks.ended and chunks.behind == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize(
    "data",
    [
        b"x\r\n",
        b"-1\r\n",
        b"0x1\r\na\r\n",
        b"1\na\r\n",
        b"1 ;a\r\nb\r\n",
        b"1\r\nab\r\n",
        b"1\r\na\n1\r\n",
        b"11111111111111111\r\n",
        b"1" + b" " * 5000,
        b"1;" + b"a" * 5000,
        b"0\r\n" + b"a: b\r\n" * 10_000,
    ],
)
def test_chunks_that_are_none_are_an_error_and_no_end(data: bytes) -> None:
    for seed in range(5):
        with pytest.raises(Malformed):
            joined(data, random.Random(seed))


def test_our_chunks_are_chunks() -> None:
    chunks = Chunks()
    assert chunks.take(framing.chunk(b"a" * 17) + framing.chunk(b"b") + framing.LAST_CHUNK) == b"a" * 17 + b"b"
    assert chunks.ended and not chunks.behind
