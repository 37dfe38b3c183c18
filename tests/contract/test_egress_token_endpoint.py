"""Where the server itself asks for access tokens: the same floor as for a box, one question, one bounded answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from ringfence.host.egress.configuration import Pin
from ringfence.host.egress.token_endpoint import HttpsTokenEndpoint
from ringfence.host.kernel.errors import Refused, Unavailable
from ringfence.host.kernel.ids import TenantId, UserId
from ringfence.host.kernel.outward.ports import EgressRules
from ringfence.host.kernel.outward.renewals import TokenReply
from ringfence.host.kernel.outward.rules import EgressRule, Layer, Verdict
from ringfence.host.kernel.outward.secret import Secret
from tests.contract.test_egress_tls_proxy import proxy
from tests.support.egress_outside import nameserver
from tests.support.egress_rig import rule
from tests.support.token_server import HOST, PATH, URL, TokenServer, reply, token_server

WHOSE = (TenantId("ten_1"), UserId("usr_1"))
BODY = Secret(b"grant_type=refresh_token&refresh_token=refresh-1")
HEADERS = [(b"content-type", b"application/x-www-form-urlencoded")]


@dataclass
class Rules:
    users: list[EgressRule] = field(default_factory=list)
    tenants: list[EgressRule] = field(default_factory=list)

    async def of(self, tenant: TenantId, user: UserId) -> list[EgressRule]:
        return [*self.tenants, *self.users]

    async def of_layer(self, layer: tuple[TenantId | None, UserId | None]) -> list[EgressRule]:
        return self.users if layer[1] is not None else self.tenants


@dataclass
class Stage:
    server: TokenServer
    rules: Rules

    async def ask(
        self, url: str = URL, *, whose: tuple[TenantId, UserId | None] = WHOSE, seconds: float = 30.0, **site: Any
    ) -> TokenReply:
        clock = asyncio.get_running_loop().time
        endpoint = HttpsTokenEndpoint(self.server.site(**site), cast(EgressRules, self.rules), clock, seconds)
        return await endpoint.ask(whose, url, HEADERS, BODY)

    async def refused(self, why: str, url: str = URL, *, sent: bool, **more: Any) -> str:
        with pytest.raises(Unavailable, match=why) as caught:
            await self.ask(url, **more)
        assert caught.value.details["sent"] is sent
        assert "refresh-1" not in str(caught.value) and "s3cret" not in str(caught.value)
        return caught.value.message


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with token_server(tmp_path) as server:
        yield Stage(server, Rules())


@asynccontextmanager
async def answering(stage: Stage, raw: bytes | None) -> AsyncIterator[None]:
    stage.server.raw = lambda _: raw
    yield
    stage.server.raw = None


async def test_one_post(stage: Stage) -> None:
    said = await stage.ask()
    assert said.status == 200 and b"access-1" in said.body
    [seen] = stage.server.seen
    assert seen.line == f"POST {PATH} HTTP/1.1"
    assert seen.form == {"grant_type": "refresh_token", "refresh_token": "refresh-1"}
    assert (seen.head["host"], seen.head["accept-encoding"]) == (HOST, "identity")
    assert "access-1" not in repr(said)


async def test_a_port_is_named(stage: Stage) -> None:
    there = Pin(HOST, 8443, "127.0.0.1", stage.server.port)
    assert (await stage.ask(f"https://{HOST}:8443{PATH}", pins=(there,))).status == 200
    assert stage.server.seen[0].head["host"] == f"{HOST}:8443"


async def test_an_error_is_an_answer_and_says_when(stage: Stage) -> None:
    async with answering(stage, reply(429, {"error": "slow_down"}, "Retry-After: 17")):
        said = await stage.ask()
    assert (said.status, said.retry_after) == (429, 17.0)
    async with answering(stage, reply(503, b"", "Retry-After: Wed, 21 Oct 2026 07:28:00 GMT")):
        assert (await stage.ask()).retry_after is None


# --- who is believed, and where it leads -----------------------------------------------------------------------------


async def test_another_name_s_certificate(stage: Stage) -> None:
    there = Pin("other.test", 443, "127.0.0.1", stage.server.port)
    await stage.refused("tls_failed", "https://other.test/token", sent=False, pins=(there,))
    assert stage.server.asked == 0
    await stage.ask()  # control


async def test_an_unknown_root(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    async with token_server(tmp_path / "other") as other:
        other.ca, theirs = stage.server.ca, other.ca
        clock = asyncio.get_running_loop().time
        for ca, good in ((other.ca, False), (theirs, True)):
            other.ca = ca
            endpoint = HttpsTokenEndpoint(other.site(), cast(EgressRules, stage.rules), clock)
            if good:  # control
                assert (await endpoint.ask(WHOSE, URL, HEADERS, BODY)).status == 200
                continue
            with pytest.raises(Unavailable, match="tls_failed"):
                await endpoint.ask(WHOSE, URL, HEADERS, BODY)
            assert other.asked == 0


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254"])
async def test_a_name_that_leads_inside_is_not_dialled(stage: Stage, address: str) -> None:
    """The host's resolver says so; the port is one where somebody listens."""
    async with nameserver(lambda name, kind: [f"60 A {address}"] if kind == "A" else []) as names:
        url = f"https://inside.test:{stage.server.port}/token"
        await stage.refused("address_denied", url, sent=False, nameservers=(("127.0.0.1", names.port),))
    assert stage.server.asked == 0


