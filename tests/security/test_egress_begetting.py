"""E15: what is got with a credential is no credential in the box."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.egress_rig import SECRET, Rig, binding, placeholder, request, rig, rule
from tests.support.egress_upstream import Arrived, answer

PH = placeholder()
AUTH = f"Authorization: Bearer {PH}"
FRESH = b"fresh-token-of-the-service"


async def minting(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    writer.write(answer("201 Created", b'{"token": "' + FRESH + b'"}', "Set-Cookie: session=real", "X-Other: kept"))
    await writer.drain()
    return True


@pytest.fixture
async def way(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        made.configure(rules=(rule(),), bindings=(binding(),))
        made.ticket(PH)
        made.upstream.handler = minting
        yield made


@pytest.mark.parametrize("path", ["/app/installations/1/access_tokens", "/oauth/token", "/-/npm/v1/tokens"])
async def test_a_token_is_not_asked_for_with_a_credential(way: Rig, path: str) -> None:
    answered = await way.asked(request("POST", path, AUTH, "Content-Length: 0"))
    assert (answered.status, answered.reason) == (403, "denied")
    assert "secret bind" in answered.error["remedy"] and "--path" in answered.error["remedy"]
    assert way.upstream.arrived == [] and way.kernel.asked == [], "nothing left, and no value was asked for"
    way.configure(bindings=(binding(paths=(path,)),))  # control: the wall is what the binding says
    opened = await way.asked(request("POST", path, AUTH, "Content-Length: 0"))
    assert opened.status == 201 and FRESH in opened.body
    assert way.upstream.arrived[0].value("authorization") == b"Bearer " + SECRET


async def test_a_client_s_own_sign_in_is_its_own(way: Rig) -> None:
    """Without a credential of ours nothing is got with one."""
    answered = await way.asked(request("POST", "/oauth/token", "Content-Length: 0"))
    assert answered.status == 201 and b"Set-Cookie: session=real" in answered.head.replace(b"set-cookie", b"Set-Cookie")


async def test_no_session_is_begun_with_a_credential(way: Rig) -> None:
    answered = await way.asked(request("GET", "/user", AUTH))
    assert answered.status == 201 and b"session=real" not in answered.head and b"kept" in answered.head
    own = await way.asked(request("GET", "/user"))  # control
    assert b"session=real" in own.head
