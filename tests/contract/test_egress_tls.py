"""Connections to servers: real TLS on loopback, real look-ups."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from ringfence.host.egress import keeping, racing, upstream
from ringfence.host.egress.configuration import Bounds
from ringfence.host.egress.streams import Streams
from ringfence.host.egress.upstream import Dialler, UpstreamError
from tests.support.egress_outside import LOOPBACK, NOW, Ca, Line, dialler, line, nameserver, pin, serving

CA = Ca("upstream")
HERE = (("**.test", "127.0.0.1/32"), ("*", "127.0.0.1/32"))


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Line]:
    async with line(CA.leaf(tmp_path, "api.test", "git.test")) as made:
        yield made


async def said(streams: Streams, text: bytes = b"hello\n") -> bytes:
    reader, writer = streams
    writer.write(text)
    async with asyncio.timeout(5):
        return await reader.readline()


async def refused(dialled: Dialler, host: str, port: int = 443, *, tls: bool = True) -> str:
    with pytest.raises(UpstreamError) as error:
        await dialled.connect(host, port, tls)
    assert dialled.open(host) == 0
    return error.value.reason


async def test_a_pinned_host_is_reached_under_its_own_name(server: Line) -> None:
    dialled = dialler(CA.pem, pins=(pin("api.test", server.port),))
    streams = await dialled.connect("api.test", 443)
    assert await said(streams) == b"hello\n"
    assert server.seen == ["api.test"]
    assert server.protocols == ["http/1.1"]
    streams[1].transport.abort()
    await asyncio.sleep(0.05)
    assert dialled.open("api.test") == 0


@pytest.mark.parametrize("wrong", ["self-signed", "host", "expired", "wildcard-of-another"])
async def test_a_server_that_proves_nothing_gets_nothing(tmp_path: Path, wrong: str) -> None:
    """E11. The control is the same server with a certificate that does."""
    leaves = {
        "self-signed": Ca("upstream").leaf(tmp_path, "api.test"),
        "host": CA.leaf(tmp_path, "git.test"),
        "expired": CA.leaf(tmp_path, "api.test", until=NOW - timedelta(hours=1)),
        "wildcard-of-another": CA.leaf(tmp_path, "*.api.test"),
    }
    for context, expected in ((leaves[wrong], "tls_failed"), (CA.leaf(tmp_path, "api.test"), "")):
        async with line(context) as server:
            dialled = dialler(CA.pem, pins=(pin("api.test", server.port),))
            if expected:
                assert await refused(dialled, "api.test") == expected
                await asyncio.sleep(0.05)
                assert server.lines == []
            else:
                streams = await dialled.connect("api.test", 443)
                assert await said(streams) == b"hello\n"
                streams[1].transport.abort()


async def test_a_server_without_tls_or_an_old_one_is_none(tmp_path: Path) -> None:
    async with line(None, b"220 ready\r\n") as plain:
        assert await refused(dialler(CA.pem, pins=(pin("api.test", plain.port),)), "api.test") == "tls_failed"
    async with line(None) as plain:
        dialled = dialler(CA.pem, pins=(pin("api.test", plain.port, 80),))
        streams = await dialled.connect("api.test", 80, tls=False)
        assert await said(streams) == b"hello\n"
        streams[1].transport.abort()


async def test_an_address_is_verified_as_an_address(tmp_path: Path) -> None:
    async with line(CA.leaf(tmp_path, "127.0.0.1")) as good, line(CA.leaf(tmp_path, "api.test")) as bad:
        opened = dialler(CA.pem, internal=(("127.0.0.1/32", "127.0.0.1/32"),))
        streams = await opened.connect("127.0.0.1", good.port)
        assert await said(streams) == b"hello\n"
        assert good.seen == [None]
        streams[1].transport.abort()
        await asyncio.sleep(0.05)
        assert await refused(opened, "127.0.0.1", bad.port) == "tls_failed"


async def test_the_judged_address_is_dialled_and_each_connection_is_judged_anew(server: Line) -> None:
    """B1, case 44: a name that leads inside at its second look-up. The control opens the first address alone."""
    answers = iter(["127.0.0.1", "127.0.0.2"])
    async with nameserver(lambda name, kind: [f"0 A {next(answers)}"]) as names:
        dialled = dialler(CA.pem, nameservers=((LOOPBACK, names.port),), internal=HERE)
        streams = await dialled.connect("api.test", server.port)
        assert await said(streams) == b"hello\n"
        assert len(names.asked) == 1
        streams[1].transport.abort()
        await asyncio.sleep(1.1)  # what it said is kept for a second at least
        assert await refused(dialled, "api.test", server.port) == "address_denied"
        assert len(names.asked) == 2


@pytest.mark.parametrize(
    "records",
    [
        ["60 A 127.0.0.1"],
        ["60 A 93.184.216.34", "60 A 10.0.0.1"],
        ["60 CNAME inside.corp.", "inside.corp 60 A 192.168.0.1"],
        ["60 A 169.254.169.254"],
        ["60 A 100.100.100.200"],
    ],
)
async def test_names_that_lead_inside_are_not_dialled(records: list[str], server: Line) -> None:
    """B1, B3, B4: one answer is enough. Nothing is sent to any of them."""
    async with nameserver(lambda name, kind: records) as names:
        dialled = dialler(CA.pem, nameservers=((LOOPBACK, names.port),))
        assert await refused(dialled, "api.test", server.port) == "address_denied"
        assert server.connections == 0


async def test_control_an_inside_address_would_be_reached(server: Line) -> None:
    async with nameserver(lambda name, kind: ["60 CNAME inside.corp.", "inside.corp 60 A 127.0.0.1"]) as names:
        dialled = dialler(CA.pem, nameservers=((LOOPBACK, names.port),), internal=HERE)
        streams = await dialled.connect("api.test", server.port)
        assert await said(streams) == b"hello\n"
        streams[1].transport.abort()


async def test_sixteen_answers_are_looked_at_and_no_other_is_dialled(server: Line) -> None:
    many = [f"60 A 127.0.0.{n}" for n in range(2, 18)]
    opened = (("api.test", "127.0.0.0/8"),)
    async with nameserver(lambda name, kind: [*many, "60 A 127.0.0.1"]) as names:
        dialled = dialler(CA.pem, nameservers=((LOOPBACK, names.port),), internal=opened)
        assert await refused(dialled, "api.test", server.port) == "connect_failed"
        wider = dialler(CA.pem, nameservers=((LOOPBACK, names.port),), internal=opened, bounds=Bounds(answers=17))
        streams = await wider.connect("api.test", server.port)
        assert await said(streams) == b"hello\n"
        streams[1].transport.abort()


@pytest.mark.parametrize("address", ["169.254.169.254", "100.100.100.200", "::ffff:169.254.169.254", "fd00:ec2::254"])
async def test_no_pin_leads_to_a_metadata_service(address: str) -> None:
    """B4, case 42."""
    dialled = dialler(CA.pem, pins=(pin("api.test", 80, 80, address),))
    assert await refused(dialled, "api.test", 80, tls=False) == "address_denied"


async def test_a_name_without_an_address_and_a_port_without_a_server() -> None:
    async with nameserver(lambda name, kind: []) as names:
        dialled = dialler(CA.pem, nameservers=((LOOPBACK, names.port),))
        assert await refused(dialled, "api.test") == "resolve_failed"
    with socket.create_server((LOOPBACK, 0)) as closed:
        port = closed.getsockname()[1]
    assert await refused(dialler(CA.pem, pins=(pin("api.test", port),)), "api.test") == "connect_failed"


async def test_a_server_that_says_nothing_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "_HANDSHAKE", 0.2)
    with socket.create_server((LOOPBACK, 0)) as silent:
        dialled = dialler(CA.pem, pins=(pin("api.test", silent.getsockname()[1]),))
        assert await refused(dialled, "api.test") == "timeout"


async def test_cancelled_while_it_connects_it_leaves_no_place_taken() -> None:
    with socket.create_server((LOOPBACK, 0)) as silent:
        dialled = dialler(CA.pem, pins=(pin("api.test", silent.getsockname()[1]),))
        task = asyncio.ensure_future(dialled.connect("api.test", 443))
        await asyncio.sleep(0.1)
        assert dialled.open("api.test") == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert dialled.open("api.test") == 0


async def test_an_end_that_the_server_did_not_say_is_an_error(tmp_path: Path) -> None:
    """All that came is read first. Without TLS nobody could tell: an end is an end."""
    for tls in (True, False):
        for notify in (True, False):

            async def ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, notify: bool = notify) -> None:
                writer.write(b"x" * 200_000)
                await writer.drain()
                if notify:
                    writer.close()
                else:
                    writer.get_extra_info("socket").shutdown(socket.SHUT_WR)
                await asyncio.sleep(0.3)

            async with serving(ends, CA.leaf(tmp_path, "api.test") if tls else None) as port:
                dialled = dialler(CA.pem, pins=(pin("api.test", port),))
                reader, writer = await dialled.connect("api.test", 443, tls)
                await asyncio.sleep(0.1)  # more is there than is read ahead
                assert await reader.readexactly(200_000) == b"x" * 200_000
                if tls and not notify:
                    with pytest.raises(ConnectionResetError):
                        await reader.read(10)
                else:
                    assert await reader.read(10) == b""
                writer.transport.abort()


# --- kept connections -----------------------------------------------------------------------------------------------


async def test_a_kept_connection_serves_the_next_and_no_other_way(server: Line, tmp_path: Path) -> None:
    """C10: git.test is on the same certificate at the same address, and gets its own connection. Case 69."""
    pins = tuple(pin(host, server.port, port) for host in ("api.test", "git.test") for port in (443, 8443))
    dialled = dialler(CA.pem, pins=pins)
    first = await dialled.connect("api.test", 443)
    assert await said(first) == b"hello\n"
    dialled.keep(first[1])
    others = [await dialled.connect("git.test", 443), await dialled.connect("api.test", 8443)]
    for streams in others:
        assert await said(streams) == b"hello\n"
    assert server.connections == 3
    for _ in range(6):
        again = await dialled.connect("api.test", 443)
        assert again == first
        assert await said(again) == b"hello\n"
        dialled.keep(again[1])
    assert server.connections == 3
    for _, writer in (first, *others):
        writer.transport.abort()


async def test_one_is_never_given_to_two(server: Line) -> None:
    dialled = dialler(CA.pem, pins=(pin("api.test", server.port),))
    first = await dialled.connect("api.test", 443)
    dialled.keep(first[1])
    one, two = await asyncio.gather(dialled.connect("api.test", 443), dialled.connect("api.test", 443))
    assert one[1] is not two[1]
    for _, writer in (one, two):
        writer.transport.abort()


async def test_what_has_ended_said_more_or_grown_old_is_not_used_again(
    server: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialled = dialler(CA.pem, pins=(pin("api.test", server.port),))
    talking = await dialled.connect("api.test", 443)
    talking[1].write(b"asked twice\n")
    await asyncio.sleep(0.1)  # an answer that nobody has read
    dialled.keep(talking[1])
    assert talking[1].is_closing()
    quiet = await dialled.connect("api.test", 443)
    monkeypatch.setattr(keeping, "IDLE", 0.1)
    dialled.keep(quiet[1])
    await asyncio.sleep(0.3)
    assert quiet[1].is_closing()
    assert dialled.open("api.test") == 0


async def test_so_many_of_one_host_and_the_next_waits_for_its_turn(server: Line) -> None:
    pins = (pin("api.test", server.port), pin("git.test", server.port))
    dialled = dialler(CA.pem, pins=pins, bounds=Bounds(upstream_each=2))
    one, two = await dialled.connect("api.test", 443), await dialled.connect("api.test", 443)
    waiting = [asyncio.ensure_future(dialled.connect("api.test", 443)) for _ in range(3)]
    other = await dialled.connect("git.test", 443)
    await asyncio.sleep(0.1)
    assert not any(task.done() for task in waiting)
    dialled.keep(one[1])  # the connection itself goes on to the first
    assert (await waiting[0])[1] is one[1]
    waiting[1].cancel()
    two[1].transport.abort()  # its place goes to the next that still waits
    third = await asyncio.wait_for(waiting[2], 5)
    assert await said(third) == b"hello\n"
    assert (dialled.open("api.test"), server.connections) == (2, 4)
    for _, writer in (one, third, other):
        writer.transport.abort()
    await asyncio.sleep(0.05)
    assert dialled.open("api.test") == 0


async def test_what_comes_for_one_that_gives_up_goes_to_the_next(server: Line) -> None:
    """A connection, and a place: the one who waited is cancelled in the very turn in which it comes."""
    dialled = dialler(CA.pem, pins=(pin("api.test", server.port),), bounds=Bounds(upstream_each=1))
    held = await dialled.connect("api.test", 443)
    for give in (dialled.keep, lambda writer: writer.transport.abort()):
        leaving = asyncio.ensure_future(dialled.connect("api.test", 443))
        await asyncio.sleep(0.05)
        give(held[1])
        if held[1].is_closing():
            await asyncio.sleep(0)  # its end is told in the loop's next turn
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        held = await asyncio.wait_for(dialled.connect("api.test", 443), 2)
        assert await said(held) == b"hello\n"
    held[1].transport.abort()
    await asyncio.sleep(0.05)
    assert dialled.open("api.test") == 0


async def test_an_idle_one_makes_room_for_another_port(server: Line) -> None:
    pins = (pin("api.test", server.port), pin("api.test", server.port, 8443))
    dialled = dialler(CA.pem, pins=pins, bounds=Bounds(upstream_each=1))
    first = await dialled.connect("api.test", 443)
    dialled.keep(first[1])
    second = await asyncio.wait_for(dialled.connect("api.test", 8443), 2)  # an idle one would end in 4 s
    assert first[1].is_closing()
    second[1].transport.abort()


async def test_who_waits_too_long_is_told_so(server: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping.Keeping.__init__, "__defaults__", (0.1,))
    dialled = dialler(CA.pem, pins=(pin("api.test", server.port),), bounds=Bounds(upstream_each=1))
    first = await dialled.connect("api.test", 443)
    with pytest.raises(UpstreamError) as error:
        await dialled.connect("api.test", 443)
    assert error.value.reason == "too_many"
    first[1].transport.abort()


async def test_a_new_configuration_takes_over_no_connection(server: Line) -> None:
    """Idle ones end, one in use ends when it is given back, to whichever."""
    old, new = (dialler(CA.pem, pins=(pin("api.test", server.port),)) for _ in range(2))
    idle, one, two = [await old.connect("api.test", 443) for _ in range(3)]
    mine = await new.connect("api.test", 443)
    old.keep(idle[1])
    old.close()
    assert idle[1].is_closing()
    assert await said(one) == b"hello\n"
    assert await said(two) == b"hello\n"
    old.keep(one[1])
    new.keep(two[1])
    assert one[1].is_closing() and two[1].is_closing()
    assert await said(mine) == b"hello\n"
    mine[1].transport.abort()
    await asyncio.sleep(0.05)
    assert (old.open("api.test"), new.open("api.test")) == (0, 0)


# --- racing ---------------------------------------------------------------------------------------------------------


async def test_a_dead_address_costs_nothing_and_a_silent_one_a_quarter_of_a_second(server: Line) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    (await racing.connected(["127.0.0.2", "::1", LOOPBACK], server.port)).close()
    assert loop.time() - began < 0.2
    with socket.socket() as full:
        full.bind(("127.0.0.3", server.port))
        full.listen(0)
        crowd = [socket.socket() for _ in range(4)]
        for each in crowd:
            each.setblocking(False)
            each.connect_ex(("127.0.0.3", server.port))
        began = loop.time()
        (await racing.connected(["127.0.0.3", LOOPBACK], server.port)).close()
        assert 0.2 < loop.time() - began < 1.5
        for each in crowd:
            each.close()


def test_families_take_turns() -> None:
    assert racing._by_turns(["1.1.1.1", "1.0.0.1", "9.9.9.9", "2606::1"]) == [
        "2606::1",
        "1.1.1.1",
        "1.0.0.1",
        "9.9.9.9",
    ]
