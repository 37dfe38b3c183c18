"""An operator who acts as somebody: what is read and what is posted is in the audit by thread, before it is done."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.engine import as_somebody
from ringfence.host.kernel.errors import NotFound
from ringfence.host.kernel.people import Actor
from ringfence.host.kernel.ports import Accepted
from tests.support.databases import outside
from tests.support.engine_rig import OPERATOR, Rig, rig
from tests.support.store import newest

Act = Callable[[Rig, Actor, Accepted], Coroutine[Any, Any, Any]]


async def messages(r: Rig, actor: Actor, said: Accepted) -> Any:
    return await r.engine.threads.messages(actor, "default", "t", None, 10)


async def events(r: Rig, actor: Actor, said: Accepted) -> Any:
    return await r.engine.threads.events(actor, "default", "t", 0, 10)


async def turn(r: Rig, actor: Actor, said: Accepted) -> Any:
    return await r.engine.threads.turn(actor, said.turn.id)


async def watch(r: Rig, actor: Actor, said: Accepted) -> Any:
    (await r.engine.threads.watch(actor, "default", "t")).close()


async def steps(r: Rig, actor: Actor, said: Accepted) -> Any:
    return await r.engine.runs.show(actor, said.run.id)


async def post(r: Rig, actor: Actor, said: Accepted) -> Any:
    return await r.engine.threads.say(actor, "default", "t", "mine", "queue", None)


async def since(r: Rig, before: int) -> list[tuple[str, str]]:
    rows = [row for row in (await newest(r.store.audit, 1000))[before:] if row["action"] != "act_as"]
    assert all(row["actor"]["impersonated"] and row["actor"]["name"] == "alice" for row in rows)
    return [(row["action"], row["subject"]) for row in rows]


@pytest.mark.parametrize("act", [messages, events, turn, watch, steps, post])
async def test_each_act_names_what_it_is_about(tmp_path: Path, act: Act) -> None:
    async with rig(tmp_path) as r:
        said = await r.say("alice", "$ echo hi")
        await r.turn(said)
        before = len(await newest(r.store.audit, 1000))
        await act(r, r.actors["alice"], said)
        assert await since(r, before) == [], "the control: nobody is written down for their own"
        acting = await r.engine.people.act_as(OPERATOR, "default", "alice")
        await act(r, acting, said)
        thread = f"thread:{said.message.thread}"
        wanted: dict[Act, tuple[str, str]] = {
            steps: ("run.detail", f"run:{said.run.id}"),
            post: ("thread.post", thread),
        }
        assert await since(r, before) == [wanted.get(act, ("thread.read", thread))]


async def test_reads_are_recorded_once_in_a_while_and_posts_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as r:
        said = await r.say("alice", "hello")
        await r.turn(said)
        other = await r.say("alice", "hello", "u")
        acting = await r.engine.people.act_as(OPERATOR, "default", "alice")
        before = len(await newest(r.store.audit, 1000))
        for _ in range(3):
            await events(r, acting, said)
            await messages(r, acting, said)
        assert await since(r, before) == [("thread.read", f"thread:{said.message.thread}")]
        await r.engine.threads.messages(acting, "default", "u", None, 10)
        assert (await since(r, before))[1:] == [("thread.read", f"thread:{other.message.thread}")], "each thread"
        for _ in range(2):
            await post(r, acting, said)
        assert (await since(r, before))[2:] == [("thread.post", f"thread:{said.message.thread}")] * 2
        monkeypatch.setattr(as_somebody, "AGAIN_SECONDS", -1.0)
        before = len(await newest(r.store.audit, 1000))
        r.engine.threads._as_somebody._until.clear()
        for _ in range(2):
            await events(r, acting, said)
        assert len(await since(r, before)) == 2, "when the time is over"


async def test_the_first_message_of_a_thread_names_it(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        acting = await r.engine.people.act_as(OPERATOR, "default", "alice")
        before = len(await newest(r.store.audit, 1000))
        said = await r.engine.threads.say(acting, "default", "new", "mine", "queue", None)
        assert ("thread.post", f"thread:{said.message.thread}") in await since(r, before)


async def test_what_is_remembered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(as_somebody, "_MOST", 3)
    async with rig(tmp_path) as r:
        acting = await r.engine.people.act_as(OPERATOR, "default", "alice")
        reads = r.engine.threads._as_somebody
        for n in range(10):
            await reads.reads(acting, f"thread:{n}")
        assert len(reads._until) == 3


async def test_a_user_where_the_database_has_no_tenant(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        with pytest.raises(NotFound) as control:
            await r.engine.people.user_add(OPERATOR, "elsewhere", "carol")
        assert "init" not in control.value.remedy
        outside(tmp_path, "UPDATE tenants SET removed_at = created_at")
        with pytest.raises(NotFound, match="no tenant at all") as error:
            await r.engine.people.user_add(OPERATOR, "default", "carol")
        assert "ringfence init" in error.value.remedy
