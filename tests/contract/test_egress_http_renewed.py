"""An access token that the server does not take any more: another is asked for once, and reads go out once more with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from ringfence.host.egress.judging import Policy
from tests.support.egress_rig import INVOCATION, SECRET, Rig, binding, placeholder, reply, request, rig, rule
from tests.support.egress_upstream import Arrived, answer, echo

PH = placeholder()
AUTH = f"Authorization: Bearer {PH}"
FRESH = b"fresh-access-token-0123456789"


@pytest.fixture
async def way(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        made.configure(rules=(rule(websocket=True),), bindings=(binding(),))
        made.ticket(PH)
        made.upstream.handler = taking(FRESH)
        made.kernel.renewed["crd_1"] = FRESH
        yield made


def taking(*tokens: bytes):  # type: ignore[no-untyped-def]
    """Any other is answered with 401."""

    async def handler(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if arrived.value("authorization").removeprefix(b"Bearer ") in tokens:
            return await echo(arrived, reader, writer)
        said = b"no: " + arrived.value("authorization")
        writer.write(answer("401 Unauthorized", said, 'WWW-Authenticate: Bearer error="invalid_token"'))
        await writer.drain()
        return True

    return handler


def sent(way: Rig) -> list[bytes]:
    return [each.value("authorization") for each in way.upstream.arrived]


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
async def test_a_read_is_sent_once_more(way: Rig, method: str) -> None:
    reader, writer = await way.tunnel()
    writer.write(request(method, "/a?x=1", AUTH))
    if method == "HEAD":
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    else:
        answered = await reply(reader)
        assert answered.status == 200
        assert json.loads(answered.body)["head"].startswith(f"{method} /a?x=1 ")
        assert FRESH not in answered.body and SECRET not in answered.body, "neither comes back"
    assert sent(way) == [b"Bearer " + SECRET, b"Bearer " + FRESH]
    assert way.kernel.order.count("another") == 1
    writer.close()


async def test_what_writes_is_not_sent_twice_and_its_client_s_next_try_has_the_new_one(way: Rig) -> None:
    for head in (("POST", "/a", AUTH, "Content-Length: 0"), ("DELETE", "/a", AUTH)):
        answered = await way.asked(request(*head))
        assert answered.status == 401 and SECRET not in answered.body
    assert sent(way) == [b"Bearer " + SECRET] * 2, "each once"
    assert way.kernel.order.count("another") == 2, "asked for all the same"


async def test_a_read_with_a_body_is_not_sent_twice(way: Rig) -> None:
    answered = await way.asked(request("GET", "/a", AUTH, "Content-Length: 2") + b"{}")
    assert answered.status == 401 and len(sent(way)) == 1


async def test_once_and_not_again(way: Rig) -> None:
    way.upstream.handler = taking()
    answered = await way.asked(request("GET", "/a", AUTH))
    assert answered.status == 401
    assert sent(way) == [b"Bearer " + SECRET, b"Bearer " + FRESH]
    assert SECRET not in answered.body and FRESH not in answered.body and answered.body.startswith(b"no: ")
    assert way.kernel.order.count("another") == 1


async def test_there_is_no_other(way: Rig) -> None:
    """A credential that is one value, or whose grant is refused: the server's 401 goes on."""
    way.kernel.renewed.clear()
    answered = await way.asked(request("GET", "/a", AUTH))
    assert answered.status == 401 and b"no: Bearer " in answered.body and SECRET not in answered.body
    assert sent(way) == [b"Bearer " + SECRET]


async def test_no_credential_no_question(way: Rig) -> None:
    answered = await way.asked(request("GET", "/a", "Authorization: Bearer mine"))
    assert answered.status == 401 and "another" not in way.kernel.order


async def test_both_are_masked_in_the_second_answer(way: Rig) -> None:
    seen: list[bytes] = []

    async def handler(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        seen.append(arrived.value("authorization"))
        status = "401 No" if len(seen) == 1 else "200 OK"
        writer.write(answer(status, b" | ".join(seen)))
        await writer.drain()
        return True

    way.upstream.handler = handler
    answered = await way.asked(request("GET", "/a", AUTH))
    assert answered.status == 200 and b" | " in answered.body
    assert SECRET not in answered.body and FRESH not in answered.body
    assert [kind for kind, _, _ in way.kernel.findings] == ["secret_reflected"]


async def test_revoked_while_another_is_asked_for(way: Rig) -> None:
    asked, going = asyncio.Event(), asyncio.Event()
    real = way.kernel.another

    async def slow(*args):  # type: ignore[no-untyped-def]
        asked.set()
        await going.wait()
        return await real(*args)

    way.kernel.another = slow  # type: ignore[method-assign]
    reader, writer = await way.tunnel()
    writer.write(request("GET", "/a", AUTH))
    async with asyncio.timeout(30):
        await asked.wait()
        way.serving.revoke("crd_1")
        going.set()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reply(reader)
    assert sent(way) == [b"Bearer " + SECRET]
    writer.close()


@pytest.mark.parametrize("taken", ["binding", "stand-in", ""], ids=["unbound", "ended", "control"])
async def test_what_is_taken_back_before_the_second_sending_is_not_sent(
    way: Rig, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without the cut of a reload: the second wall, as at the first sending. The second connection is being made."""
    real, dials = way.dialler.connect, 0

    async def connect(host: str, port: int, tls: bool = True) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        nonlocal dials
        dials += 1
        if dials == 2 and taken == "stand-in":
            way.desk.tickets.replace(INVOCATION, [])
        elif dials == 2 and taken == "binding":
            none = replace(way.configuration, bindings=())
            way.serving._works = replace(way.serving._now(), configuration=none, policy=Policy(none))
        return await real(host, port, tls)

    monkeypatch.setattr(way.dialler, "connect", connect)
    answered = await way.asked(request("GET", "/a", AUTH))
    reasons = {"binding": "credential_unavailable", "stand-in": "placeholder_expired", "": ""}
    assert answered.reason == reasons[taken] and dials == 2
    assert sent(way) == [b"Bearer " + SECRET, *([] if taken else [b"Bearer " + FRESH])]
