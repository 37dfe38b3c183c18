"""The proxy with its real TLS side: names, addresses and certificates as in production. A nameserver counts what it is asked."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import dns.message
import dns.rcode
import pytest
from cryptography import x509

from ringfence.host.egress import entrance
from ringfence.host.egress.assembly import Assembly
from ringfence.host.egress.configuration import Configuration
from ringfence.host.egress.trust import Trust
from ringfence.host.kernel.outward.rules import Mode
from tests.support.egress_outside import LOOPBACK, NOW, Ca, NameServer, client_hello, configuration, nameserver, pin
from tests.support.egress_rig import (
    EXPLICIT,
    SECRET,
    TRANSPARENT,
    Reply,
    Rig,
    binding,
    placeholder,
    reply,
    request,
    rig,
    rule,
)

PH = placeholder()
BEARER = f"Authorization: Bearer {PH}"


@dataclass
class Real:
    way: Rig
    ca: Ca
    names: NameServer
    assembly: Assembly
    made: Configuration
    denied: list[str] = field(default_factory=list)

    def configure(self, **fields: object) -> None:
        self.made = replace(self.made, **fields)  # type: ignore[arg-type]
        self.way.serving.install(self.assembly.works(self.made))

    async def tunnel(self, host: str, sni: str | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self.way.tunnel(host, tls=False)
        await self.greet(writer, sni)
        return reader, writer

    async def greet(self, writer: asyncio.StreamWriter, sni: str | None) -> None:
        context = self.ca.trusting()
        context.check_hostname = sni is not None
        await writer.start_tls(context, server_hostname=sni)

    async def asked(self, what: bytes, host: str = "api.test") -> Reply:
        reader, writer = await self.tunnel(host, host)
        try:
            writer.write(what)
            return await reply(reader)
        finally:
            writer.transport.abort()

    def resolve(self, name: str, kind: str = "A") -> dns.message.Message:
        said = self.assembly.answer(dns.message.make_query(name, kind).to_wire())
        assert said is not None
        return dns.message.from_wire(said)

    def untouched(self) -> None:
        assert self.way.upstream.arrived == self.way.plain.arrived == []
        assert self.names.asked == []
        assert self.way.kernel.asked == []


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[Real]:
    ca, denied = Ca("user"), list[str]()
    rules = (rule(), rule("git.test"), rule("looked-up.test"))
    async with nameserver(lambda name, kind: ["60 A 93.184.216.34", "60 A 127.0.0.1"]) as names, rig(tmp_path) as way:
        way.ticket(PH)
        made = configuration(
            ca,
            way.upstream_ca.pem,
            rules=rules,
            bindings=(binding(),),
            nameservers=((LOOPBACK, names.port),),
            pins=(pin("api.test", way.upstream.port), pin("git.test", way.upstream.port)),
        )
        assembly = Assembly(Trust(), lambda: NOW, asyncio.get_running_loop().time, denied.append)
        one = Real(way, ca, names, assembly, made, denied)
        one.configure()
        try:
            yield one
        finally:
            assembly.close()


# --- that it works at all ---------------------------------------------------------------------------------------------


async def test_the_whole_way_with_one_verified_name_on_each_side(real: Real) -> None:
    """Case 69: six requests on one connection. C10: the leaf is of one name."""
    reader, writer = await real.tunnel("api.test", "api.test")
    for n in range(6):
        writer.write(request("GET", f"/{n}", BEARER))
        assert (await reply(reader)).status == 200
    session = writer.get_extra_info("ssl_object")
    leaf = x509.load_der_x509_certificate(session.getpeercert(binary_form=True))
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.DNSName("api.test")]
    assert real.way.upstream.connections == 1
    assert {each.value("authorization") for each in real.way.upstream.arrived} == {b"Bearer " + SECRET}
    writer.transport.abort()


async def test_a_synthetic_address_leads_to_its_name(real: Real) -> None:
    real.way.destination = (real.resolve("api.test.").answer[0][0].to_text(), 443)
    reader, writer = await real.way.raw(b"", TRANSPARENT)
    await real.greet(writer, "api.test")
    writer.write(request("GET", "/"))
    assert (await reply(reader)).status == 200
    assert real.names.asked == []
    writer.transport.abort()


# --- B: where it leads --------------------------------------------------------------------------------------------------


async def test_b1_a_name_that_leads_inside_gets_no_request(real: Real) -> None:
    answered = await real.asked(request("GET", "/", host="looked-up.test"), "looked-up.test")
    assert (answered.status, answered.reason) == (403, "address_denied")
    assert {name for name, _ in real.names.asked} == {"looked-up.test"}
    assert b"127.0.0.1" not in answered.body


async def test_b1_control(real: Real) -> None:
    """The operator's word takes the wall away: then a dead port is what stops it."""
    real.names.records = lambda name, kind: ["60 A 127.0.0.1"]
    real.configure(internal=(("looked-up.test", "127.0.0.0/8"),))
    answered = await real.asked(request("GET", "/", host="looked-up.test"), "looked-up.test")
    assert (answered.status, answered.reason) == (502, "upstream_failed")


