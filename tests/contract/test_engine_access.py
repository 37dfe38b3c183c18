"""Who may see and do what, through the engine: strangers, members, owners, operators; tokens; what an event shows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.kernel.errors import (
    Conflict,
    Invalid,
    NameInvalid,
    NotFound,
    Refused,
    RingfenceError,
    TooLarge,
    Unauthenticated,
)
from ringfence.host.kernel.life.copies import How
from ringfence.host.kernel.people import Actor
from tests.support.engine_rig import OPERATOR, Rig, rig
from tests.support.store import newest

Act = Callable[[Rig, Actor, str], Awaitable[Any]]

# Beside what the routes do with it (test_access.py): a stream waits and watches, a message steers or has files.
ON_THREADS: dict[str, Act] = {
    "watch": lambda r, a, t: r.engine.threads.watch(a, "default", t),
    "steer": lambda r, a, t: r.engine.threads.say(a, "default", t, "x", "steer", None),
    "attach": lambda r, a, t: r.engine.threads.say(a, "default", t, "x", "queue", None, []),
}


async def refusal(act: Awaitable[Any]) -> tuple[str, str, str]:
    with pytest.raises(RingfenceError) as raised:
        await act
    return raised.value.code, raised.value.message, raised.value.remedy


@pytest.mark.parametrize("name", ON_THREADS)
async def test_a_non_member_cannot_tell_a_thread_from_none(tmp_path: Path, name: str) -> None:
    async with rig(tmp_path) as r:
        await r.engine.threads.add(r.actors["alice"], "default", "secret", [], False)
        act = ON_THREADS[name]
        hidden = await refusal(act(r, r.actors["bob"], "secret"))
        if name in ("steer", "attach"):  # a name that is free would be taken: the text is that of any other act
            act = ON_THREADS["watch"]
        absent = await refusal(act(r, r.actors["bob"], "nothing"))
        assert hidden[0] == "not_found"
        assert tuple(p.replace("secret", "X") for p in hidden) == tuple(p.replace("nothing", "X") for p in absent)
        await act(r, r.actors["alice"], "secret")  # the control: a member may


async def test_saying_to_somebody_elses_thread_finds_none(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.asked("alice", "nothing")
        with pytest.raises(NotFound, match="no such thread: 't'"):
            await r.say("bob", "let me in")
        await r.store.tenants.add("other")
        eve = await r.person("eve", "other")
        with pytest.raises(NotFound):
            await r.engine.threads.say(eve, "default", "t", "hello", "queue", None)
        said = await r.engine.threads.say(eve, "other", "t", "hello", "queue", None)  # her own thread of that name
        assert said.turn.thread != (await r.store.threads.of_member(r.actors["alice"].user.id))[0].id  # type: ignore[union-attr]


async def test_members_see_text_and_only_the_actor_sees_steps(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.engine.threads.add(r.actors["alice"], "default", "t", ["bob"], False)
        turn = await r.asked("alice", "please\n$ echo s3cret > f")
        assert turn.run is not None
        seen = {
            name: await r.engine.threads.events(actor, "default", "t", 0, 100)
            for name, actor in {**r.actors, "operator": OPERATOR}.items()
        }
        cursors = [[event["cursor"] for event in events] for events in seen.values()]
        assert cursors[0] == cursors[1] == cursors[2] == list(range(1, len(cursors[0]) + 1))
        steps = {name: [e["body"] for e in events if e["kind"].startswith("step.")] for name, events in seen.items()}
        assert "shell" in str(steps["alice"])
        assert steps["bob"] == steps["operator"] == [{"n": 1}, {"n": 1}]
        assert "please" in str(seen["bob"])
        assert "please" not in str(seen["operator"])
        assert turn.reply is not None
        assert turn.reply not in str(seen["operator"])
        shown = {n: await r.engine.runs.show(a, turn.run) for n, a in {**r.actors, "operator": OPERATOR}.items()}
        assert "s3cret" in str(shown["alice"].steps)
        assert shown["bob"].steps == []
        assert [(s.n, s.tool, s.arguments, s.result) for s in shown["operator"].steps] == [(1, "shell", {}, None)]
        assert all(view.run.token_hash == "" for view in shown.values())


async def test_an_operator_sees_that_a_thread_exists_and_no_text(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        turn = await r.asked("alice", "my words")
        assert [t.name for t in await r.engine.threads.list(OPERATOR, "default")] == ["t"]
        assert (await r.engine.threads.show(OPERATOR, "default", "t"))[1] == ["alice"]
        assert (await refusal(r.engine.threads.messages(OPERATOR, "default", "t", None, 10)))[0] == "refused"
        assert (await r.engine.threads.turn(OPERATOR, turn.id)).reply is None
        assert (await refusal(r.engine.threads.say(OPERATOR, "default", "t", "x", "queue", None)))[0] == "refused"
        acting = await r.engine.people.act_as(OPERATOR, "default", "alice")
        assert (await newest(r.store.audit, 1))[0]["action"] == "act_as"
        assert "my words" in str(await r.engine.threads.messages(acting, "default", "t", None, 10))
        assert not acting.operator
        assert (await refusal(r.engine.boxes.show(acting, "default", "bob")))[0] == "not_found"


async def test_operators_acts_on_others_are_recorded(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.engine.boxes.start(OPERATOR, "default", "alice")
        await r.engine.boxes.set_limits(OPERATOR, "default", "alice", {"pids": 100})
        await r.engine.boxes.start(r.actors["alice"], "default", "alice")  # one's own is not
        actions = sorted(row["action"] for row in await newest(r.store.audit, 100))
        assert actions.count("box.start") == 1
        assert actions.count("box.limits") == 1


async def test_the_row_of_an_operators_act_says_which_it_was_and_why(tmp_path: Path) -> None:
    """One permission is for several acts: a resume and an archive, a quarantine and its end."""
    async with rig(tmp_path) as r:
        await r.exec("alice", "true")
        verbs, copies = r.engine.life, r.engine.copies
        of = (OPERATOR, "default", "alice")
        await verbs.pause(*of, force=True)
        await verbs.resume(*of)
        await verbs.quarantine(*of, "mining")
        await verbs.release(*of)
        for act in (copies.reset(*of, How(keep=False)), copies.recover(*of, "fsck", How())):
            with suppress(RingfenceError):  # the row is there before it is done
                await act
        rows = [(row["action"], row["details"]) for row in await newest(r.store.audit, 100)]
        asked = {"force": False, "drain": 0.0}
        assert [row for row in rows if row[0].startswith("box.") and row[0] != "box.see"] == [
            ("box.pause", {"verb": "pause", "force": True}),
            ("box.pause", {"verb": "resume"}),
            ("box.quarantine", {"verb": "quarantine", "reason": "mining"}),
            ("box.quarantine", {"verb": "release"}),
            ("box.tree", {"verb": "reset", "keep_files": False, "keep": False, **asked}),
            ("box.recover", {"verb": "fsck", "keep": True, **asked}),
        ]


async def test_what_only_operators_may(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        alice = r.actors["alice"]
        people = r.engine.people
        for act in (
            people.tenant_add(alice, "mine"),
            people.tenant_remove(alice, "default"),
            people.tenant_remove(alice, "nothing"),
            people.user_add(alice, "default", "friend"),
            people.user_add(alice, "nothing", "friend"),
            people.user_remove(alice, "default", "alice"),
            people.act_as(alice, "default", "bob"),
            people.token_add(alice, "default", "alice", ["operator"], "", None),
        ):
            assert (await refusal(act))[0] == "refused"
        assert [t.name for t in await people.tenants(alice)] == ["default"]
        assert [u.name for u in await people.users(alice, "default")] == ["alice"]
        assert (await refusal(people.users(alice, "other")))[1] == "no such tenant: 'other'"
        assert [b.user for b in await r.engine.boxes.list(alice, None)] == ["alice"]
        assert [b.user for b in await r.engine.boxes.list(OPERATOR, None)] == ["alice", "bob"]


async def test_an_owner_sees_the_box_of_an_agent_and_does_not_work_in_it(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.engine.people.user_add(OPERATOR, "default", "robot", "agent", "alice")
        assert (await r.engine.boxes.show(r.actors["alice"], "default", "robot")).user == "robot"
        assert (await refusal(r.engine.boxes.start(r.actors["alice"], "default", "robot")))[0] == "refused"
        assert (await refusal(r.engine.boxes.show(r.actors["bob"], "default", "robot")))[0] == "not_found"
        assert [u.name for u in await r.engine.people.users(r.actors["alice"], "default")] == ["alice", "robot"]
        for kind, owner in (("agent", None), ("person", "alice"), ("robot", "alice")):
            with pytest.raises(Invalid):
                await r.engine.people.user_add(OPERATOR, "default", "x", kind, owner)


async def test_tokens(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        people, alice = r.engine.people, r.actors["alice"]
        token, secret = await people.token_add(alice, "default", "alice", [], "laptop", 60.0)
        actor = await people.authenticate(secret)
        assert (actor.user, actor.operator, actor.via) == (alice.user, False, f"token:{token.id}")
        assert secret not in str(await people.tokens(alice, "default", "alice"))
        for life in (None, 3600.0):  # what a token makes lives no longer than it does
            made, _ = await people.token_add(actor, "default", "alice", [], "", life)
            assert made.expires_at == token.expires_at
        _, admin = await people.token_add(OPERATOR, "default", "alice", ["operator"], "", None)
        assert (await people.authenticate(admin)).operator
        with pytest.raises(Unauthenticated, match="not valid"):
            await people.authenticate(secret + "x")
        with pytest.raises(Unauthenticated, match="not valid"):
            await people.authenticate("\ud800")
        await people.token_remove(alice, "default", "alice", token.id)
        with pytest.raises(Unauthenticated, match="not valid"):
            await people.authenticate(secret)
        with pytest.raises(NotFound):
            await people.token_remove(alice, "default", "alice", token.id)
        _, brief = await people.token_add(alice, "default", "alice", ["read"], "", 0.02)
        reader = await people.authenticate(brief)
        assert (await refusal(r.engine.boxes.start(reader, "default", "alice")))[0] == "refused"
        assert (await refusal(r.engine.threads.say(reader, "default", "new", "x", "queue", None)))[0] == "refused"
        assert (await r.engine.boxes.show(reader, "default", "alice")).user == "alice"
        await asyncio.sleep(0.03)
        with pytest.raises(Unauthenticated, match="expired at"):
            await people.authenticate(brief)
        for scopes, note, ttl in ((["root"], "", None), ([], "x" * 300, None), ([], "", 0.0), ([], "", float("nan"))):
            with pytest.raises(Invalid):
                await people.token_add(alice, "default", "alice", scopes, note, ttl)


async def test_a_removed_users_token_is_not_valid(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        _, secret = await r.engine.people.token_add(OPERATOR, "default", "alice", [], "", None)
        await r.engine.people.user_remove(OPERATOR, "default", "alice")
        with pytest.raises(Unauthenticated, match="not valid"):
            await r.engine.people.authenticate(secret)


async def test_messages_that_are_refused(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        for text in ("", " \n", "\ud800"):
            with pytest.raises(Invalid):
                await r.say("alice", text)
        with pytest.raises(TooLarge, match="262145 bytes; the limit is 262144"):
            await r.say("alice", "x" * (256 * 1024 + 1))
        with pytest.raises(Invalid, match="no mode 'now'"):
            await r.say("alice", "x", mode="now")
        with pytest.raises(NameInvalid):
            await r.say("alice", "x", thread="a/b")
        with pytest.raises(Invalid):
            await r.say("alice", "x", key="")
        assert await r.store.threads.of_member(r.actors["alice"].user.id) == []  # type: ignore[union-attr]


async def test_a_key_and_a_busy_lane(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        first = await r.say("alice", "$ sleep 0.5", key="k")
        again = await r.say("alice", "$ sleep 0.5", key="k")
        assert (again.turn.id, again.repeated) == (first.turn.id, True)
        with pytest.raises(Conflict) as reused:
            await r.say("alice", "other", key="k")
        assert reused.value.code == "key_reused"
        with pytest.raises(Conflict) as busy:
            await r.say("alice", "other", mode="reject")
        assert busy.value.code == "lane_busy"
        await r.turn(first)


async def test_the_largest_message_is_worked_on(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        turn = await r.asked("alice", "$ echo big\n" + "\u4e2d" * 80_000)
        assert turn.reply is not None
        assert "big" in turn.reply
        worst = await r.asked("alice", "\x01" * (255 * 1024))  # six bytes of JSON for each: more than a frame
        assert (worst.state.value, worst.reason) == ("failed", "message_too_large")


async def test_membership_changes_what_is_seen(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.asked("alice", "words")
        await r.engine.threads.set_member(r.actors["alice"], "default", "t", "bob", True)
        assert "words" in str(await r.engine.threads.messages(r.actors["bob"], "default", "t", None, 10))
        await r.engine.threads.set_member(r.actors["bob"], "default", "t", "bob", False)
        with pytest.raises(NotFound):
            await r.engine.threads.messages(r.actors["bob"], "default", "t", None, 10)
        with pytest.raises(NotFound, match="nobody"):
            await r.engine.threads.set_member(r.actors["alice"], "default", "t", "nobody", True)


async def test_files_go_to_the_users_own_box(tmp_path: Path) -> None:
    async def chunks() -> Any:
        yield b"one"
        yield b"two"

    async with rig(tmp_path) as r:
        alice = r.actors["alice"]
        info = await r.engine.files.put(alice, "default", "alice", b"f\xff", chunks(), 0o640)
        assert (info.size, info.mode, info.name) == (6, 0o640, b"f\xff")
        async with r.engine.files.get(alice, "default", "alice", b"f\xff") as (seen, data):
            assert (seen.size, b"".join([chunk async for chunk in data])) == (6, b"onetwo")
        assert r.box("alice").starts == 0  # files need no running box
        assert (await r.engine.boxes.show(alice, "default", "alice")).disk_bytes == 6
        for limit in (0, 5000):
            with pytest.raises(Invalid):
                await r.engine.files.list(alice, "default", "alice", b".", None, limit)
        with pytest.raises(Invalid):
            await r.engine.files.put(alice, "default", "alice", b"f", chunks(), 0o4755)
        with pytest.raises(Refused, match="only read"):
            reader = Actor(alice.user, False, "t", scopes=frozenset())
            await r.engine.files.remove(reader, "default", "alice", b"f", False)
