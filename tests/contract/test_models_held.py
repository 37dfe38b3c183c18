"""What the gateway holds and says of what it is given: a body only until a provider has it, a key in no log and no
answer."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.kernel.errors import Invalid, Unavailable
from ringfence.host.kernel.models.ports import Caller
from ringfence.host.kernel.models.provider_credentials import check_headed
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.models import asked as asking
from ringfence.host.models.asked import Asked
from ringfence.host.models.crowd import _BODIES
from ringfence.host.models.gateway import _IN_PLACE, Gateway
from tests.contract.test_models_gateway import ASKED, CHAT, CLAUDE, MESSAGES, answered, asked, request
from tests.support.models_rig import KEY, Rig, a_rig
from tests.support.provider_double import Answer, as_json, chat

MANY = 8
LARGE = 1 << 20  # bytes, of a body that is read in a thread


def large(**more: Any) -> bytes:
    return request(CHAT, {**ASKED, "stream": True, "messages": [{"role": "user", "content": "x" * LARGE}], **more})


async def until(there: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not there():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def all_left(rig: Rig) -> AsyncIterator[AsyncExitStack]:
    """For connections: when it ends, the gateway has seen each of them end."""
    async with AsyncExitStack() as stack:
        yield stack
    await until(lambda: not rig.gateway.facts()["connections"])


def held() -> int:
    """Bytes of texts that requests under way have."""
    gc.collect()
    return sum(len(b"".join(each.text)) for each in gc.get_objects() if isinstance(each, Asked))


def _kept(self: Asked, output: int, *, bounded: bool) -> list[bytes]:
    return [self.text[0] + b"}"]


@pytest.mark.parametrize("walled", [True, False])
async def test_a_body_is_let_go_of_once_the_provider_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, walled: bool
) -> None:
    """However many answers are under way, and however long. The control: a text that is not given away stays."""
    if not walled:
        monkeypatch.setattr(Asked, "body", _kept)
    async with a_rig(tmp_path, Answer(chat("a")[:1], hang=True)) as rig, all_left(rig) as stack:
        for _ in range(MANY):
            reader, writer = await stack.enter_async_context(rig.connection())
            writer.write(large())
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
        assert len(rig.provider.arrived) == MANY, "more than are read at once: each has made room for the next"
        rig.provider.arrived.clear()
        assert (held() < LARGE) is walled and (walled or held() > MANY * LARGE)


async def test_so_many_large_bodies_of_a_user_are_there_at_once(tmp_path: Path) -> None:
    """While they wait for a key, or for a provider to take them. Small ones, and another user's, go by."""
    async with a_rig(tmp_path, Answer(chat("a"))) as rig, all_left(rig) as stack:
        rig.slow = 3600.0
        for _ in range(MANY):
            _, writer = await stack.enter_async_context(rig.connection())
            writer.write(large())
        await until(lambda: len(rig.asked) == _BODIES)
        for _ in range(20):
            await asyncio.sleep(0.01)
            assert len(rig.asked) == _BODIES
        rig.slow = 0.0
        assert len(json.dumps(ASKED)) < _IN_PLACE < LARGE
        rig.caller = replace(rig.caller, user=rig.team.bob.id, run=None)
        async with rig.connection() as (reader, writer):
            writer.write(large())
            await until(lambda: len(rig.asked) == _BODIES + 1)
            assert (await asyncio.wait_for(answered(reader), 30))[0] == 200


async def test_small_bodies_of_a_user_wait_for_no_large_one_that_waits(tmp_path: Path) -> None:
    async with a_rig(tmp_path, Answer(chat("a"))) as rig, all_left(rig) as stack:
        rig.slow = 3600.0
        for _ in range(_BODIES - 1):
            _, writer = await stack.enter_async_context(rig.connection())
            writer.write(large())
        for _ in range(MANY):
            _, writer = await stack.enter_async_context(rig.connection())
            writer.write(request(CHAT, ASKED))
        await until(lambda: len(rig.asked) == _BODIES - 1 + MANY)


# --- keys ------------------------------------------------------------------------------------------------------------

