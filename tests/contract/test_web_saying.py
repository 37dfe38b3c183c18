"""The SDK's `say` when the server goes away: what is known of the message is said, and a restart is waited for."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from ringfence.client import ApiError, Client, NotFound, Unavailable
from tests.support.web_rig import web


class Restarting(Client):
    """Of a server that is away just when the turn is asked for."""

    asked = 0

    async def turn(self, turn: str) -> dict[str, Any]:
        self.asked += 1
        if self.asked == 1:
            raise Unavailable("unavailable", "no server answers", "start one: ringfence serve")
        return await super().turn(turn)


def test_a_restart_at_the_turns_end_is_waited_for() -> None:
    async def work(socket: str) -> dict[str, Any]:
        async with Restarting(socket=socket, act_as="alice") as client:
            said = await client.say("t", "hello")
            assert client.asked == 2
            return said

    with web() as served:
        served.user("alice")
        assert asyncio.run(work(served.socket))["status"] == "completed"


def test_a_server_that_stays_away_leaves_the_ids() -> None:
    """The message is named by the error, and the way to look at its run."""
    accepted, failed = list[dict[str, Any]](), list[ApiError]()
    working = threading.Event()

    def see(item: dict[str, Any]) -> None:
        if item["kind"] == "accepted":
            accepted.append(item)
        if item["kind"] == "step.ended":
            working.set()

    async def work(socket: str) -> None:
        async with Client(socket=socket, act_as="alice") as client:
            client.resume_seconds = 0.3
            try:
                await client.say("t", "wait", seen=see)
            except ApiError as error:
                failed.append(error)

    with web() as served:
        served.user("alice")
        saying = threading.Thread(target=lambda: asyncio.run(work(served.socket)))
        saying.start()
        assert working.wait(20)
    saying.join(20)
    (error,), (known,) = failed, accepted
    assert isinstance(error, Unavailable) and error.exit_code == 5
    assert error.details == {name: known[name] for name in ("thread", "turn", "run", "message")}
    assert error.message.startswith("the message was accepted, but its turn cannot be followed any more: no server")
    assert error.remedy == f"start one: ringfence serve; then: ringfence run show {known['run']}"


async def test_an_answer_that_never_began_leaves_it_open() -> None:
    """Neither accepted nor not: so it says, and how to say it again without saying it twice."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    with tempfile.TemporaryDirectory(prefix="rf") as folder:
        path = str(Path(folder) / "s")
        server = await asyncio.start_unix_server(hang_up, path)
        async with server, Client(socket=path) as client:
            with pytest.raises(Unavailable) as raised:
                await client.say("my plans", "hello")
            with pytest.raises(Unavailable) as keyed:
                await client.say("my plans", "hello", key="k")
    assert keyed.value.remedy == "say it again with the same --key: it is said once"
    error = raised.value
    assert (error.code, error.details) == ("connection_lost", {"thread": "my plans"})
    assert "whether the message was accepted is not known" in error.message
    assert "ringfence events 'my plans'" in error.remedy and "with a --key" in error.remedy


async def test_a_message_that_was_never_sent_is_not_in_doubt() -> None:
    with tempfile.TemporaryDirectory(prefix="rf") as folder:
        async with Client(socket=str(Path(folder) / "s")) as client:
            with pytest.raises(Unavailable, match="no server answers") as raised:
                await client.say("t", "hello")
    assert (raised.value.code, raised.value.details) == ("unavailable", {})


async def test_what_was_refused_has_no_turn() -> None:
    with web() as served:
        served.user("alice")
        async with served.client(act_as="alice") as client:
            with pytest.raises(NotFound) as raised:
                await client.say("t", "hello", attachments=["absent"])
    assert "turn" not in raised.value.details and "accepted" not in raised.value.message
