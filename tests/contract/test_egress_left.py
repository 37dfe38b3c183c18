"""A command's end ends its way out, whoever waits for it, or nobody: clients that leave, servers that were started anew, wires
that broke. All of it real: engine, web server, spawner, worker, curl in the box."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from ringfence.host.egress.way_out import WayOut
from ringfence.host.kernel.environment import HOME
from ringfence.host.kernel.ids import BoxId, RunId, TenantId, UserId
from ringfence.host.kernel.outward.ports import Invocation, Invoker
from ringfence.host.web.exec_stream import _Exchange
from ringfence.host.web.server import listening
from tests.support.driver_stage import own_installation
from tests.support.egress_engine import SECRET, Outside, error_of, outside
from tests.support.engine_rig import OPERATOR, eventually

__all__ = ["own_installation"]
pytestmark = pytest.mark.root
CURL = "curl -sS --max-time 20"
GIVEN = "printenv HTTPS_PROXY GH_TOKEN > new; mv new given; exec sleep 300"
STREAM = "ws://{}:{}/v1/tenants/default/users/alice/exec/stream"


async def _live(o: Outside) -> int:
    found: int = o.egress.facts(await o.box("alice"))["invocations"]
    return found


async def _none_left(o: Outside) -> None:
    box = await o.box("alice")
    await eventually(lambda: o.egress.facts(box)["invocations"] == 0, "the end of its way out")


async def _given(o: Outside) -> tuple[str, str]:
    """The proxy and the placeholder of the command that lives; they are worth something."""
    proxy, token = (await o.said("alice", "while ! test -e given; do sleep 0.05; done; cat given")).split()
    await o.said("alice", f'{CURL} -x {proxy} -H "Authorization: Bearer {token}" https://api.test/own')
    assert o.upstream.arrived[-1].value("authorization") == b"Bearer " + SECRET
    return proxy, token


async def _worth_nothing(o: Outside, proxy: str, token: str) -> None:
    before = len(o.upstream.arrived)
    bearer = f'-H "Authorization: Bearer {token}" https://api.test/stolen'
    assert (await o.run("alice", f"{CURL} -x {proxy} {bearer}")).code == 7  # nobody listens there
    said = await o.said("alice", f"{CURL} {bearer}")
    assert error_of(said)["code"] in ("placeholder_expired", "placeholder_unknown")
    assert len(o.upstream.arrived) == before


@asynccontextmanager
async def _ready() -> AsyncIterator[Outside]:
    async with outside() as o:
        await o.secret("alice")
        await o.allow("alice")
        yield o


async def _revoked(o: Outside, token: str) -> None:
    await o.engine.people.token_remove(OPERATOR, "default", "alice", token)


async def _leaves(how: str, socket: ClientConnection, o: Outside, token: str) -> None:
    if how == "closed":
        await socket.close()
    elif how == "killed":
        socket.transport.abort()
    elif how == "misused":
        await socket.send("{")
    elif how == "revoked":
        await _revoked(o, token)
    else:
        await socket.send(json.dumps({"signal": 28}))  # what `broken` falls over


def _falls_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async def listen(self: _Exchange) -> int:
        while (await self._socket.receive()).get("text") is None:
            pass
        raise OSError("a fault of the server")

    monkeypatch.setattr(_Exchange, "_listen", listen)


@pytest.mark.parametrize("how", ["closed", "killed", "misused", "revoked", "broken"])
async def test_whoever_leaves_a_stream_leaves_no_way_out_behind(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "broken":
        _falls_over(monkeypatch)
    async with _ready() as o, listening(o.engine, tmp_path / "s", ("127.0.0.1", 0)) as bound:
        row, secret = await o.engine.people.token_add(OPERATOR, "default", "alice", ["user"], "", None)
        header = {"Authorization": f"Bearer {secret}"}
        assert bound.tcp is not None
        async with connect(STREAM.format(*bound.tcp), additional_headers=header) as socket:
            await socket.send(json.dumps({"argv": ["sh", "-c", GIVEN]}))
            assert "started" in json.loads(await socket.recv())
            given = await _given(o)
            assert await _live(o) == 1
            await _leaves(how, socket, o, row.id)
            await _none_left(o)
            with pytest.raises(ConnectionClosed):
                async with asyncio.timeout(30):
                    while True:
                        await socket.recv()
        await _worth_nothing(o, *given)
        assert (await o.run("alice", "pgrep sleep")).code == 1  # nor does the command run


async def test_one_whose_output_nobody_read_ends_all_the_same() -> None:
    async with _ready() as o:
        command = await o.start("alice", "head -c 30000000 /dev/zero; echo over > over", output="stream")
        assert await _live(o) == 1
        await command.release()
        await _none_left(o)
        assert await o.said("alice", "cat over") == "over\n"


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_run_that_is_over_leaves_none_of_its_commands_a_way_out(restarted: bool) -> None:
    run = RunId("run_x")
    async with _ready() as o:
        await o.said("alice", "true")
        box, begin = await o.box("alice"), o.egress.begin

        async def begun(who: Invoker) -> Invocation:  # there is no row of this run
            return await begin(replace(who, run=None))

        o.egress.begin = begun  # type: ignore[method-assign]
        step = asyncio.ensure_future(o.engine._shell.run(box, run, 1, {"command": GIVEN}, True))
        given = await _given(o)
        await asyncio.sleep(0.5)  # ledger.DELAY and a commit
        if restarted:  # the next server finds a command of a run that is no more
            await o.restart()
            await asyncio.wait([step])
        else:
            assert await _live(o) == 1
            await o.engine._shell.discard(box, run)
        await _none_left(o)
        await _worth_nothing(o, *given)
        step.cancel()


def _broken(o: Outside, box: BoxId) -> None:
    slot = o.engine._links.find(box)
    assert slot is not None and slot.link is not None
    slot.link._link.exchange.channel.abort("test", "broken")  # type: ignore[attr-defined]


async def test_what_a_new_wire_does_not_name_is_over() -> None:
    """And what it names goes on."""
    async with _ready() as o:
        command = await o.start("alice", GIVEN, output="stream")
        given, box = await _given(o), await o.box("alice")
        user = o.actors["alice"].user
        assert user is not None
        await o.egress.begin(Invoker(user.tenant, user.id, box, "x/unheard-of"))
        assert await _live(o) == 2
        _broken(o, box)
        await eventually(lambda: o.egress.facts(box)["invocations"] == 1, "the end of what nobody runs")
        assert await _given(o) == given
        await command.stop(0.1)
        await command.outcome()
        assert await _live(o) == 0


async def test_one_that_ends_while_a_new_server_opens_its_box_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    real = WayOut.open

    async def nothing() -> AsyncIterator[bytes]:
        yield b""

    async def late(self: WayOut, box: BoxId, tenant: TenantId, user: UserId, keys: Collection[str]) -> None:
        assert keys
        async with o.stage.driver.files(box) as files:
            await files.put(f"{HOME}/go".encode(), nothing(), 0o644)
        await eventually(lambda: not o.engine.commands._mine, "the end of the command is heard")
        await real(self, box, tenant, user, keys)

    async with _ready() as o:
        await o.start("alice", "while ! test -e go; do sleep 0.05; done", output="stream")
        await asyncio.sleep(0.5)  # ledger.DELAY and a commit
        monkeypatch.setattr(WayOut, "open", late)
        await o.restart()
        assert await _live(o) == 0


async def test_a_server_that_stops_ends_no_way_out_of_what_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though a wire breaks meanwhile, which is not dialled again: what is lost to this server runs on in the box."""
    async with _ready() as o:
        command = await o.start("alice", GIVEN, output="stream")
        given, box, stop = await _given(o), await o.box("alice"), o.engine._crew.stop
        await asyncio.sleep(0.5)  # ledger.DELAY and a commit

        async def broken() -> None:
            _broken(o, box)
            assert (await command.outcome()).reason == "box_lost"
            await stop()

        monkeypatch.setattr(o.engine._crew, "stop", broken)
        await o.restart()
        assert await _live(o) == 1
        assert await _given(o) == given