@pytest.mark.parametrize(
    "host", ["169.254.169.254", "metadata.google.internal", "[::ffff:169.254.169.254]", "127.0.0.1"]
)
async def test_b4_metadata_and_this_host_through_connect(real: Real, host: str) -> None:
    """Case 42, with a rule that allows everything."""
    real.configure(rules=(*real.made.rules, rule("*"), rule("0.0.0.0/0"), rule("::/0")))
    with pytest.raises((ConnectionError, ssl.SSLError)):
        reader, writer = await real.tunnel(host, None)
        writer.write(request("GET", "/", host=host))
        answered = await reply(reader)
        assert answered.status in (403, 502), answered
        raise ConnectionError(answered.reason)
    real.untouched()


async def test_b11_no_label_leaves(real: Real) -> None:
    """Cases 12 and 23, D63: neither by the box's resolver nor by a name in CONNECT. The control is a name that may leave."""
    for n in range(50):
        for name in (f"c2VjcmV0{n}.evil.test", f"c2VjcmV0{n}.api.test"):
            for kind in ("A", "AAAA", "MX", "HTTPS"):
                assert real.resolve(name + ".", kind).rcode() == dns.rcode.NXDOMAIN
            assert real.resolve(name + ".", "TXT").rcode() == dns.rcode.REFUSED
    assert len(real.denied) == 400
    for n in range(5):
        host = f"c2VjcmV0{n}.evil.test"
        assert (await real.asked(request("GET", "/", host=host), host)).reason == "denied"
    real.untouched()
    await real.asked(request("GET", "/", host="looked-up.test"), "looked-up.test")
    assert {name for name, _ in real.names.asked} == {"looked-up.test"}


async def test_b11_a_request_that_no_rule_lets_through_is_not_resolved(real: Real) -> None:
    """The connection may be, this request may not."""
    real.configure(rules=(rule("looked-up.test", paths=("/a/**",)),))
    answered = await real.asked(request("GET", "/b", host="looked-up.test"), "looked-up.test")
    assert answered.reason == "denied"
    real.untouched()


async def test_a_nul_in_a_name_reaches_no_resolver(real: Real) -> None:
    """Case 68."""
    for host in ("127.0.0.1\x00.api.test", "api.test\x00.evil.test"):
        with pytest.raises(ConnectionError, match=r"HTTP/1\.1 400"):
            await real.way.tunnel(host, tls=False)
    real.untouched()


# --- C: which name ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("connect", "sni"), [("api.test", "evil.test"), ("evil.test", "api.test"), ("api.test", "git.test")]
)
async def test_c1_connect_and_sni_differ(real: Real, connect: str, sni: str) -> None:
    """Case 40."""
    with pytest.raises((ConnectionError, ssl.SSLError)):
        await real.tunnel(connect, sni)
    real.untouched()


async def test_c1_control(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrance.Entrance, "_agree", lambda *_, **__: None)
    reader, writer = await real.way.tunnel("api.test", tls=False)
    context = real.ca.trusting()
    context.check_hostname = False
    await writer.start_tls(context, server_hostname="git.test")
    writer.write(request("GET", "/"))
    assert (await reply(reader)).status == 200
    writer.transport.abort()


async def test_c2_the_address_of_the_client_is_not_where_it_goes(real: Real) -> None:
    """Transparent, an address that nobody gave out, SNI of an allowed name: the name is what counts, resolved here."""
    real.way.destination = ("93.184.216.34", 443)
    reader, writer = await real.way.raw(b"", TRANSPARENT)
    await real.greet(writer, "api.test")
    writer.write(request("GET", "/"))
    assert (await reply(reader)).status == 200
    assert real.way.upstream.arrived[0].value("host") == b"api.test"
    writer.transport.abort()


@pytest.mark.parametrize("host", ["git.test", "evil.test"])
async def test_c3_host_of_another(real: Real, host: str) -> None:
    """Case 34: the wrong host gets nothing, not even of a name on the same server."""
    answered = await real.asked(request("GET", "/", BEARER, host=host))
    assert (answered.status, answered.reason) == (421, "authority_mismatch")
    real.untouched()


async def test_c4_without_sni(real: Real) -> None:
    """Transparent: nowhere. After CONNECT the name is known: that is the control."""
    real.way.destination = ("93.184.216.34", 443)
    _, writer = await real.way.raw(b"", TRANSPARENT)
    with pytest.raises((ConnectionError, ssl.SSLError)):
        await real.greet(writer, None)
    reader, writer = await real.tunnel("api.test", None)
    writer.write(request("GET", "/"))
    assert (await reply(reader)).status == 200
    writer.transport.abort()


