"""How a connection says what it is for: CONNECT, absolute targets, addresses that nft redirected, SNI, bytes passed through."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from ringfence.host.egress.configuration import Bounds
from ringfence.host.egress.hello import Hello, peek
from ringfence.host.kernel.outward.rules import Mode, Verdict
from tests.support.egress_rig import SECRET, TRANSPARENT, Rig, placeholder, reply, request, rig, rule

PH = placeholder()
PASSING = rule(mode=Mode.PASSTHROUGH)


@pytest.fixture
async def way(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path, bounds=Bounds(hello=0.5, head=0.8)) as made:
        yield made


async def said(way: Rig, data: bytes, port: int | None = None) -> bytes:
    """All that comes back in clear, until the end."""
    reader, writer = await (way.raw(data) if port is None else way.raw(data, port))
    try:
        async with asyncio.timeout(8):
            return await reader.read()
    except ConnectionError:
        return b"reset"
    finally:
        writer.transport.abort()


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"CONNECT api.test HTTP/1.1\r\nHost: api.test", 400),
        (b"CONNECT api.test:0 HTTP/1.1\r\nHost: api.test", 400),
        (b"CONNECT api.test:99999 HTTP/1.1\r\nHost: api.test", 400),
        (b"CONNECT a@api.test:443 HTTP/1.1\r\nHost: api.test:443", 400),
        (b"CONNECT https://api.test/ HTTP/1.1\r\nHost: api.test", 400),
        (b"CONNECT api..test:443 HTTP/1.1\r\nHost: api..test:443", 400),
        (b"CONNECT 0x7f.1:443 HTTP/1.1\r\nHost: 0x7f.1:443", 400),
        (b"CONNECT api.test:443 HTTP/1.1\r\nHost: evil.test:443", 421),
        (b"CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:80", 421),
        (b"CONNECT api.test:443 HTTP/1.1", 400),
        (b"connect api.test:443 HTTP/1.1\r\nHost: api.test:443", 400),
        (b"CONNECT 127.0.0.1:443 HTTP/1.1\r\nHost: 127.0.0.1:443", 403),
        (b"CONNECT [::ffff:7f00:1]:443 HTTP/1.1\r\nHost: [::ffff:7f00:1]:443", 403),
        (b"CONNECT 169.254.169.254:80 HTTP/1.1\r\nHost: 169.254.169.254:80", 403),
        (b"CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\nX: " + PH.encode(), 403),
        (b"\x05\x01\x00", 400),
        (b"\x16\x03\x01\x00\xee", 400),
    ],
)
async def test_what_no_tunnel_is_made_for(way: Rig, line: bytes, status: int) -> None:
    answered = await said(way, line + b"\r\n\r\n")
    assert answered.startswith(f"HTTP/1.1 {status} ".encode()), answered
    assert way.dialler.look_ups == []


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1.2.3", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "[::]", "10.9.8.7"]
)
@pytest.mark.parametrize("form", ["CONNECT", "GET"])
@pytest.mark.parametrize("ruled", [False, True])
async def test_no_rule_opens_this_host_and_nobody_is_told_to_ask_for_one(
    way: Rig, host: str, form: str, *, ruled: bool
) -> None:
    """The control: what listens there is reached by the name that the operator pinned to it."""
    port = way.plain.port
    opened = [rule(each, ports=(port,), plain=True) for each in ("0.0.0.0/0", "::/0")] if ruled else []
    way.configure(rules=(rule(ports=(80,), plain=True), *opened))
    target = f"http://{host}:{port}/" if form == "GET" else f"{host}:{port}"
    get = request("GET", "/", host=f"{host}:{port}")
    reader, writer = await way.raw(request("GET" if form == "GET" else "CONNECT", target, host=f"{host}:{port}"))
    answered = await reply(reader)
    if answered.status == 200:
        assert ruled and form != "GET", "a tunnel is said to be there where some rule is about it"
        writer.write(get)
        answered = await reply(reader)
    assert (answered.status, answered.reason) == (403, "address_denied" if ruled else "denied")
    assert answered.error["rule"] is None and "rule shown" not in answered.error["remedy"]
    assert ruled or "no rule opens it" in answered.error["message"]
    assert way.plain.connections == 0
    writer.close()
    reader, _ = await way.raw(request("GET", "http://api.test/"))
    assert (await reply(reader)).status == 200
    assert way.plain.connections == 1


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("verdict", [None, Verdict.ASK])
async def test_an_address_of_this_host_is_opened_by_no_rule(way: Rig, verdict: Verdict | None, *, own: bool) -> None:
    """Whatever its kind, and nobody is asked. The control is one that the host has not."""
    way.kernel.hold_answer = "deny"
    rules = (rule("93.184.0.0/16", verdict, ports=(80,), plain=True),) if verdict is not None else ()
    way.configure(own_addresses=("93.184.216.34",) if own else (), rules=rules)
    reader, _ = await way.raw(request("GET", "http://93.184.216.34/", host="93.184.216.34"))
    answered = await reply(reader)
    assert (answered.status, answered.reason) == (403, "denied")
    assert (answered.error["rule"] is None) is ("an address of this host" in answered.error["message"]) is own
    assert len(way.kernel.holds) == (verdict is not None and not own)


async def test_a_connect_that_comes_in_pieces(way: Rig) -> None:
    reader, writer = await way.raw(b"CONN")
    for piece in (b"ECT api.test:443 HT", b"TP/1.1\r\nHost: api.test:443\r", b"\n\r", b"\n"):
        await asyncio.sleep(0.05)
        writer.write(piece)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    await way.greet(writer, "api.test")
    writer.write(request("GET", "/"))
    assert (await reply(reader)).status == 200
    writer.close()


async def test_a_denied_host_without_a_leaf_left_is_refused_at_once(way: Rig) -> None:
    """Case 7: beyond what may be minted."""
    way.user_ca.exhausted = True
    with pytest.raises(ConnectionError, match=r"HTTP/1.1 403[\s\S]*too_many"):
        await way.tunnel("evil.test")


async def test_plain_http_inside_of_a_tunnel_is_judged_as_plain(way: Rig) -> None:
    """What clients do for ws:// through a proxy. No credential ever leaves so."""
    reader, writer = await way.tunnel("api.test", 80, tls=False)
    writer.write(request("GET", "/"))
    assert (await reply(reader)).reason == "denied"
    way.configure(rules=(rule(ports=(80, 443), plain=True),))
    way.ticket(PH)
    reader, writer = await way.tunnel("api.test", 80, tls=False)
    writer.write(request("GET", "/") + request("GET", "/", f"Authorization: Bearer {PH}"))
    assert (await reply(reader)).status == 200
    assert (await reply(reader)).reason == "placeholder_misplaced"
    assert len(way.plain.arrived) == 1
    writer.close()


