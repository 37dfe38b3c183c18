"""A request through the worker's HTTP side, end to end: real sockets, a real TLS upstream, nothing of ours replaced but what
other rooms give."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ringfence.host.egress.configuration import Bounds
from ringfence.host.kernel.outward.credentials import Position, Scheme, Use
from ringfence.host.kernel.outward.rules import Verdict
from tests.support.egress_rig import SECRET, Reply, Rig, binding, placeholder, reply, request, rig, rule
from tests.support.egress_upstream import Arrived, answer

PH = placeholder()


@pytest.fixture
async def way(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


async def test_a_second_request_uses_both_connections_again(way: Rig) -> None:
    reader, writer = await way.tunnel()
    for path in ("/a?x=1", "/b"):
        writer.write(request("GET", path))
        answered = await reply(reader)
        assert answered.status == 200
        assert json.loads(answered.body)["head"].startswith(f"GET {path} HTTP/1.1")
    assert way.upstream.connections == 1
    assert [each.line for each in way.upstream.arrived] == [b"GET /a?x=1 HTTP/1.1", b"GET /b HTTP/1.1"]
    writer.close()


async def test_denied_hosts_are_told_so_inside_of_tls(way: Rig) -> None:
    answered = await way.asked(request("GET", "/x?token=1", host="evil.test"), host="evil.test")
    assert (answered.status, answered.reason) == (403, "denied")
    error = answered.error
    assert (error["host"], error["method"], error["path"]) == ("evil.test", "GET", "/x")
    assert error["rule"]["host"] == "evil.test"
    assert "token" not in answered.body.decode()
    assert way.dialler.look_ups == []


async def test_what_is_no_request_is_told_of_the_host_it_was_for(way: Rig) -> None:
    """D70: within TLS the host is known, whatever the head is."""
    for head in (b"TRACE / HTTP/1.1\r\nHost: api.test\r\n\r\n", b"GET / HTTP/1.1\r\nHost : api.test\r\n\r\n"):
        answered = await way.asked(head)
        assert answered.status in (400, 405)
        assert answered.error["host"] == "api.test" and answered.error["remedy"]


async def test_methods_and_paths_are_judged_one_by_one(way: Rig) -> None:
    way.configure(rules=(rule(methods=frozenset({"GET"}), paths=("/open/**",)),))
    reader, writer = await way.tunnel()
    seen = []
    for method, path in (("GET", "/open/a"), ("GET", "/shut"), ("DELETE", "/open/a"), ("GET", "/open/b")):
        writer.write(request(method, path))
        seen.append((await reply(reader)).status)
    assert seen == [200, 403, 403, 200]
    assert [each.line for each in way.upstream.arrived] == [b"GET /open/a HTTP/1.1", b"GET /open/b HTTP/1.1"]
    writer.close()


async def test_requests_sent_together_are_each_judged_and_each_exchanged(way: Rig) -> None:
    """D12, D61: three at once; the middle one is denied, and nothing of it reaches the server."""
    way.configure(rules=(rule(paths=("/ok/**",)),))
    way.ticket(PH)
    reader, writer = await way.tunnel()
    auth = f"Authorization: Bearer {PH}"
    writer.write(request("GET", "/ok/1", auth) + request("GET", "/no/2", auth) + request("GET", "/ok/3", auth))
    assert [(await reply(reader)).status for _ in range(3)] == [200, 403, 200]
    assert [each.line for each in way.upstream.arrived] == [b"GET /ok/1 HTTP/1.1", b"GET /ok/3 HTTP/1.1"]
    assert all(each.value("authorization") == b"Bearer " + SECRET for each in way.upstream.arrived)
    writer.close()


async def test_bytes_behind_a_body_are_the_next_request_s(way: Rig) -> None:
    reader, writer = await way.tunnel()
    writer.write(request("POST", "/1", body=b"abc") + request("GET", "/2"))
    first, second = json.loads((await reply(reader)).body), json.loads((await reply(reader)).body)
    assert (first["body"], second["body"]) == ("abc", "")
    assert way.upstream.arrived[1].line == b"GET /2 HTTP/1.1"
    writer.close()


@pytest.mark.parametrize(
    ("said", "sent", "fields"),
    [
        ("Authorization: Bearer {}", b"Bearer " + SECRET, Position()),
        ("Authorization: bearer {}", b"bearer " + SECRET, Position()),
        ("Authorization: token {}", b"token " + SECRET, Position(scheme=Scheme.TOKEN)),
        ("PRIVATE-TOKEN: {}", SECRET, Position("private-token", Scheme.RAW)),
        ("x-api-key: {}", SECRET, Position("x-api-key", Scheme.RAW)),
    ],
)
async def test_positions(way: Rig, said: str, sent: bytes, fields: Position) -> None:
    way.configure(bindings=(binding(positions=(fields,)),))
    way.ticket(PH)
    assert (await way.asked(request("GET", "/", said.format(PH)))).status == 200
    assert way.upstream.arrived[0].value(said.partition(":")[0].lower()) == sent


@pytest.mark.parametrize("user", ["x", "ab", "abc", "x-access-token", ""])
async def test_basic_is_decoded_exchanged_and_encoded(way: Rig, user: str) -> None:
    """Cases 4 and 18: at every alignment."""
    way.configure(bindings=(binding(positions=(Position(scheme=Scheme.BASIC_PASSWORD),)),))
    way.ticket(PH)
    pair = base64.b64encode(f"{user}:{PH}".encode()).decode()
    assert (await way.asked(request("GET", "/", f"Authorization: Basic {pair}"))).status == 200
    sent = way.upstream.arrived[0].value("authorization")
    assert base64.b64decode(sent.removeprefix(b"Basic ")) == user.encode() + b":" + SECRET


async def test_the_basic_user_may_be_the_secret(way: Rig) -> None:
    way.configure(bindings=(binding(positions=(Position(scheme=Scheme.BASIC_USER),)),))
    way.ticket(PH)
    pair = base64.b64encode(f"{PH}:x-oauth-basic".encode()).decode()
    assert (await way.asked(request("GET", "/", f"Authorization: Basic {pair}"))).status == 200
    sent = way.upstream.arrived[0].value("authorization")
    assert base64.b64decode(sent.removeprefix(b"Basic ")) == SECRET + b":x-oauth-basic"


async def test_a_query_is_exchanged_where_the_binding_says_so(way: Rig) -> None:
    """Case 10. The rest of the query is not written anew."""
    way.configure(bindings=(binding(positions=(Position(query="key"),)),))
    way.ticket(PH)
    assert (await way.asked(request("GET", f"/x?a=%7e+b;c&key={PH}&key2=1"))).status == 200
    assert way.upstream.arrived[0].line == b"GET /x?a=%7e+b;c&key=s3cret%2FValue%2B9876543210&key2=1 HTTP/1.1"


async def test_a_credential_of_use_inject_needs_no_stand_in(way: Rig) -> None:
    way.configure(bindings=(binding(use=Use.INJECT),))
    assert (await way.asked(request("GET", "/"))).status == 200
    assert way.upstream.arrived[0].value("authorization") == b"Bearer " + SECRET
    assert (await way.asked(request("GET", "/", "Authorization: Bearer own"))).status == 200
    assert way.upstream.arrived[1].value("authorization") == b"Bearer own"


async def test_writes_are_recorded_before_they_leave_and_their_outcome_after(way: Rig) -> None:
    way.ticket(PH)
    auth = f"Authorization: Bearer {PH}"
    assert (await way.asked(request("GET", "/r", auth))).status == 200
    assert (await way.asked(request("POST", "/w?q=1", auth, body=b"12345"))).status == 200
    assert way.kernel.order == ["dial", "secret", "intent", "dial", "secret"]
    (intent,) = way.kernel.intents
    assert (intent.credential, intent.binding, intent.invocation) == ("crd_1", "bnd_1", "inv_1")
    assert (intent.host, intent.port, intent.method, intent.path) == ("api.test", 443, "POST", "/w")
    ((row, outcome),) = way.kernel.outcomes
    assert (row, outcome.status, outcome.error, outcome.up) == ("row_1", 200, "", 5)
    assert outcome.down > 0


async def test_what_cannot_be_recorded_is_not_sent(way: Rig) -> None:
    way.kernel.recording = False
    answered = await way.asked(request("POST", "/w", body=b"1"))
    assert (answered.status, answered.reason) == (502, "credential_unavailable")
    assert way.upstream.connections == 0


async def test_a_sealed_vault_says_so_and_nothing_is_sent(way: Rig) -> None:
    """D60."""
    way.kernel.secrets.clear()
    way.ticket(PH)
    answered = await way.asked(request("POST", "/", f"Authorization: Bearer {PH}", body=b"x"))
    assert (answered.status, answered.reason) == (502, "credential_unavailable")
    assert way.upstream.arrived == []
    assert way.kernel.outcomes[0][1].error == "credential_unavailable"


async def test_writes_that_are_recorded_are_so_many_a_second(tmp_path: Path) -> None:
    """Control: reads, of which there is no row, go on."""
    async with rig(tmp_path, bounds=Bounds(writes_second=0.001, writes_burst=2)) as way:
        answered = [await way.asked(request("POST", "/", body=b"x")) for _ in range(3)]
        assert [(each.status, each.reason) for each in answered[1:]] == [(200, ""), (429, "too_many")]
        assert len(way.kernel.intents) == len(way.upstream.arrived) == 2
        assert (await way.asked(request("GET", "/"))).status == 200


@pytest.mark.parametrize(
    ("said", "status", "reason"), [("allow", 200, ""), ("deny", 403, "denied"), ("timeout", 403, "ask_pending")]
)
async def test_a_rule_that_asks_holds_the_request(way: Rig, said: str, status: int, reason: str) -> None:
    way.configure(rules=(rule(answer=Verdict.ASK),))
    way.kernel.hold_answer = said  # type: ignore[assignment]
    answered = await way.asked(request("GET", "/held?to=mallory&sum=9&sum=8"))
    assert (answered.status, answered.reason) == (status, reason)
    (merged,) = way.kernel.holds
    assert way.kernel.named == ["to&sum&sum"]  # whoever answers sees names, and no value
    assert (merged.answer, merged.host, merged.paths) == (Verdict.ALLOW, "api.test", ("/held",))
    assert way.kernel.order[0] == "hold"
    assert len(way.dialler.look_ups) == (status == 200)


async def test_nobody_is_asked_about_what_no_rule_can_say(way: Rig) -> None:
    """A yes to `ask *` as a whole would be a yes to everything. The control is a path that a rule can have."""
    way.configure(rules=(rule("*", answer=Verdict.ASK),))
    answered = await way.asked(request("GET", "/" + "a" * 1500))
    assert (answered.status, answered.reason, way.kernel.holds) == (403, "denied", [])
    assert b"no rule can name exactly this" in answered.body and way.dialler.look_ups == []
    assert (await way.asked(request("GET", "/" + "a" * 1000))).status == 200
    (merged,) = way.kernel.holds
    assert merged.host == "api.test"


async def test_plain_http_at_another_port_is_asked_about(way: Rig) -> None:
    way.configure(rules=(rule(answer=Verdict.ASK, ports=(8080,), plain=True),))
    way.kernel.hold_answer = "deny"
    reader, _ = await way.raw(request("GET", "http://api.test:8080/", host="api.test:8080"))
    assert (await reply(reader)).reason == "denied"  # by whoever was asked
    (merged,) = way.kernel.holds
    assert (merged.ports, merged.plain) == ((8080,), True)


@pytest.mark.parametrize(
    ("failing", "status", "reason"),
    [
        ("resolve_failed", 502, "upstream_failed"),
        ("connect_failed", 502, "upstream_failed"),
        ("timeout", 502, "upstream_failed"),
        ("proxy_failed", 502, "upstream_failed"),
        ("tls_failed", 502, "upstream_tls"),
        ("address_denied", 403, "address_denied"),
        ("too_many", 429, "too_many"),
    ],
)
async def test_upstreams_that_cannot_be_had(way: Rig, failing: str, status: int, reason: str) -> None:
    way.dialler.failing = failing
    way.ticket(PH)
    answered = await way.asked(request("GET", "/", f"Authorization: Bearer {PH}"))
    assert (answered.status, answered.reason) == (status, reason)
    assert way.kernel.asked == []  # no secret was even asked for


async def test_traffic_is_counted_without_queries(way: Rig) -> None:
    await way.asked(request("GET", "/?token=1"))
    await way.asked(request("GET", "/", host="evil.test"), host="evil.test")
    items, dropped = way.desk.counting.drain()
    counted = [*way.kernel.counted, *items]
    assert dropped == 0
    assert [(each.host, each.verdict, each.reason, each.invocation) for each in counted] == [
        ("api.test", "allow", "rul_api.test_allow", "inv_1"),
        ("evil.test", "deny", "denied", "inv_1"),
    ]
    assert "token" not in repr(counted)


async def test_hop_by_hop_fields_end_here_and_alt_svc_too(way: Rig) -> None:
    async def handler(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        fields = (
            'Alt-Svc: h3=":443"',
            "Keep-Alive: timeout=5",
            "Connection: keep-alive, x-one",
            "X-One: 1",
            "X-Two: 2",
        )
        writer.write(answer("200 OK", b"ok", *fields))
        return True

    way.upstream.handler = handler
    sent = (
        "Proxy-Authorization: Basic eDp5",
        "Proxy-Connection: keep-alive",
        "Connection: keep-alive, x-gone, host",
        "X-Gone: 1",
        "TE: trailers",
        "Trailer: X-T",
        "Keep-Alive: 1",
        "Upgrade: h2c",
        "HTTP2-Settings: AAMAAABkAAQAAP__",
        "Cookie: kept=1",
    )
    answered = await way.asked(request("GET", "/", *sent))
    assert answered.status == 200
    lower = answered.head.lower()
    assert b"alt-svc" not in lower and b"keep-alive" not in lower and b"x-one" not in lower
    assert b"x-two: 2" in lower
    names = {line.partition(b":")[0].lower() for line in way.upstream.arrived[0].head.split(b"\r\n")[1:] if line}
    assert names == {b"host", b"cookie"}


async def test_a_redirect_is_the_client_s_to_follow(way: Rig) -> None:
    async def handler(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(answer("302 Found", b"", "Location: https://evil.test/"))
        return True

    way.upstream.handler = handler
    way.ticket(PH)
    answered = await way.asked(request("GET", "/", f"Authorization: Bearer {PH}"))
    assert answered.status == 302
    assert way.dialler.look_ups == [("api.test", 443)]


async def test_http_1_0_and_head(way: Rig) -> None:
    reader, writer = await way.tunnel()
    writer.write(request("HEAD", "/"))
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"content-length: " in head.lower()
    writer.write(b"GET /old HTTP/1.0\r\n\r\n")
    old = await reader.read()
    assert old.startswith(b"HTTP/1.1 200") and b"chunked" not in old.lower()
    assert [each.line for each in way.upstream.arrived] == [b"HEAD / HTTP/1.1", b"GET /old HTTP/1.1"]
    assert way.upstream.arrived[1].value("host") == b"api.test"


async def test_plain_http_needs_a_rule_that_says_so(way: Rig) -> None:
    async def asked(target: str) -> Reply:
        reader, writer = await way.raw(f"GET {target} HTTP/1.1\r\nHost: api.test\r\n\r\n".encode())
        try:
            return await reply(reader)
        finally:
            writer.transport.abort()

    denied = await asked("http://api.test/x?y=1")
    assert denied.reason == "denied" and (denied.error["host"], denied.error["path"]) == ("api.test", "/x")
    way.configure(rules=(rule(ports=(80,), plain=True),))
    assert (await asked("http://api.test/x?y=1")).status == 200
    assert way.plain.arrived[0].line == b"GET /x?y=1 HTTP/1.1"
    assert (await asked("http://api.test")).status == 200
    assert way.plain.arrived[1].line == b"GET / HTTP/1.1"
    assert (await asked("https://api.test/")).reason == "malformed"
    assert (await asked("/x")).reason == "malformed"