CANARY = "sk-CANARY-of-the-provider"
NONE_OF_THESE = [
    f"{CANARY}\nsecond line".encode(),
    f"\ufeff{CANARY}".encode(),
    f"{CANARY}\x00".encode(),
    f"{CANARY} # of the team".encode(),
    b"\xff" + CANARY.encode(),
    b" \n",
]


@pytest.mark.parametrize("value", NONE_OF_THESE)
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_a_key_that_cannot_stand_in_a_header_is_said_and_not_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, value: bytes, path: str
) -> None:
    caplog.set_level(logging.DEBUG)
    async with a_rig(tmp_path, Answer(chat("a"))) as rig:
        _gives(rig, value)
        status, headers, said = await asked(rig, path, ASKED if path == CHAT else CLAUDE)
        assert (status, headers["x-egress-reason"]) == (503, "credential_unavailable")
        assert b"provider-key" in said and b"one line" in said and b"CANARY" not in said
        with pytest.raises(Unavailable, match="one line") as raised:
            await rig.native("gpt").of(rig.caller).generate([{"role": "user", "text": "x"}], [], lambda _: None)
        assert rig.provider.arrived == [] and (await rig.used())["tokens"] == 0
        assert "CANARY" not in caplog.text + f"{raised.value!r}{raised.value.__cause__!r}{raised.value.remedy}"
    with pytest.raises(Invalid):
        check_headed(Secret(value))


async def test_a_line_end_behind_a_key_is_the_files(tmp_path: Path) -> None:
    async with a_rig(tmp_path, Answer(chat("a"))) as rig:  # the control of the one above
        _gives(rig, f"{CANARY}\r\n".encode())
        assert (await asked(rig, CHAT, {**ASKED, "stream": True}))[0] == 200
        assert rig.provider.arrived[0].headers["authorization"] == f"Bearer {CANARY}"


def _gives(rig: Rig, value: bytes) -> None:
    async def key(caller: Caller, name: str) -> Secret:
        return Secret(value)

    rig.key = key  # type: ignore[method-assign]


async def test_what_ends_a_connection_by_an_error_is_logged_without_its_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Asked:
        raise ZeroDivisionError(f"header {CANARY}")

    async with a_rig(tmp_path, Answer(chat("a"))) as rig:
        monkeypatch.setattr(asking, "read", broken)
        async with rig.connection() as (reader, writer):
            writer.write(request(CHAT, ASKED))
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await asyncio.wait_for(answered(reader), 30)
        await until(lambda: not rig.gateway.facts()["connections"])
        assert "ZeroDivisionError in broken" in caplog.text and "CANARY" not in caplog.text


@pytest.mark.parametrize("status", [200, 400])
async def test_a_key_that_a_provider_shows_in_a_head_is_masked(tmp_path: Path, status: int) -> None:
    shown = as_json({}, status, **{"x-request-id": f"of {KEY}", "retry-after": "7"})
    async with a_rig(tmp_path, shown) as rig:
        found, headers, _ = await asked(rig, CHAT, ASKED)
        assert (found, headers["x-request-id"]) == (status, "of " + "*" * len(KEY))
        assert headers["retry-after"] == "7"


async def test_betas_go_up_when_they_are_known(tmp_path: Path) -> None:
    async with a_rig(tmp_path, as_json({"usage": {}})) as rig:
        betas = "claude-code-20250219,context-1m-2025-08-07"
        await asked(rig, MESSAGES, CLAUDE, anthropic_beta=betas)
        assert rig.provider.arrived[0].headers["anthropic-beta"] == "claude-code-20250219"
        await asked(rig, MESSAGES, CLAUDE, anthropic_beta="context-1m-2025-08-07")
        assert "anthropic-beta" not in rig.provider.arrived[1].headers
        allowed = replace(rig.upstreams["claude"], betas=("context-1m-2025-08-07",))
        rig.gateway = Gateway([allowed], rig.client, rig.budgets)  # the control
        server = await asyncio.start_server(lambda r, w: rig.gateway.serve(r, w, rig.caller), "127.0.0.1", 0)
        rig.port = server.sockets[0].getsockname()[1]
        await asked(rig, MESSAGES, CLAUDE, anthropic_beta=betas)
        server.close()
        assert rig.provider.arrived[2].headers["anthropic-beta"] == betas
