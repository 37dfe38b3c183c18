"""Connections to servers that wait: how many in all, and what a server says on one before it is asked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ringfence.host.egress import keeping, upstream
from tests.support.egress_outside import LOOPBACK, Ca, dialler, line, nameserver, pin, serving
from tests.support.egress_rig import SECRET, placeholder, reply, request, rig
from tests.support.egress_upstream import Arrived, answer

CA = Ca("upstream")
PH = placeholder()


async def test_so_many_wait_in_all_and_the_oldest_goes() -> None:
    async with line(None) as server:
        hosts = [f"h{n}.test" for n in range(keeping.MOST_IDLE + 20)]
        dialled = dialler(CA.pem, pins=tuple(pin(host, server.port, 80) for host in hosts))
        streams = [await dialled.connect(host, 80, tls=False) for host in hosts]
        for _, writer in streams:
            dialled.keep(writer)
        await asyncio.sleep(0.1)
        assert sum(dialled.open(host) for host in hosts) == keeping.MOST_IDLE
        assert server.connections - server.ended == keeping.MOST_IDLE
        assert [dialled.open(hosts[0]), dialled.open(hosts[-1])] == [0, 1]
        again = await dialled.connect(hosts[-1], 80, tls=False)
        assert again == streams[-1]
        dialled.keep(again[1])
        dialled.close()
        await asyncio.sleep(0.1)
        assert sum(dialled.open(host) for host in hosts) == 0


async def test_those_that_a_server_ended_take_nobodys_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host is forgotten with its last connection; what was idle there must not be looked for."""
    monkeypatch.setattr(keeping, "MOST_IDLE", 3)

    async def ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.close()

    async with serving(ends) as port:
        hosts = [f"h{n}.test" for n in range(12)]
        dialled = dialler(CA.pem, pins=tuple(pin(host, port, 80) for host in hosts))
        for n, host in enumerate(hosts):
            _, writer = await dialled.connect(host, 80, tls=False)
            dialled.keep(writer)
            if n % 2:
                writer.write(b"\n")
                async with asyncio.timeout(5):
                    while dialled.open(host):
                        await asyncio.sleep(0.005)
            assert len(dialled._keeping._idling) <= 3
        monkeypatch.setattr(keeping, "IDLE", 0.0)
        dialled._keeping._expire()
        assert len(dialled._keeping._idling) == 0
        await asyncio.sleep(0.02)
        assert sum(dialled.open(host) for host in hosts) == 0


async def test_an_address_that_is_the_hosts_by_now_is_not_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control is the same without that look: the address is reached."""
    opened = (("**.test", "127.0.0.1/32"),)
    async with line(None) as server, nameserver(lambda name, kind: ["60 A 127.0.0.1"]) as names:
        dialled = dialler(CA.pem, nameservers=((LOOPBACK, names.port),), internal=opened)
        _, writer = await dialled.connect("api.test", server.port, tls=False)
        writer.transport.abort()
        monkeypatch.setattr(upstream, "ours", lambda address: address == "127.0.0.1")
        with pytest.raises(upstream.UpstreamError) as error:
            await dialled.connect("api.test", server.port, tls=False)
        assert error.value.reason == "address_denied" and server.connections == 1
        pinned = dialler(CA.pem, pins=(pin("api.test", server.port, 80),))
        (await pinned.connect("api.test", 80, tls=False))[1].transport.abort()  # the operator's word


async def test_what_a_server_says_unasked_is_no_answer(tmp_path: Path) -> None:
    """It comes while the value is asked for, after the connection was taken from those that wait."""
    async with rig(tmp_path) as way:
        way.ticket(PH)
        late = asyncio.Event()

        async def handler(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
            writer.write(answer("200 OK", b"one"))
            await writer.drain()
            await late.wait()
            writer.write(answer("200 OK", b"POISON"))
            return True

        way.upstream.handler = handler
        reader, writer = await way.tunnel()
        writer.write(request("GET", "/a"))
        assert (await reply(reader)).body == b"one"
        real = way.kernel.secret

        async def slow(*what: str) -> object:
            late.set()
            await asyncio.sleep(0.2)
            return await real(*what)

        way.kernel.secret = slow  # type: ignore[method-assign, assignment]
        writer.write(request("GET", "/b", f"Authorization: Bearer {PH}"))
        answered = await reply(reader)
        assert (answered.status, answered.reason) == (502, "upstream_failed")
        assert not any(SECRET in each.head for each in way.upstream.arrived)
