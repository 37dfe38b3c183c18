"""Table D of the design, line by line: what is refused, with which status, and what h11 alone would have taken."""

from __future__ import annotations

import h11
import pytest

from ringfence.host.egress import head
from ringfence.host.egress.configuration import Bounds
from ringfence.host.egress.refusals import Code, Refusal
from ringfence.host.kernel.outward import checking

BOUNDS = Bounds()


def get(*fields: bytes, line: bytes = b"POST / HTTP/1.1", host: bytes = b"Host: api.test") -> bytes:
    return b"\r\n".join([line, *([host] if host else []), *fields]) + b"\r\n\r\n"


def refused(raw: bytes) -> Refusal:
    """As a stream would be read: what can be seen early, then the head."""
    with pytest.raises(Refusal) as caught:
        head.early(raw if head.END not in raw else b"", BOUNDS)
        head.request(raw, BOUNDS)
    return caught.value


def h11_takes(raw: bytes) -> bool:
    """The control: the same bytes, without the pre-parser."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(raw)
    try:
        return isinstance(connection.next_event(), h11.Request)
    except h11.RemoteProtocolError:
        return False


CL, TE = b"Content-Length: 3", b"Transfer-Encoding: chunked"
# (row, head, status, whether h11 alone takes it)
TABLE = [
    ("D1", get(CL, TE), 400, True),
    ("D1 other order", get(TE, CL), 400, True),
    ("D2 twice", get(CL, CL), 400, True),
    ("D2 list", get(b"Content-Length: 1, 1"), 400, True),
    ("D3 differing", get(CL, b"Content-Length: 4"), 400, False),
    ("D3 plus", get(b"Content-Length: +1"), 400, False),
    ("D3 minus", get(b"Content-Length: -1"), 400, False),
    ("D3 hex", get(b"Content-Length: 0x1"), 400, False),
    ("D3 inner space", get(b"Content-Length: 1 1"), 400, False),
    ("D3 empty", get(b"Content-Length: "), 400, False),
    ("D3 enormous", get(b"Content-Length: " + b"9" * 19), 400, True),
    ("D4 xchunked", get(b"Transfer-Encoding: xchunked"), 400, False),
    ("D4 identity", get(b"Transfer-Encoding: chunked, identity"), 400, False),
    ("D4 gzip", get(b"Transfer-Encoding: gzip, chunked"), 400, False),
    ("D4 twice", get(TE, TE), 400, False),
    ("D4 vertical tab", get(b"Transfer-Encoding: chunked\x0b"), 400, False),
    ("D4 case", get(b"Transfer-Encoding: Chunked"), 400, True),
    ("D5", get(TE, line=b"POST / HTTP/1.0"), 400, True),
    ("D6", get(b"X-A: b", b" folded"), 400, True),
    ("D6 in TE", get(b"Transfer-Encoding:", b" chunked"), 400, True),
    ("D7 all", b"GET / HTTP/1.1\nHost: api.test\n\n", 400, True),
    ("D7 one", b"GET / HTTP/1.1\r\nHost: api.test\nX-A: b\r\n\r\n", 400, True),
    ("D8 bare CR", get(b"X-A: b\rc"), 400, False),
    ("D8 NUL", get(b"X-A: b\0c"), 400, False),
    ("D8 control", get(b"X-A: b\x01c"), 400, True),
    ("D9 space before colon", get(b"X-A : b"), 400, False),
    ("D9 empty name", get(b": b"), 400, False),
    ("D9 no token", get(b"X(A): b"), 400, False),
    ("D9 no colon", get(b"X-A"), 400, False),
    ("D14 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, True),
    ("D17 lower case", get(line=b"get / HTTP/1.1"), 400, True),
    ("D17 mixed case", get(line=b"Get / HTTP/1.1"), 400, True),
    ("D17 not listed", get(line=b"FROBNICATE / HTTP/1.1"), 405, True),
    ("D18 TRACE", get(line=b"TRACE / HTTP/1.1"), 405, True),
    ("D18 TRACK", get(line=b"TRACK / HTTP/1.1"), 405, True),
    ("D18 DEBUG", get(line=b"DEBUG / HTTP/1.1"), 405, True),
    ("A4 NUL in the target", get(line=b"GET /a\0b HTTP/1.1"), 400, False),
    ("two spaces", get(line=b"GET  / HTTP/1.1"), 400, False),
    ("tab", get(line=b"GET\t/ HTTP/1.1"), 400, False),
    ("version 1.2", get(line=b"GET / HTTP/1.2"), 400, True),
    ("version 2", get(line=b"GET / HTTP/2.0"), 400, True),
    ("no version", get(line=b"GET /"), 400, False),
    ("no host", get(host=b""), 400, False),
    ("two hosts", get(b"Host: api.test"), 400, False),
    ("leading line", b"\r\n" + get(), 400, False),
    ("look-alike TE", get(b"Transfer_Encoding: chunked"), 400, True),
    ("look-alike CL", get(b"Content_Length: 3"), 400, True),
    ("look-alike CL, dotted", get(b"Content.Length: 3"), 400, True),
    ("expects more", get(b"Expect: 200-maybe"), 417, True),
    ("G2 fields", get(*(b"X-%d: a" % number for number in range(101))), 431, True),
    ("G2 head", get(b"X-A: " + b"a" * (32 << 10)), 431, True),
    ("G2 target", get(line=b"GET /" + b"a" * (8 << 10) + b" HTTP/1.1"), 414, True),
    ("TLS", b"\x16\x03\x01\x02\x00", 400, False),
]


@pytest.mark.parametrize(("row", "raw", "status", "loose"), TABLE, ids=[row[0] for row in TABLE])
def test_table_d(row: str, raw: bytes, status: int, loose: bool) -> None:
    error = refused(raw)
    assert (error.status, error.close) == (status, True)
    assert h11_takes(raw) is loose, "the table says what h11 takes: it has changed"


def test_a_clean_head_is_read_as_it_is() -> None:
    raw = get(b"X-A:  b c \t", b"x-a: \xc3\xa9", CL, line=b"POST /a?b=c HTTP/1.1")
    read = head.request(raw, BOUNDS)
    assert (read.method, read.target, read.minor, read.raw) == ("POST", b"/a?b=c", 1, raw)
    assert read.fields == ((b"host", b"api.test"), (b"x-a", b"b c"), (b"x-a", b"\xc3\xa9"), (b"content-length", b"3"))
    assert read.has_body
    assert not head.request(get(b"Content-Length: 0"), BOUNDS).has_body
    assert head.request(get(TE), BOUNDS).has_body


def test_http_1_0_needs_no_host() -> None:
    assert head.request(get(line=b"GET / HTTP/1.0", host=b""), BOUNDS).minor == 0


@pytest.mark.parametrize("cut", [1, 5, 17, 20, 34])
def test_nothing_of_a_good_head_is_refused_early(cut: int) -> None:
    head.early(get(CL)[:cut], BOUNDS)


@pytest.mark.parametrize(
    ("partial", "status"),
    [
        (b"GET / HTTP/1.1\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\rc", 400),
        (b"PRI * HTTP/2.0\r", 400),
        (b"GET /" + b"a" * 9000, 414),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * (32 << 10), 431),
    ],
)
def test_some_heads_are_refused_before_their_end(partial: bytes, status: int) -> None:
    with pytest.raises(Refusal) as caught:
        head.early(partial, BOUNDS)
    assert caught.value.status == status


def answer(*fields: bytes, line: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return b"\r\n".join([line, *fields]) + b"\r\n\r\n"


@pytest.mark.parametrize(
    "raw",
    [
        answer(CL, TE),
        answer(CL, CL),
        answer(b"Content-Length: 3, 3"),
        answer(b"Transfer-Encoding: gzip, chunked"),
        answer(TE, line=b"HTTP/1.0 200 OK"),
        answer(b"X-A: b", b"\tfolded"),
        answer(b"X-A: b\0"),
        answer(b"Set-Cookie : a"),
        answer(line=b"HTTP/1.1 20 OK"),
        answer(line=b"HTTP/1.1  200 OK"),
        answer(line=b"HTTP/2 200"),
        answer(line=b"ICY 200 OK"),
        answer(line=b"HTTP/1.1 099 X"),
        answer(line=b"HTTP/1.1 200 O\x01K"),
        b"HTTP/1.1 200 OK\nA: b\r\n\r\n",
    ],
)
def test_answers_are_read_as_strictly(raw: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        head.response(raw, BOUNDS)
    assert caught.value.code is Code.MALFORMED


def test_a_clean_answer() -> None:
    read = head.response(answer(b"A: b", line=b"HTTP/1.0 404 Not Found"), BOUNDS)
    assert (read.status, read.reason, read.minor, read.fields) == (404, b"Not Found", 0, ((b"a", b"b"),))
    assert head.response(answer(line=b"HTTP/1.1 200"), BOUNDS).reason == b""


def test_a_bare_line_end_over_two_reads_is_seen() -> None:
    head.early(b"GET / HTTP/1.1\r", BOUNDS)
    with pytest.raises(Refusal):
        head.early(b"GET / HTTP/1.1\rX", BOUNDS, 15)


def test_a_method_that_a_rule_may_name_is_let_through() -> None:
    """One table: what `egress allow` takes, a worker takes."""
    assert {"CONNECT", *checking.METHODS} == head.METHODS
    assert head.request(b"LOCK / HTTP/1.1\r\nHost: api.test\r\n\r\n", Bounds()).method == "LOCK"


@pytest.mark.parametrize(
    ("fields", "minor", "last"),
    [
        ((), 1, False),
        (("Connection: keep-alive",), 1, False),
        (("Connection: Upgrade",), 1, False),
        (("Connection: closed",), 1, False),
        (("X: close",), 1, False),
        (("Connection: close",), 1, True),
        (("Connection: TE ,\tCLOSE",), 1, True),
        (("Connection: te", "Connection: close"), 1, True),
        (("Connection: keep-alive, close",), 1, True),
        ((), 0, True),
        (("Connection: keep-alive",), 0, True),
    ],
)
def test_who_asks_for_the_last_time_is_understood_as_h11_does(fields: tuple[str, ...], minor: int, last: bool) -> None:
    raw = "\r\n".join([f"GET / HTTP/1.{minor}", "Host: a", *fields]).encode() + b"\r\n\r\n"
    assert head.request(raw, BOUNDS).last is last
    server = h11.Connection(h11.SERVER)
    server.receive_data(raw)
    assert isinstance(server.next_event(), h11.Request)
    server.next_event()
    server.send(h11.Response(status_code=204, headers=[]))
    server.send(h11.EndOfMessage())
    assert (server.our_state is not h11.DONE) is last
