"""Attacks with several authorities in one request (C of the design). Each control takes the one wall away and gets through."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.egress import entrance, fields, judging
from ringfence.host.kernel.outward.rules import Verdict
from tests.support.egress_rig import SECRET, TRANSPARENT, Reply, Rig, placeholder, reply, request, rig, rule

PH = placeholder()
BEARER = f"Authorization: Bearer {PH}"


@pytest.fixture
async def way(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path, rules=(rule(ports=(443, 80), plain=True), rule("git.test"))) as made:
        made.ticket(PH)
        yield made


def untouched(way: Rig) -> None:
    assert way.upstream.arrived == way.plain.arrived == []
    assert way.dialler.look_ups == []


async def test_c1_connect_to_one_and_sni_of_another(way: Rig) -> None:
    for connect, sni in (("api.test", "evil.test"), ("evil.test", "api.test"), ("api.test", "git.test")):
        with pytest.raises(ConnectionError):
            await way.tunnel(connect, sni=sni)
    untouched(way)
    assert [each[0] for each in way.kernel.findings] == ["authority_mismatch"] * 3


async def test_c1_control(way: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrance.Entrance, "_agree", lambda *_, **__: None)
    reader, writer = await way.tunnel("api.test", sni="evil.test")
    writer.write(request("GET", "/"))
    assert (await reply(reader)).status == 200


async def test_c1_transparent(way: Rig) -> None:
    """A synthetic address of api.test, and SNI of another."""
    _, writer = await way.raw(b"", TRANSPARENT)
    with pytest.raises(ConnectionError):
        await way.greet(writer, "git.test")
    untouched(way)


async def test_c2_an_address_with_the_sni_of_an_allowed_name(way: Rig) -> None:
    with pytest.raises(ConnectionError, match=r"HTTP/1\.1 403"):
        await way.tunnel("93.184.216.34", sni="api.test")
    untouched(way)


async def test_c3_host_of_another(way: Rig) -> None:
    """Domain fronting, case 34, on the first request and on a later one."""
    for host in ("evil.test", "git.test", "api.test:444", "api.test.evil.test"):
        answered = await way.asked(request("GET", "/", BEARER, host=host))
        assert (answered.status, answered.reason) == (421, "authority_mismatch")
        assert b"connection: close" in answered.head.lower()
    untouched(way)
    reader, writer = await way.tunnel()
    writer.write(request("GET", "/"))
    assert (await reply(reader)).status == 200
    writer.write(request("GET", "/", host="git.test"))
    assert (await reply(reader)).status == 421
    assert await reader.read() == b""
    assert len(way.upstream.arrived) == 1


async def test_c3_control(way: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "agree", lambda *_: None)
    assert (await way.asked(request("GET", "/", BEARER, host="evil.test"))).status == 200
    (arrived,) = way.upstream.arrived
    assert arrived.value("host") == b"api.test"  # and even then the host that is sent is the connection's (C12)
    assert arrived.value("authorization") == b"Bearer " + SECRET


@pytest.mark.parametrize("host", ["API.test", "api.test.", "api.test:443"])
async def test_the_same_host_written_otherwise_is_the_same(way: Rig, host: str) -> None:
    assert (await way.asked(request("GET", "/", host=host))).status == 200
    assert way.upstream.arrived[0].value("host") == b"api.test"


@pytest.mark.parametrize(
    "host", ["api.test@evil.test", "api.test/x", "api.test:0443", "[api.test]", "api..test", "", " "]
)
async def test_hosts_that_are_none(way: Rig, host: str) -> None:
    answered = await way.asked(request("GET", "/", host=host))
    assert answered.status == 400
    untouched(way)


@pytest.mark.parametrize(
    "target", ["http://evil.test/", "https://api.test/", "//evil.test/", "api.test/", "*", "http:///"]
)
async def test_c7_absolute_targets_inside_of_tls(way: Rig, target: str) -> None:
    answered = await way.asked(request("GET", target))
    assert (answered.status, answered.reason) == (400, "malformed")
    untouched(way)


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://evil.test/", 421),
        ("http://evil.test@api.test/", 400),
        ("http://api.test@evil.test/", 400),
        ("http://api.test\\@evil.test/", 400),
        ("http://api.test:80@evil.test/", 400),
        ("http://127.0.0.1/", 421),
        ("http://api.test:81/", 421),
        ("http:///", 400),
        ("ftp://api.test/", 400),
        ("api.test:80", 400),
    ],
)
async def test_c7_absolute_targets_in_clear(way: Rig, target: str, status: int) -> None:
    reader, _ = await way.raw(request("GET", target))
    assert (await reply(reader)).status == status
    untouched(way)


OVERRIDES = (
    "X-Forwarded-Host: evil.test",
    "X-Original-URL: /admin",
    "X-Rewrite-URL: /admin",
    "Forwarded: host=evil.test",
    "X-HTTP-Method-Override: DELETE",
    "X-Host: evil.test",
)


async def test_c8_fields_that_name_another_request(way: Rig) -> None:
    assert (await way.asked(request("GET", "/", *OVERRIDES, "X-Kept: 1"))).status == 200
    (arrived,) = way.upstream.arrived
    names = {line.partition(b":")[0].lower() for line in arrived.head.split(b"\r\n")[1:] if line}
    assert names == {b"host", b"x-kept"}


async def test_c8_control_a_host_without_a_credential_gets_them(way: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "_OVERRIDES", frozenset())
    assert (await way.asked(request("GET", "/", *OVERRIDES))).status == 200
    assert way.upstream.arrived[0].value("x-http-method-override") == b"DELETE"


async def test_c11_connect_inside_of_the_tunnel(way: Rig) -> None:
    """Case 19."""
    reader, writer = await way.tunnel()
    writer.write(b"CONNECT evil.test:443 HTTP/1.1\r\nHost: api.test\r\n\r\n")
    answered: Reply = await reply(reader)
    assert answered.status == 405
    untouched(way)


async def test_case_12_nothing_is_looked_up_before_policy(way: Rig) -> None:
    await way.asked(request("GET", "/", host="s3cret.evil.test"), "s3cret.evil.test")
    untouched(way)


async def test_case_12_control(way: Rig) -> None:
    """The counter counts."""
    await way.asked(request("GET", "/"))
    assert way.dialler.look_ups == [("api.test", 443)]


OVERRIDING = (
    "X-HTTP-Method-Override",
    "X_HTTP_Method_Override",
    "X_Original_URL",
    "X-Envoy-Original-Path",
    "X.Forwarded.Host",
)


@pytest.mark.parametrize("name", OVERRIDING)
@pytest.mark.parametrize(
    ("strict", "fields"),
    [
        (True, {"rules": (rule(),)}),  # a credential may go there
        (True, {"rules": (rule(paths=("/**",), methods=frozenset({"GET"})),), "bindings": ()}),
        (True, {"rules": (rule(paths=("/a/**",)),), "bindings": ()}),
        (True, {"rules": (rule(), rule(answer=Verdict.DENY, paths=("/admin",))), "bindings": ()}),
        (False, {"rules": (rule(),), "bindings": ()}),  # the control: the host is all that is judged
    ],
)
async def test_a_field_that_says_another_method_path_or_host(
    tmp_path: Path, name: str, fields: dict[str, Any], *, strict: bool
) -> None:
    async with rig(tmp_path, **fields) as way:
        assert (await way.asked(request("GET", "/a/b", f"{name}: /admin"))).status == 200
        assert (name.lower().encode() + b":" in way.upstream.arrived[0].head.lower()) is not strict
