"""Attacks on stand-ins (E1, E2, E10, E16, E17, F1, F2 of the design): the server sees nothing, the owner is told.

Each has its control: the same request with that one wall removed, which gets through.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from ringfence.host.egress import bodies, swap, tickets
from ringfence.host.egress.exchange import Exchange
from ringfence.host.egress.tickets import Ticket
from ringfence.host.kernel.outward import placeholders
from ringfence.host.kernel.outward.credentials import Position, Scheme
from tests.support.egress_rig import SECRET, TRANSPARENT, Reply, Rig, binding, placeholder, reply, request, rig, rule
from tests.support.egress_upstream import Arrived, answer

PH = placeholder()
BEARER = f"Authorization: Bearer {PH}"


@pytest.fixture
async def way(tmp_path: Path) -> AsyncIterator[Rig]:
    rules = (rule(ports=(443, 80), plain=True), rule("git.test"))
    async with rig(tmp_path, rules=rules) as made:
        made.ticket(PH)
        yield made


def refused(way: Rig, answered: Reply, code: str) -> None:
    assert (answered.status, answered.reason) == (403, code)
    assert way.upstream.arrived == way.plain.arrived == []
    assert way.dialler.look_ups == []
    assert way.kernel.asked == []
    assert [each[:2] for each in way.kernel.findings] == [(code, "inv_1")]
    shown = repr(way.kernel.findings)
    assert SECRET.decode() not in shown and PH not in shown


def basic(pair: str) -> str:
    return "Authorization: Basic " + base64.b64encode(pair.encode()).decode()


MISPLACED = [
    request("GET", f"/x?key={PH}"),
    request("GET", f"/{PH}"),
    request("GET", f"/x?{PH}=1"),
    request("GET", "/x?key=" + PH.replace("EXAMPLE", "EX%41MPLE")),
    request("GET", "/", f"X-Comment: {PH}"),
    request("GET", "/", f"Cookie: a=b; t={PH}"),
    request("GET", "/", f"Referer: https://x/{PH}"),
    request("GET", "/", f"User-Agent: {PH}"),
    request("GET", "/", f"X-{PH}: 1"),
    request("GET", "/", f"Authorization: token {PH}"),
    request("GET", "/", f"Authorization: {PH}"),
    request("GET", "/", basic(f"x:{PH}")),
    request("GET", "/", BEARER, f"X-Again: {PH}"),
    request("POST", "/", body=f"key={PH}".encode()),
    request("POST", "/", BEARER, body=b"x" * 60_000 + PH.encode()),
    request("POST", "/", "Transfer-Encoding: chunked") + b"5\r\nab" + PH.encode()[:3] + b"\r\n%x\r\n" % (len(PH) - 3) + PH.encode()[3:] + b"\r\n0\r\n\r\n",
]  # fmt: skip


@pytest.mark.parametrize("sent", MISPLACED, ids=range(len(MISPLACED)))
async def test_a_stand_in_in_any_other_place(way: Rig, sent: bytes) -> None:
    refused(way, await way.asked(sent), "placeholder_misplaced")


@pytest.mark.parametrize("sent", MISPLACED, ids=range(len(MISPLACED)))
async def test_control_a_rule_may_let_it_pass_as_it_is(way: Rig, sent: bytes) -> None:
    """Without the scan the stand-in goes out as it stands; the secret still does not."""
    way.configure(rules=(rule(forward_literal=True),))
    assert (await way.asked(sent)).status == 200
    (arrived,) = way.upstream.arrived
    whole = arrived.head + arrived.body
    assert (
        PH.encode() in whole
        or b"EX%41MPLE" in whole
        or b"example" in whole
        or base64.b64encode(b"x:" + PH.encode()) in whole
    )


async def test_one_that_may_pass_in_a_path_is_told_to_nobody_else(way: Rig) -> None:
    """Not to the audit, nor to the lane of releases, nor in a finding. Control: the rest of the path is."""

    async def shows(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(answer("200 OK", arrived.value("authorization")))
        return True

    way.configure(rules=(rule(forward_literal=True),))
    way.upstream.handler = shows
    assert (await way.asked(request("POST", f"/x/{PH}/y", BEARER, body=b""))).status == 200
    assert way.upstream.arrived[0].head.startswith(f"POST /x/{PH}/y ".encode())
    [intent], [released], [found] = way.kernel.intents, way.kernel.asked, way.kernel.findings
    for told in (intent.path, released[-1], found[2]["path"]):
        assert told == "/x/[placeholder]/y"


@pytest.mark.parametrize("suffix", ["x", "-", "EXAMPLE", "." * 40])
async def test_a_stand_in_with_something_behind_it_is_another_one(way: Rig, suffix: str) -> None:
    """Case 11, E16."""
    refused(way, await way.asked(request("GET", "/", BEARER + suffix)), "placeholder_unknown")


@pytest.mark.parametrize(
    ("prefix", "code"),
    [("x", "unknown"), ("Bearer ", "misplaced"), ("a,", "misplaced"), (f"{placeholder(9)} ", "unknown")],
)
async def test_a_stand_in_with_something_before_it(way: Rig, prefix: str, code: str) -> None:
    answered = await way.asked(request("GET", "/", f"Authorization: Bearer {prefix}{PH}"))
    refused(way, answered, f"placeholder_{code}")


async def test_guessing(way: Rig) -> None:
    """F2: what was never given out."""
    refused(
        way, await way.asked(request("GET", "/", f"Authorization: Bearer {placeholder(99)}")), "placeholder_unknown"
    )


async def test_replay_after_the_end_of_its_command(way: Rig) -> None:
    way.desk.tickets.replace("inv_1", [])
    refused(way, await way.asked(request("GET", "/", BEARER)), "placeholder_expired")


async def test_replay_after_its_time(way: Rig) -> None:
    way.clock = 5000.0
    refused(way, await way.asked(request("GET", "/", BEARER)), "placeholder_expired")


async def test_another_command_s_stand_in(way: Rig) -> None:
    other = placeholder(2)
    way.desk.tickets.replace("inv_2", [Ticket(placeholders.digest(other), "crd_1", "bnd_1", 5000.0, None)])
    refused(way, await way.asked(request("GET", "/", f"Authorization: Bearer {other}")), "placeholder_foreign")


async def test_control_of_time_and_command(way: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that looks for the digest alone."""
    monkeypatch.setattr(tickets.Tickets, "find", lambda self, invocation, digest: self._live[digest])
    other = placeholder(2)
    way.desk.tickets.replace("inv_2", [Ticket(placeholders.digest(other), "crd_1", "bnd_1", 5000.0, None)])
    way.clock = 9999.0
    assert (await way.asked(request("GET", "/", f"Authorization: Bearer {other}"))).status == 200
    assert way.upstream.arrived[0].value("authorization") == b"Bearer " + SECRET


