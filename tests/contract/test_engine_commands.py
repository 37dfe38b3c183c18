"""Commands through the engine: what they are given, what is refused, and ends by the out-of-memory killer."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.engine.commands import MAX_BYTES, ExecRequest
from ringfence.host.kernel.environment import BASE
from ringfence.host.kernel.errors import Invalid, NotFound, Refused, TooLarge
from ringfence.host.kernel.people import Actor, Scope
from tests.support.engine_rig import OPERATOR, Rig, eventually, rig
from tests.support.store import newest


async def test_the_environment_is_the_table_and_what_was_asked(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        request = ExecRequest(argv=[b"/usr/bin/env", b"-0"], env={"EXTRA": b"\xff", "TERM": b"xterm"}, output="keep")
        command = await r.engine.commands.run(r.actors["alice"], "default", "alice", request)
        outcome = await command.outcome()
        assert outcome.stdout is not None
        got = dict(entry.split(b"=", 1) for entry in outcome.stdout.head.strip(b"\0").split(b"\0"))
        wanted = {name.encode(): value.encode() for name, value in BASE.items()}
        assert got == {**wanted, b"EXTRA": b"\xff", b"TERM": b"xterm"}


async def test_streams_signals_and_stdin_pass_through(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        request = ExecRequest(argv=[b"/bin/cat"], env={}, stdin="pipe")
        command = await r.engine.commands.run(r.actors["alice"], "default", "alice", request)
        await command.write(b"one\n")
        await command.close_stdin()
        assert [chunk async for chunk in command.output()] == [(1, b"one\n")]
        assert (await command.outcome()).code == 0
        assert r.box("alice").commands == {}  # forgotten by the guest once the outcome was taken
        command = await r.engine.commands.run(
            r.actors["alice"], "default", "alice", ExecRequest(argv=[b"/bin/sleep", b"30"], env={})
        )
        await command.signal(signal.SIGTERM)
        assert (await command.outcome()).signal == signal.SIGTERM


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"argv": []}, Invalid),
        ({"argv": [b""]}, Invalid),
        ({"argv": [b"a\0b"]}, Invalid),
        ({"argv": [b"x" * (MAX_BYTES + 1)]}, TooLarge),
        ({"argv": [b"x"] * 5000}, TooLarge),
        ({"cwd": "relative"}, Invalid),
        ({"cwd": ""}, Invalid),
        ({"cwd": "/a\0b"}, Invalid),
        ({"cwd": "/" + "x" * 5000}, Invalid),
        ({"timeout": 0}, Invalid),
        ({"timeout": -1.0}, Invalid),
        ({"timeout": float("nan")}, Invalid),
        ({"timeout": float("inf")}, Invalid),
        ({"timeout": True}, Invalid),
        ({"timeout": 7 * 24 * 3600.0 + 1}, Invalid),
        ({"env": {"A=B": b"x"}}, Invalid),
        ({"env": {"": b"x"}}, Invalid),
        ({"env": {"A": b"x\0"}}, Invalid),
        ({"env": {"\ud800": b"x"}}, Invalid),
    ],
)
async def test_what_cannot_be_run_is_refused_before_a_box_starts(
    tmp_path: Path, fields: dict[str, Any], error: type[Exception]
) -> None:
    async with rig(tmp_path, ("alice",)) as r:
        request = ExecRequest(**{"argv": [b"true"], "env": {}, **fields})
        with pytest.raises(error) as raised:
            await r.engine.commands.run(r.actors["alice"], "default", "alice", request)
        assert raised.value.remedy  # type: ignore[attr-defined]
        assert r.box("alice").starts == 0


async def _killed(r: Rig, kills: int, by: str = "") -> Any:
    """A command that is killed with SIGKILL while the box's counter grows by `kills`."""
    request = ExecRequest(argv=[b"/bin/sh", b"-c", b"sleep 30"], env={}, output="keep")
    command = await r.engine.commands.run(r.actors["alice"], "default", "alice", request)
    r.box("alice").oom_kills += kills
    if by == "stop":
        await command.stop(0)
    else:
        await command.signal(signal.SIGKILL) if by == "us" else os.killpg(command.pid, signal.SIGKILL)
    return await command.outcome()