async def test_through_the_company_s_proxy(stage: Stage) -> None:
    async with proxy(stage.server.port) as through:
        clock = asyncio.get_running_loop().time
        site = replace(stage.server.site(), pins=(), upstream_proxy=("127.0.0.1", through.port))
        endpoint = HttpsTokenEndpoint(site, cast(EgressRules, stage.rules), clock)
        assert (await endpoint.ask(WHOSE, URL, HEADERS, BODY)).status == 200
    [head] = through.heads
    assert head.startswith(b"CONNECT auth.test:443 HTTP/1.1\r\n") and b"refresh" not in head


# --- rules -----------------------------------------------------------------------------------------------------------


async def test_a_denial_of_any_layer_holds(stage: Stage) -> None:
    denied = [rule(HOST, Verdict.DENY, ports=())]
    layers: list[tuple[Rules, dict[str, Any]]] = [
        (Rules(users=[replace(denied[0], layer=Layer.USER)]), {}),
        (Rules(tenants=[replace(denied[0], layer=Layer.TENANT)]), {}),
        (Rules(), {"rules": (replace(denied[0], layer=Layer.INSTALLATION),)}),
    ]
    for rules, site in layers:
        stage.rules = rules
        with pytest.raises(Refused, match=HOST):
            await stage.ask(**site)
    stage.rules = Rules(tenants=[replace(denied[0], layer=Layer.TENANT)], users=[])
    with pytest.raises(Refused):
        await stage.ask(whose=(WHOSE[0], None))
    assert stage.server.asked == 0
    stage.rules = Rules(users=[replace(denied[0], layer=Layer.USER)])
    assert (await stage.ask(whose=(WHOSE[0], None))).status == 200, "a user's rule is none of the tenant's credential"
    stage.rules = Rules(users=[rule("elsewhere.test")])
    assert (await stage.ask()).status == 200, "no rule is needed for what its owner named"


# --- hostile answers -------------------------------------------------------------------------------------------------

HUGE = b"x" * (1 << 20)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (reply(302, b"", f"Location: https://{HOST}/else"), "answered 302, and a redirect is not followed"),
        (reply(307, b"", "Location: https://evil.test/s3cret"), "answered 307, and a redirect is not followed"),
        (reply(200, HUGE), "gave more than 65536 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"10000\r\n" + HUGE[:65536] + b"\r\n5\r\nabcde\r\n", "more than"),
        (reply(200, b"\x1f\x8b", "Content-Encoding: gzip"), "compressed its answer"),
        (b"HTTP/1.1 200 OK\r\nX: " + HUGE, "not HTTP/1.1 as it should be"),
        (b"SSH-2.0-s3cret\r\n\r\n", "not HTTP/1.1 as it should be"),
        (b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}", "not HTTP/1.1 as it should be"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", "not HTTP/1.1 as it should be"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{", "not HTTP/1.1 as it should be"),
        (b"HTTP/1.1 103 Early\r\n\r\n" * 20, "gave no answer"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "gave no answer"),
        (b"", "not HTTP/1.1 as it should be"),
    ],
)  # fmt: skip
async def test_what_is_no_answer(stage: Stage, raw: bytes, why: str) -> None:
    async with answering(stage, raw):
        await stage.refused(why, sent=True)
    assert stage.server.asked == 1, "it is not asked twice"
    assert (await stage.ask()).status == 200  # control


async def test_one_that_says_nothing(stage: Stage) -> None:
    async with answering(stage, None):
        await stage.refused("did not answer in 0.2 s", sent=True, seconds=0.2)
    assert stage.server.asked == 1


async def test_one_that_is_not_there(stage: Stage) -> None:
    nobody = (Pin("gone.test", 443, "127.0.0.1", 1),)
    await stage.refused("connect_failed", "https://gone.test/token", sent=False, pins=nobody)