# --- transparent -------------------------------------------------------------------------------------------------------


async def test_a_synthetic_address_is_its_name(way: Rig) -> None:
    way.ticket(PH)
    reader, writer = await way.raw(b"", TRANSPARENT)
    await way.greet(writer, "api.test")
    writer.write(request("GET", "/", f"Authorization: Bearer {PH}"))
    answered = await reply(reader)
    assert answered.status == 200
    assert way.upstream.arrived[0].value("authorization") == b"Bearer " + SECRET
    assert way.kernel.asked[0][2] == "inv_1"  # attributed by the stand-in: the connection has no invocation
    writer.close()


async def test_any_other_address_is_what_sni_says_on_443_alone(way: Rig) -> None:
    way.destination = ("93.184.216.34", 443)
    reader, writer = await way.raw(b"", TRANSPARENT)
    await way.greet(writer, "api.test")
    writer.write(request("GET", "/"))
    assert (await reply(reader)).status == 200
    assert way.dialler.look_ups == [("api.test", 443)]  # the name, never the address
    writer.close()
    way.destination = ("93.184.216.34", 8443)
    _, writer = await way.raw(b"", TRANSPARENT)
    with pytest.raises(ConnectionError):
        await way.greet(writer, "api.test")


async def test_plain_http_by_a_synthetic_address(way: Rig) -> None:
    way.destination = ("198.18.0.1", 80)
    way.configure(rules=(rule(ports=(80,), plain=True),))
    reader, writer = await way.raw(request("GET", "/x"), TRANSPARENT)
    assert json.loads((await reply(reader)).body)["head"].startswith("GET /x ")
    writer.close()
    answered = await said(way, request("GET", "/x", host="evil.test"), TRANSPARENT)
    assert answered.startswith(b"HTTP/1.1 421 ")
    assert len(way.plain.arrived) == 1


async def test_plain_http_to_an_address_that_has_no_name_is_denied(way: Rig) -> None:
    way.destination = ("93.184.216.34", 80)
    way.configure(rules=(rule(ports=(80,), plain=True),))
    reader, _ = await way.raw(request("GET", "/x", host="93.184.216.34"), TRANSPARENT)
    assert (await reply(reader)).reason == "denied"
    answered = await said(way, request("GET", "/x"), TRANSPARENT)
    assert answered.startswith(b"HTTP/1.1 421 ")


async def test_a_client_that_waits_for_the_server_to_speak_is_let_go(way: Rig) -> None:
    assert await said(way, b"", TRANSPARENT) in (b"", b"reset")  # within Bounds.hello: `said` fails after 8 s