async def test_a_kill_by_the_oom_killer_is_named_with_limit_and_peak(tmp_path: Path) -> None:
    """A29."""
    async with rig(tmp_path, ("alice",)) as r:
        ended = await _killed(r, 1)
        assert (ended.reason, ended.signal) == ("oom", 9)
        assert (ended.memory_limit_bytes, ended.memory_peak_bytes) == (1 << 30, 900 << 20)
        assert str(1 << 30) in ended.message
        # A later kill without a growth of the counter is a kill; and one that was asked for always is.
        assert (await _killed(r, 0)).reason == "exit"
        assert (await _killed(r, 1, by="us")).reason == "exit"
        assert (await _killed(r, 1, by="stop")).reason == "killed"


async def test_two_victims_of_the_oom_killer_at_once_are_both_named(tmp_path: Path) -> None:
    async with rig(tmp_path, ("alice",)) as r:
        commands = []
        for _ in range(2):
            request = ExecRequest(argv=[b"/bin/sh", b"-c", b"sleep 30"], env={}, output="keep")
            commands.append(await r.engine.commands.run(r.actors["alice"], "default", "alice", request))
        r.box("alice").oom_kills += 2
        for command in commands:
            os.killpg(command.pid, signal.SIGKILL)
        assert [(await command.outcome()).reason for command in commands] == ["oom", "oom"]


async def test_a_shell_whose_child_was_killed_is_out_of_memory_too(tmp_path: Path) -> None:
    async with rig(tmp_path, ("alice",)) as r:
        await r.exec("alice", "true")
        r.box("alice").oom_kills = 1
        ended = await r.exec("alice", "(kill -9 $$) & exit 137")
        assert (ended.reason, ended.code) in (("oom", 137), ("oom", None))


async def test_the_count_of_a_former_server_is_no_news(tmp_path: Path) -> None:
    async with rig(tmp_path, ("alice",)) as r:
        await r.exec("alice", "true")
        r.box("alice").oom_kills = 3
        await r.restart()
        assert (await _killed(r, 0)).reason == "exit"
        assert (await _killed(r, 1)).reason == "oom"


async def test_who_may(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        request = ExecRequest(argv=[b"/bin/true"], env={}, output="keep")
        run = r.engine.commands.run
        with pytest.raises(NotFound) as hidden:
            await run(r.actors["bob"], "default", "alice", request)
        with pytest.raises(NotFound) as absent:
            await run(r.actors["bob"], "default", "nobody", request)
        assert str(hidden.value).replace("alice", "X") == str(absent.value).replace("nobody", "X")
        assert hidden.value.remedy == absent.value.remedy
        with pytest.raises(NotFound):
            await run(r.actors["bob"], "other", "alice", request)
        reader = Actor(r.actors["alice"].user, False, "token:t", scopes=frozenset({Scope.READ}))
        with pytest.raises(Refused, match="only read"):
            await run(reader, "default", "alice", request)
        assert r.box("alice").starts == 0
        assert (await (await run(OPERATOR, "default", "alice", request)).outcome()).code == 0
        last = (await newest(r.store.audit, 1))[0]
        assert last["action"] == "exec"


async def test_a_command_of_a_former_server_does_not_stand_still(tmp_path: Path) -> None:
    """Its output is read on and dropped; the guest forgets it when it ends."""
    async with rig(tmp_path, ("alice",)) as r:
        request = ExecRequest(argv=[b"/bin/sh", b"-c", b"echo before; sleep 0.3; echo after"], env={})
        await r.engine.commands.run(r.actors["alice"], "default", "alice", request)
        await r.restart()
        assert len(r.box("alice").spawned) == 1
        await eventually(lambda: not r.box("alice").commands, "forgotten")
        assert len(r.box("alice").spawned) == 1


async def test_twenty_long_commands_do_not_delay_a_probe(tmp_path: Path) -> None:
    """E92: it is answered while they go on."""
    async with rig(tmp_path, ("alice",)) as r:
        script = "while [ ! -e go ]; do sleep 0.1; done"
        running = [asyncio.create_task(r.exec("alice", script)) for _ in range(20)]
        await eventually(lambda: len(r.box("alice").commands) == 20)
        assert (await r.engine.health.ping())["ok"]
        assert not any(task.done() for task in running)
        (r.box("alice").folder / "go").touch()
        await asyncio.gather(*running)