@pytest.mark.parametrize(
    ("hides", "mode", "answered"),
    [
        (True, Mode.PASSTHROUGH, False),
        (False, Mode.PASSTHROUGH, True),  # the control: without the extension the same bytes get to the server
        (
            True,
            Mode.INTERCEPT,
            True,
        ),  # Chromium's meaningless one. TLS ends here: nothing is hidden from whom it is judged by
    ],
)
async def test_c5_a_hidden_name(real: Real, mode: Mode, *, hides: bool, answered: bool) -> None:
    real.configure(rules=(rule(mode=mode),))
    added = (0xFE0D if hides else 0xFDFD).to_bytes(2, "big") + b"\x00\x04\x00\x00\x00\x00"
    reader, writer = await real.way.tunnel("api.test", tls=False)
    writer.write(_extended(client_hello("api.test"), added))
    try:
        said = await reader.read(1)
    except ConnectionResetError:
        said = b""
    assert said == (b"\x16" if answered else b"")
    assert real.way.upstream.arrived == []
    writer.transport.abort()


def _extended(hello: bytes, added: bytes) -> bytes:
    """The record with one more extension at its end; the four lengths around it grow."""
    body = bytearray(hello[9:])
    at = 34 + 1 + body[34]
    at += 2 + int.from_bytes(body[at : at + 2], "big")
    at += 1 + body[at]
    size = int.from_bytes(body[at : at + 2], "big") + len(added)
    body[at : at + 2] = size.to_bytes(2, "big")
    body += added
    message = b"\x01" + len(body).to_bytes(3, "big") + bytes(body)
    return hello[:3] + len(message).to_bytes(2, "big") + message


# --- E: to whom the secret goes -------------------------------------------------------------------------------------------


async def test_e10_no_secret_without_tls(real: Real) -> None:
    """Case 42. The control is the same request through TLS, in the first test above."""
    real.configure(
        rules=(rule(ports=(443, 80), plain=True),),
        pins=(pin("api.test", real.way.upstream.port), pin("api.test", real.way.plain.port, 80)),
    )
    reader, writer = await real.way.raw(request("GET", "http://api.test/", BEARER))
    answered = await reply(reader)
    assert (answered.status, answered.reason) == (403, "placeholder_misplaced")
    real.untouched()
    writer.transport.abort()
    reader, writer = await real.way.raw(request("GET", "http://api.test/"))
    assert (await reply(reader)).status == 200
    writer.transport.abort()


async def test_e11_a_server_that_cannot_prove_its_name_gets_no_byte_and_no_secret(real: Real) -> None:
    """Another root, and another name; the first test above is the control."""
    for fields in (
        {"roots": Ca("stranger").pem},
        {"roots": real.made.roots, "pins": (pin("git.test", real.way.upstream.port),)},
    ):
        real.configure(**fields)
        host = "api.test" if "pins" not in fields else "git.test"
        answered = await real.asked(request("GET", "/", BEARER if host == "api.test" else "A: b", host=host), host)
        assert (answered.status, answered.reason) == (502, "upstream_tls")
    real.untouched()


# --- reload ---------------------------------------------------------------------------------------------------------------


async def test_a_configuration_that_is_not_well_formed_changes_nothing(real: Real) -> None:
    """H1. What was made outlives a good one: leaves, addresses."""
    before = real.assembly.works(real.made)
    leaf, address = before.minter.context("api.test"), real.resolve("api.test.").answer[0][0].to_text()
    for wrong in (
        {"roots": "no certificate"},
        {"internal": (("api.test", "10.0.0.1/8"),)},
        {"ca_key": Ca("other").secret},
        {"rules": (rule("*x"),)},
        {"pins": (pin("api.test", 1, address="api.test"),)},
    ):
        with pytest.raises(Exception, match=r".") as error:
            real.assembly.works(replace(real.made, **wrong))
        assert not isinstance(error.value, (AssertionError, TypeError))
        assert real.resolve("git.test.").rcode() == dns.rcode.NOERROR
    after = real.assembly.works(replace(real.made, rules=(rule(),)))
    assert after.minter.context("api.test") is leaf
    assert after.names.name_of(address) == "api.test"
    assert real.resolve("git.test.").rcode() == dns.rcode.NXDOMAIN


async def test_a_connection_that_the_box_has_reset_stops_no_order(real: Real) -> None:
    """It is cut while the reset is still unread: nothing is raised to who cuts."""
    box = socket.create_connection((LOOPBACK, real.way.port))
    box.sendall(b"CONNECT api")
    await asyncio.sleep(0.1)
    box.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    box.close()
    time.sleep(0.05)  # the worker's loop has no turn: it has not seen it
    assert real.way.serving.connections == 1
    real.way.serving.unlisten(EXPLICIT)
    await asyncio.sleep(0.1)
    assert real.way.serving.connections == 0