async def test_more_uses_than_it_has(way: Rig) -> None:
    way.ticket(PH, uses=2)
    reader, writer = await way.tunnel()
    statuses = []
    for _ in range(3):
        writer.write(request("GET", "/", BEARER))
        answered = await reply(reader)
        statuses.append((answered.status, answered.reason))
    assert statuses == [(200, ""), (200, ""), (403, "placeholder_spent")]
    assert len(way.upstream.arrived) == 2


async def test_another_allowed_host(way: Rig) -> None:
    """E1: allowed as a host, but no credential is bound to it."""
    refused(way, await way.asked(request("GET", "/", BEARER, host="git.test"), "git.test"), "placeholder_misplaced")


@pytest.mark.parametrize(
    ("bound", "sent"),
    [
        (binding(methods=frozenset({"GET"})), request("DELETE", "/", BEARER)),
        (binding(paths=("/repos/**",)), request("GET", "/user", BEARER)),
        (binding(ports=(8443,)), request("GET", "/", BEARER)),
        (binding("*.api.test"), request("GET", "/", BEARER)),
    ],
)
async def test_outside_of_the_binding(way: Rig, bound: object, sent: bytes) -> None:
    way.configure(bindings=(bound,))
    refused(way, await way.asked(sent), "placeholder_misplaced")