# --- passed through ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("port", [None, TRANSPARENT])
async def test_bytes_pass_as_they_are(way: Rig, port: int | None) -> None:
    """The client sees the server's own certificate."""
    way.configure(rules=(PASSING,))
    way.ticket(PH)
    if port is None:
        reader, writer = await way.tunnel(tls=False)
    else:
        reader, writer = await way.raw(b"", port)
    await writer.start_tls(way.upstream_ca.trusting(), server_hostname="api.test")
    writer.write(request("GET", "/", f"Authorization: Bearer {PH}"))
    assert (await reply(reader)).status == 200
    assert way.upstream.arrived[0].value("authorization") == f"Bearer {PH}".encode()  # never a credential
    assert way.kernel.asked == []
    writer.close()


async def test_what_passes_is_bound_by_bytes(way: Rig) -> None:
    way.configure(rules=(rule(mode=Mode.PASSTHROUGH, up_bytes=10_000),))
    reader, writer = await way.tunnel(tls=False)
    await writer.start_tls(way.upstream_ca.trusting(), server_hostname="api.test")
    writer.write(request("POST", "/", body=bytes(100_000)))
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reply(reader)


async def test_only_tls_of_that_name_passes(way: Rig) -> None:
    way.configure(rules=(PASSING,))
    for first in (b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0-x\r\n"):
        reader, writer = await way.tunnel(tls=False)
        writer.write(first)
        with pytest.raises(ConnectionError):
            if not await reader.read():
                raise ConnectionError
    _, writer = await way.tunnel(tls=False)
    with pytest.raises(ConnectionError):
        await writer.start_tls(way.upstream_ca.trusting(), server_hostname="git.test")
    assert way.upstream.arrived == []


async def test_a_host_that_cannot_be_reached_is_said_before_the_tunnel(way: Rig) -> None:
    way.configure(rules=(PASSING,))
    way.dialler.failing = "resolve_failed"
    with pytest.raises(ConnectionError, match=r"HTTP/1.1 502[\s\S]*upstream_failed"):
        await way.tunnel(tls=False)


async def test_a_passed_host_that_asks_is_held(way: Rig) -> None:
    way.configure(rules=(rule(answer=Verdict.ASK, mode=Mode.PASSTHROUGH),))
    way.kernel.hold_answer = "deny"
    with pytest.raises(ConnectionError, match=r"HTTP/1\.1 403"):
        await way.tunnel(tls=False)
    assert way.dialler.look_ups == []
    (merged,) = way.kernel.holds
    assert merged.mode is Mode.PASSTHROUGH  # `always` must not end in an interception


# --- hellos that hide a name (ECH) ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("port", [None, TRANSPARENT])
@pytest.mark.parametrize(
    ("mode", "hiding", "through"),
    [
        (Mode.INTERCEPT, True, True),  # Chromium's meaningless one comes with every hello; TLS ends here
        (Mode.PASSTHROUGH, True, False),
        (Mode.PASSTHROUGH, False, True),
    ],
)
async def test_a_hidden_name_is_refused_where_bytes_pass_unread(
    way: Rig, port: int | None, mode: Mode, *, hiding: bool, through: bool
) -> None:
    way.configure(rules=(rule(mode=mode),))

    async def peeked(sock: socket.socket, seconds: float) -> Hello:
        return replace(await peek(sock, seconds), ech=hiding)

    way.serving._works = replace(way.serving._now(), peek=peeked)
    reader, writer = await way.raw(b"", TRANSPARENT) if port else await way.tunnel(tls=False)
    trusting = way.user_ca.trusting() if mode is Mode.INTERCEPT else way.upstream_ca.trusting()
    if through:
        await writer.start_tls(trusting, server_hostname="api.test")
        writer.write(request("GET", "/"))
        assert (await reply(reader)).status == 200
    else:
        with pytest.raises(ConnectionError):
            await writer.start_tls(trusting, server_hostname="api.test")
        assert way.upstream.arrived == []
    writer.transport.abort()


async def test_connections_that_are_passed_through_have_the_rate_of_requests(tmp_path: Path) -> None:
    """Control: the first two. Each of them is a look-up and a connection from the host's own address."""
    bounds = Bounds(requests_second=0.001, burst=2)
    async with rig(tmp_path, bounds=bounds, rules=(rule(mode=Mode.PASSTHROUGH),)) as way:
        said = []
        for _ in range(3):
            reader, _ = await way.raw(b"CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\n\r\n")
            said.append((await reader.readuntil(b"\r\n")).split()[1])
        assert said == [b"200", b"200", b"429"] and len(way.dialler.look_ups) == 2
