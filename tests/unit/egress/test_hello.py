"""ClientHellos as OpenSSL writes them, and as somebody does who means ill."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.host.egress.hello import MOST, Hello, Malformed, Short, parse, peek
from tests.support.egress_outside import client_hello, pair

ECH = 0xFE0D


def extension(kind: int, data: bytes) -> bytes:
    return kind.to_bytes(2, "big") + len(data).to_bytes(2, "big") + data


def sni(*names: bytes, kind: int = 0) -> bytes:
    entries = b"".join(bytes([kind]) + len(name).to_bytes(2, "big") + name for name in names)
    return extension(0, len(entries).to_bytes(2, "big") + entries)


def message(*extensions: bytes, tail: bytes = b"") -> bytes:
    """A ClientHello without its record."""
    block = b"".join(extensions)
    body = b"\x03\x03" + bytes(32) + b"\x00" + b"\x00\x02\x13\x01" + b"\x01\x00"
    body += len(block).to_bytes(2, "big") + block + tail
    return b"\x01" + len(body).to_bytes(3, "big") + body


def records(data: bytes, size: int = 1 << 14) -> bytes:
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece for piece in pieces)


def test_what_openssl_says() -> None:
    found = parse(client_hello("API.Test", "h2", "http/1.1"))
    assert found == Hello("api.test", False, ("h2", "http/1.1"))
    assert parse(client_hello(None)) == Hello(None, False, ())


@pytest.mark.parametrize("size", [1, 3, 100])
def test_one_that_comes_in_many_records_is_read_the_same(size: int) -> None:
    whole = client_hello("api.test")[5:]
    assert parse(records(whole, size)) == Hello("api.test", False, ())


def test_each_prefix_asks_for_more_and_says_how_much() -> None:
    whole = records(message(sni(b"api.test")), 40)
    for cut in range(len(whole)):
        found = parse(whole[:cut])
        assert isinstance(found, Short)
        assert cut < found.need <= len(whole)


@pytest.mark.parametrize("kind", [ECH, 0xFFCE, 0xFE0A, 0xFF03])
def test_a_hidden_name_is_seen(kind: int) -> None:
    """C5. The control is the same hello without it."""
    hidden = parse(records(message(sni(b"public.test"), extension(kind, b"\x00" * 20))))
    plain = parse(records(message(sni(b"public.test"), extension(0xFE00, b"\x00" * 20))))
    assert isinstance(hidden, Hello) and hidden.ech
    assert isinstance(plain, Hello) and not plain.ech


@pytest.mark.parametrize(
    "wrong",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x16\x02\x00\x00\x10" + bytes(16),  # SSL 2
        b"\x80\x2e\x01\x03\x01" + bytes(64),  # SSL 2's hello
        b"\x16\x03\x01\x00\x00",  # an empty record
        b"\x16\x03\x01\x40\x01",  # one larger than 16 KiB
        records(b"\x02" + bytes(40)),  # another message
        records(b"\x01\xff\xff\xff" + bytes(40)),  # 16 MiB of it
        records(message(sni(b"a.test"), sni(b"b.test"))),  # the extension twice
        records(message(sni(b"a.test", b"b.test"))),  # two names
        records(message(sni(b"a.test", kind=1))),  # a name of another kind
        records(message(sni(b""))),
        records(message(sni(b"a.test\x00.evil.test"))),
        records(message(sni(b"evil..test"))),
        records(message(sni("\u00fc.test".encode()))),
        records(message(sni(b"127.0.0.1"))),
        records(message(sni(b"[::1]"))),
        records(message(sni(b"2130706433"))),
        records(message(extension(0, b""))),
        records(message(extension(0, b"\x00\x05\x00\x00\x09abc"))),
        records(message(extension(16, b"\x00\x03\x05ab"))),
        records(message(tail=b"x")),
        records(b"\x01\x00\x00\x10" + b"\x03\x03" + bytes(14)),  # ends in its random
    ],
)
def test_what_is_not_one_or_has_two_readings_is_refused(wrong: bytes) -> None:
    with pytest.raises(Malformed):
        found = parse(wrong)
        raise AssertionError(found)


def test_one_that_never_ends_is_refused_before_it_is_waited_for() -> None:
    many = records(b"\x01\x00\x3f\xff" + bytes(MOST), 1)
    with pytest.raises(Malformed):
        parse(many[:MOST])


@given(st.binary(max_size=200))
def test_any_bytes_are_short_or_malformed_or_a_hello(data: bytes) -> None:
    for each in (data, records(data)):
        with suppress(Malformed):
            parse(each)


@given(st.data())
def test_a_damaged_hello_raises_nothing_else(data: st.DataObject) -> None:
    whole = bytearray(client_hello("api.test", "h2"))
    at = data.draw(st.integers(5, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    with suppress(Malformed):
        parse(bytes(whole))


async def test_peeking_takes_nothing_and_leaves_the_socket_as_it_was() -> None:
    box, ours = pair()
    with box, ours:
        said = client_hello("api.test")
        box.sendall(said)
        assert (await peek(ours)).name == "api.test"
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
        assert ours.recv(1 << 16) == said


async def test_a_slow_hello_is_waited_for_without_spinning() -> None:
    box, ours = pair()
    with box, ours:
        said = records(client_hello("api.test")[5:], 50)
        looking = asyncio.ensure_future(peek(ours))
        began = time.process_time()
        for at in range(0, len(said), 20):
            box.sendall(said[at : at + 20])
            await asyncio.sleep(0.05)
        assert (await looking).name == "api.test"
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
        waited = 0.05 * len(said) / 20
        assert time.process_time() - began < waited / 2, "a socket with unread bytes was asked again and again"


async def test_one_that_does_not_come_whole_ends_in_time_and_spins_nowhere() -> None:
    box, ours = pair()
    with box, ours:
        box.sendall(client_hello("api.test")[:-1])
        began = time.process_time()
        with pytest.raises(TimeoutError):
            await peek(ours, 0.5)
        assert time.process_time() - began < 0.2


@pytest.mark.parametrize("cut", [0, 3, 100])
async def test_one_that_ends_before_is_no_hello(cut: int) -> None:
    box, ours = pair()
    with ours:
        with box:
            box.sendall(client_hello("api.test")[:cut])
        with pytest.raises(ConnectionError):
            await peek(ours, 2)


async def test_garbage_is_refused_at_once() -> None:
    box, ours = pair()
    with box, ours:
        box.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
        with pytest.raises(Malformed):
            await peek(ours, 60)