def without_the_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked again right before the value is."""
    monkeypatch.setattr(Exchange, "_bound", lambda self, binding, policy: True)


async def test_control_of_host_method_and_path(way: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    real = swap.plan
    monkeypatch.setattr(swap, "plan", lambda t, f, scope: real(t, f, replace(scope, covers=lambda _: True)))
    without_the_second_look(monkeypatch)
    way.configure(bindings=(binding(paths=("/repos/**",), methods=frozenset({"GET"})),))
    assert (await way.asked(request("DELETE", "/user", BEARER))).status == 200
    assert way.upstream.arrived[0].value("authorization") == b"Bearer " + SECRET


async def test_over_plain_http(way: Rig) -> None:
    """E10, case 42."""
    reader, _ = await way.raw(f"GET http://api.test/ HTTP/1.1\r\nHost: api.test\r\n{BEARER}\r\n\r\n".encode())
    refused(way, await reply(reader), "placeholder_misplaced")


async def test_control_of_plain_http(way: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    real = swap.plan
    open_scope = {"secure": True, "covers": lambda _: True}
    monkeypatch.setattr(swap, "plan", lambda t, f, scope: real(t, f, replace(scope, **open_scope)))
    without_the_second_look(monkeypatch)
    reader, _ = await way.raw(f"GET http://api.test/ HTTP/1.1\r\nHost: api.test\r\n{BEARER}\r\n\r\n".encode())
    assert (await reply(reader)).status == 200
    assert way.plain.arrived[0].value("authorization") == b"Bearer " + SECRET


async def test_a_server_that_is_not_the_host(way: Rig) -> None:
    """E11: its certificate is another's; the secret is not even asked for."""
    way.dialler.trust = way.user_ca
    way.configure()
    answered = await way.asked(request("GET", "/", BEARER))
    assert (answered.status, answered.reason) == (502, "upstream_tls")
    assert way.upstream.arrived == [] and way.kernel.asked == []


async def test_a_binding_that_went(way: Rig) -> None:
    way.configure(bindings=())
    refused(way, await way.asked(request("GET", "/", BEARER)), "placeholder_expired")


async def test_a_stand_in_behind_the_start_of_a_body_that_is_waited_for(way: Rig) -> None:
    """With Expect the head has gone; the stand-in has not."""
    reader, writer = await way.tunnel()
    body = b"key=" + PH.encode()
    writer.write(request("POST", "/", "Expect: 100-continue", f"Content-Length: {len(body)}"))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
    writer.write(body)
    answered = await reply(reader)
    assert (answered.status, answered.reason) == (403, "placeholder_misplaced")
    assert [each.body for each in way.upstream.arrived] == [b""]


async def test_control_of_the_body_s_scan(way: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies.Upload, "scan", lambda self, data, before: None)
    assert (await way.asked(request("POST", "/", body=b"key=" + PH.encode()))).status == 200
    assert way.upstream.arrived[0].body == b"key=" + PH.encode()


async def test_the_client_s_own_credential_is_left_alone(way: Rig) -> None:
    """E18, case 6."""
    own = "Authorization: Bearer ghp_0123456789"
    assert (await way.asked(request("GET", "/", own, "Proxy-Authorization: Bearer x"))).status == 200
    (arrived,) = way.upstream.arrived
    assert arrived.value("authorization") == b"Bearer ghp_0123456789"
    assert arrived.values("proxy-authorization") == []
    assert way.kernel.asked == []


async def test_a_secret_that_looks_like_a_stand_in_is_put_in_once(way: Rig) -> None:
    """E16: the result is not looked at again."""
    way.kernel.secrets["crd_1"] = placeholder(5).encode()
    assert (await way.asked(request("GET", "/", BEARER))).status == 200
    assert way.upstream.arrived[0].value("authorization") == b"Bearer " + placeholder(5).encode()
    assert len(way.kernel.asked) == 1


@pytest.mark.parametrize("value", [b"a\r\nX-Evil: 1", b"a\0b", b" a", b""])
async def test_a_stored_value_cannot_add_a_header(way: Rig, value: bytes) -> None:
    way.kernel.secrets["crd_1"] = value
    way.configure(bindings=(binding(positions=(Position("private-token", Scheme.RAW),)),))
    answered = await way.asked(request("GET", "/", f"PRIVATE-TOKEN: {PH}"))
    assert (answered.status, answered.reason) == (502, "credential_unavailable")
    assert way.upstream.arrived == []


async def test_another_box_s_port_means_nothing_here(way: Rig) -> None:
    """On the transparent port a stand-in says which command it is of; an ended one's is refused there too."""
    way.desk.tickets.replace("inv_1", [])
    reader, writer = await way.raw(b"", TRANSPARENT)
    await way.greet(writer, "api.test")
    writer.write(request("GET", "/", BEARER))
    assert (await reply(reader)).reason == "placeholder_expired"
    assert way.upstream.arrived == []
