"""Questions to the host's resolvers, and the box's own resolver on its sockets. A nameserver on loopback counts."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rrset
import pytest

from ringfence.host.egress import dns_serving, resolver
from ringfence.host.egress.dns_answers import Answers
from ringfence.host.egress.idleness import Idleness
from ringfence.host.egress.resolver import ResolveFailed, Resolver
from ringfence.host.egress.synthetic import Names
from tests.support.egress_outside import LOOPBACK, NameServer, nameserver


def stub(*servers: int, v6: bool = False, seconds: float = 0.3, at: list[float] | None = None) -> Resolver:
    clock = at or [0.0]
    return Resolver([(LOOPBACK, port) for port in servers], lambda: clock[0], v6=lambda: v6, seconds=seconds)


def address(name: str, kind: str) -> Iterable[str]:
    return {"A": ["60 A 192.0.2.1", "60 A 192.0.2.2"], "AAAA": ["60 AAAA 2001:db8::1"]}.get(kind, [])


async def test_addresses_of_both_families_where_there_is_a_way_to_both() -> None:
    async with nameserver(address) as names:
        assert await stub(names.port, v6=True).resolve("api.test") == ("192.0.2.1", "192.0.2.2", "2001:db8::1")
        assert await stub(names.port).resolve("api.test") == ("192.0.2.1", "192.0.2.2")
        assert sorted(names.asked) == [("api.test", "A"), ("api.test", "A"), ("api.test", "AAAA")]


async def test_aliases_are_followed_in_the_answer_and_strangers_in_it_are_not_believed() -> None:
    chain = ["60 CNAME a.cdn.test.", "a.cdn.test 60 CNAME b.cdn.test.", "b.cdn.test 60 A 192.0.2.7"]
    async with nameserver(lambda name, kind: [*chain, "evil.test 60 A 192.0.2.66"]) as names:
        assert await stub(names.port).resolve("api.test") == ("192.0.2.7",)


@pytest.mark.parametrize(
    "records", [[], ["60 CNAME elsewhere.test."], ["60 CNAME api.test."], ["other.test 60 A 192.0.2.1"]]
)
async def test_without_an_address_of_its_own_there_is_none(records: list[str]) -> None:
    async with nameserver(lambda name, kind: records) as names:
        with pytest.raises(ResolveFailed):
            await stub(names.port).resolve("api.test")
        assert len(names.asked) == 1


async def test_what_does_not_fit_comes_by_tcp() -> None:
    async with nameserver(lambda name, kind: [f"60 A 192.0.2.{n}" for n in range(1, 200)]) as names:
        names.truncates = True
        assert len(await stub(names.port).resolve("api.test")) == 199
        assert names.by_tcp == ["api.test"]


def _another_id(answer: dns.message.Message) -> list[bytes]:
    forged = dns.message.from_wire(answer.to_wire())
    forged.id = (answer.id + 1) % 65536
    return [_with(forged, "192.0.2.66").to_wire(), answer.to_wire()]


def _another_question(answer: dns.message.Message) -> list[bytes]:
    forged = dns.message.make_response(dns.message.make_query("evil.test.", "A", id=answer.id))
    return [_with(forged, "192.0.2.66").to_wire(), answer.to_wire()]


def _no_answer(answer: dns.message.Message) -> list[bytes]:
    forged = _with(dns.message.from_wire(answer.to_wire()), "192.0.2.66")
    forged.flags &= ~dns.flags.QR
    return [forged.to_wire(), answer.to_wire()]


def _garbage(answer: dns.message.Message) -> list[bytes]:
    return [b"\xff" * 40, answer.to_wire()[:-3], answer.to_wire()]


def _with(answer: dns.message.Message, found: str) -> dns.message.Message:
    answer.answer = [dns.rrset.from_text(answer.question[0].name, 60, "IN", "A", found)]
    return answer


@pytest.mark.parametrize("change", [_another_id, _another_question, _no_answer, _garbage])
async def test_what_is_no_answer_to_this_question_is_waited_out(change: object) -> None:
    async with nameserver(address) as names:
        names.change = change  # type: ignore[assignment]
        assert await stub(names.port).resolve("api.test") == ("192.0.2.1", "192.0.2.2")


async def test_who_forges_from_elsewhere_is_not_heard() -> None:
    """The socket is connected: a right answer from another port is dropped by the kernel."""
    with socket.socket(type=socket.SOCK_DGRAM) as asked, socket.socket(type=socket.SOCK_DGRAM) as elsewhere:
        asked.bind((LOOPBACK, 0))
        asked.setblocking(False)
        loop = asyncio.get_running_loop()
        looking = asyncio.ensure_future(stub(asked.getsockname()[1], seconds=0.5).resolve("api.test"))
        query, source = await loop.sock_recvfrom(asked, 4096)
        answer = _with(dns.message.make_response(dns.message.from_wire(query)), "192.0.2.66")
        elsewhere.sendto(answer.to_wire(), source)
        await asyncio.sleep(0.1)
        assert not looking.done()
        asked.sendto(_with(answer, "192.0.2.1").to_wire(), source)
        assert await looking == ("192.0.2.1",)


async def test_ids_and_ports_are_another_for_each_question() -> None:
    async with nameserver(address) as names:
        made = stub(names.port)
        for n in range(40):
            await made.resolve(f"h{n}.test")
        assert len(set(names.ids)) > 35
        assert len(set(names.ports)) > 30
        steps = {b - a for a, b in zip(names.ids, names.ids[1:], strict=False)}
        assert len(steps) > 30


async def test_a_server_that_is_dead_silent_or_broken_is_passed_over() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as silent:
        silent.bind((LOOPBACK, 0))
        async with nameserver(address) as broken, nameserver(address) as good:
            broken.change = lambda answer: [_failed(answer)]
            made = stub(silent.getsockname()[1], broken.port, good.port)
            assert await made.resolve("api.test") == ("192.0.2.1", "192.0.2.2")
            assert len(broken.asked) == 1
        dead = silent.getsockname()[1]
    with pytest.raises(ResolveFailed, match="no resolver"):
        await stub(dead).resolve("api.test")
    with pytest.raises(ResolveFailed, match="no resolver"):
        await stub().resolve("api.test")


def _failed(answer: dns.message.Message) -> bytes:
    answer.answer = []
    answer.set_rcode(dns.rcode.SERVFAIL)
    return answer.to_wire()


async def test_a_silent_server_gets_two_tries() -> None:
    async with nameserver(address) as names:
        names.change = lambda answer: []
        with pytest.raises(ResolveFailed):
            await stub(names.port, seconds=0.1).resolve("api.test")
        assert len(names.asked) == 2


async def test_a_name_that_does_not_exist_is_not_asked_for_again_and_again() -> None:
    at = [0.0]
    async with nameserver(lambda name, kind: []) as names:
        names.change = lambda answer: [_nothing(answer)]
        made = stub(names.port, at=at)
        for _ in range(3):
            with pytest.raises(ResolveFailed):
                await made.resolve("api.test")
        assert len(names.asked) == 1
        at[0] = 6.0
        with pytest.raises(ResolveFailed):
            await made.resolve("api.test")
        assert len(names.asked) == 2


def _nothing(answer: dns.message.Message) -> bytes:
    answer.set_rcode(dns.rcode.NXDOMAIN)
    return answer.to_wire()


@pytest.mark.parametrize(("ttl", "kept"), [(0, 1), (60, 60), (86400, 300)])
async def test_an_answer_is_kept_for_its_time_within_bounds(ttl: int, kept: int) -> None:
    at = [1.0]
    async with nameserver(lambda name, kind: [f"{ttl} A 192.0.2.1"]) as names:
        made = stub(names.port, at=at)
        await made.resolve("api.test")
        at[0] = 1.0 + kept - 0.5
        await made.resolve("api.test")
        assert len(names.asked) == 1
        at[0] = 1.0 + kept
        await made.resolve("api.test")
        assert len(names.asked) == 2


async def test_many_at_once_are_one_question_and_names_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "_KEPT", 2)
    async with nameserver(address) as names:
        made = stub(names.port)
        await asyncio.gather(*(made.resolve("api.test") for _ in range(20)))
        assert len(names.asked) == 1
        for name in ("b.test", "c.test", "api.test"):
            await made.resolve(name)
        assert len(names.asked) == 4


# --- the box's own ----------------------------------------------------------------------------------------------------


class Served:
    def __init__(self, answers: Answers, names: Names) -> None:
        self.answers = answers
        self.names = names
        self.idleness = Idleness(time.monotonic)
        self.udp = socket.socket(type=socket.SOCK_DGRAM)
        self.udp.bind((LOOPBACK, 0))
        self.udp.setblocking(False)
        self.tcp = socket.create_server((LOOPBACK, 0))
        self.tcp.setblocking(False)

    async def ask(self, name: str, kind: str = "A") -> dns.message.Message:
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.connect(self.udp.getsockname())
            sock.send(dns.message.make_query(name, kind).to_wire())
            async with asyncio.timeout(5):
                return dns.message.from_wire(await asyncio.get_running_loop().sock_recv(sock, 4096))


@asynccontextmanager
async def served() -> AsyncIterator[Served]:
    names = Names(b"key")
    made = Served(Answers(names, lambda name: name == "api.test", lambda _: None), names)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(dns_serving.datagrams(made.udp, made.answers.answer, made.idleness)),
            group.create_task(dns_serving.connections(made.tcp, made.answers.answer, made.idleness)),
        ]
        try:
            with made.udp, made.tcp:
                yield made
        finally:
            for task in tasks:
                task.cancel()


async def test_a_box_asks_by_datagram() -> None:
    async with served() as box:
        assert box.names.addresses("api.test")[0] in (await box.ask("api.test.")).to_text()
        assert (await box.ask("evil.test.")).rcode() == dns.rcode.NXDOMAIN


async def test_who_asks_and_leaves_stops_nobody() -> None:
    async with served() as box:
        for _ in range(20):
            with socket.socket(type=socket.SOCK_DGRAM) as sock:
                sock.sendto(dns.message.make_query("api.test.", "A").to_wire(), box.udp.getsockname())
                sock.sendto(b"", box.udp.getsockname())
        assert (await box.ask("api.test.")).rcode() == dns.rcode.NOERROR


async def test_a_flood_of_questions_leaves_the_others_their_turn() -> None:
    async with served() as box:
        query = dns.message.make_query("evil.test.", "A").to_wire()
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            for _ in range(200):
                sock.sendto(query, box.udp.getsockname())
            for _ in range(20):
                await asyncio.sleep(0)
            answered = _waiting(sock)
            assert 0 < answered < 25
            await asyncio.sleep(0.5)
            assert _waiting(sock) > 100  # none was lost for it


def _waiting(sock: socket.socket) -> int:
    count = 0
    with suppress(BlockingIOError):
        while sock.recv(4096, socket.MSG_DONTWAIT):
            count += 1
    return count


async def test_a_box_asks_several_questions_by_tcp() -> None:
    async with served() as box:
        reader, writer = await asyncio.open_connection(*box.tcp.getsockname())
        for name, code in (("api.test.", dns.rcode.NOERROR), ("evil.test.", dns.rcode.NXDOMAIN)):
            wire = dns.message.make_query(name, "A").to_wire()
            writer.write(struct.pack("!H", len(wire)) + wire)
            (size,) = struct.unpack("!H", await reader.readexactly(2))
            assert dns.message.from_wire(await reader.readexactly(size)).rcode() == code
        writer.write(b"\xff\xff")  # 65,535 bytes are to follow: they are not waited for
        assert await asyncio.wait_for(reader.read(), 2) == b""
        writer.close()


async def test_slow_connections_end_and_do_not_fill_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns_serving, "_SECONDS", 0.3)
    async with served() as box:
        crowd = [socket.create_connection(box.tcp.getsockname()) for _ in range(20)]
        for each in crowd:
            each.send(b"\x00\x30half")
        reader, writer = await asyncio.open_connection(*box.tcp.getsockname())
        wire = dns.message.make_query("api.test.", "A").to_wire()
        writer.write(struct.pack("!H", len(wire)) + wire)
        async with asyncio.timeout(3):
            assert await reader.readexactly(2)
        for each in crowd:
            each.close()
        writer.close()


def test_nameserver_counts_what_it_is_asked() -> None:
    """The control of every 0 above: it hears a question that is sent."""
    names = NameServer(address)
    names.answers(dns.message.make_query("api.test.", "A").to_wire(), 1, tcp=False)
    assert names.asked == [("api.test", "A")]


async def test_a_fault_in_one_question_ends_no_resolver() -> None:
    async with served() as box:
        real = box.names.addresses
        faults: list[str] = []

        def addresses(name: str) -> tuple[str, str]:
            if not faults:
                faults.append(name)
                raise AssertionError("of ours")
            return real(name)

        box.names.addresses = addresses  # type: ignore[method-assign]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(box.ask("api.test."), 0.3)
        assert (await box.ask("api.test.")).rcode() == dns.rcode.NOERROR
        faults.clear()
        wire = dns.message.make_query("api.test.", "A").to_wire()
        for ends in (True, False):
            reader, writer = await asyncio.open_connection(*box.tcp.getsockname())
            writer.write(struct.pack("!H", len(wire)) + wire)
            assert (await asyncio.wait_for(reader.read(2), 2) == b"") is ends
            writer.close()
