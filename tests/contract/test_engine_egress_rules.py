"""Rules of the way out, explanations, the log and held connections through the engine, on a real store."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.engine import egress_rules as engine_rules
from ringfence.host.kernel.errors import Conflict, Invalid, NotFound, Refused, Unavailable
from ringfence.host.kernel.outward.linting import lint
from ringfence.host.kernel.outward.matching import compile_rules
from ringfence.host.kernel.outward.rules import EgressRule, Layer, Verdict
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.outward.wishes import RuleWish
from ringfence.host.kernel.people import Actor, Scope
from ringfence.host.store import egress_rules
from tests.support.engine_rig import OPERATOR, UserKind
from tests.support.outward_rig import Out, out

ALLOW, DENY, ASK = Verdict.ALLOW, Verdict.DENY, Verdict.ASK


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Out]:
    async with out(tmp_path) as made:
        yield made


async def add(there: Out, name: str, answer: Verdict, host: str, **more: Any) -> Any:
    wish = RuleWish(answer, host, **more)
    return await there.rig.engine.egress.add(there.actor(name), "default", name, wish)


async def tried(there: Out, name: str, method: str, url: str) -> Any:
    return await there.rig.engine.egress.test(there.actor(name), "default", name, method, url)


async def test_nothing_leaves_until_somebody_says_so(there: Out) -> None:
    found = (await tried(there, "alice", "GET", "https://api.test/x")).explanation
    assert (found.decision.answer, found.decision.rule) == (DENY, None)
    missing = found.decision.missing
    assert (missing.host, missing.methods, missing.paths) == ("api.test", {"GET"}, ("/x",))
    made = await there.rig.engine.egress.add(
        there.actor("alice"),
        "default",
        "alice",
        RuleWish(ALLOW, missing.host, methods=missing.methods, paths=missing.paths),
    )
    again = (await tried(there, "alice", "GET", "https://api.test/x")).explanation
    assert (again.decision.answer, again.decision.rule) == (ALLOW, made.rules[0])
    assert (await tried(there, "alice", "POST", "https://api.test/x")).explanation.decision.answer is DENY
    assert (await tried(there, "bob", "GET", "https://api.test/x")).explanation.decision.answer is DENY


async def test_layers(there: Out) -> None:
    egress, alice = there.rig.engine.egress, there.actor("alice")
    await add(there, "alice", ALLOW, "api.test")
    (of_all,) = (await egress.add(OPERATOR, "", "", RuleWish(ALLOW, "**.packages.test"))).rules
    (of_tenant,) = (
        await egress.add(OPERATOR, "default", "", RuleWish(DENY, "api.test", methods=frozenset({"POST"})))
    ).rules
    there.told.settings_rules = [EgressRule("set_1", DENY, "evil.test", (), layer=Layer.INSTALLATION)]
    seen = (await egress.ls(alice, "default", "alice")).rules
    assert [each.layer.value for each in seen] == ["installation", "user", "installation", "tenant"]
    found = (await tried(there, "alice", "POST", "https://api.test/")).explanation
    assert [(each.layer, each.answer) for each in found.layers] == [
        (Layer.INSTALLATION, None),
        (Layer.TENANT, DENY),
        (Layer.USER, ALLOW),
    ]
    assert (found.decision.answer, found.decision.rule, found.decision.missing) == (DENY, of_tenant, None)
    assert (await tried(there, "alice", "GET", "https://evil.test/")).explanation.decision.answer is DENY
    assert (await egress.ls(OPERATOR, "default", "")).rules == [of_tenant]
    assert [each.id for each in (await egress.ls(OPERATOR, "", "")).rules] == ["set_1", of_all.id]
    user_ids = {actor.user.id for actor in there.rig.actors.values() if actor.user}
    assert there.told.reloads[1] is None and set(there.told.reloads[2] or ()) == user_ids
    for tenant in ("default", ""):
        with pytest.raises(Refused):
            await egress.add(alice, tenant, "", RuleWish(ALLOW, "mine.test"))
        with pytest.raises(Refused):
            await egress.remove(alice, tenant, "", of_tenant.id)


async def test_a_rule_is_removed_where_it_is_and_nowhere_else(there: Out) -> None:
    egress, bob = there.rig.engine.egress, there.actor("bob")
    (mine,) = (await add(there, "alice", ALLOW, "api.test")).rules
    with pytest.raises(NotFound):
        await egress.remove(bob, "default", "bob", mine.id)
    with pytest.raises(NotFound):
        await egress.remove(OPERATOR, "default", "", mine.id)
    assert (await egress.remove(there.actor("alice"), "default", "alice", mine.id)) == mine
    assert (await egress.ls(there.actor("alice"), "default", "alice")).rules == []
    acts = await there.recorded("egress.rule")
    assert [each["action"] for each in acts] == ["egress.rule_add", "egress.rule_remove"]
    assert acts[0]["details"]["rule"]["host"] == "api.test"


async def test_presets_twice_and_what_is_odd(there: Out) -> None:
    egress, alice = there.rig.engine.egress, there.actor("alice")
    wish = RuleWish(ALLOW, preset="git-read:github.com")
    made = (await egress.add(alice, "default", "alice", wish)).rules
    assert [each.note for each in made] == ["preset git-read"] * 4 and all(each.id.startswith("rul_") for each in made)
    with pytest.raises(Conflict):
        await egress.add(alice, "default", "alice", wish)
    await egress.add(there.actor("bob"), "default", "bob", wish)
    clone = "https://github.com/a/b/info/refs?service=git-upload-pack"
    assert (await tried(there, "alice", "GET", clone)).explanation.decision.answer is ALLOW
    push = clone.replace("upload", "receive")
    assert (await tried(there, "alice", "GET", push)).explanation.decision.answer is DENY
    odd = await add(there, "alice", ALLOW, "*.test")
    assert odd.lint and odd.rules[0].id in odd.lint[0]
    for wrong in (
        RuleWish(ALLOW),
        RuleWish(ALLOW, "a b"),
        RuleWish(ALLOW, "169.254.169.254.nip/8"),
        RuleWish(ALLOW, preset="no-such"),
        RuleWish(DENY, preset="pypi"),
        RuleWish(ALLOW, "a.test", preset="pypi"),
        RuleWish(ALLOW, "a.test", methods=frozenset({"get"})),
    ):
        with pytest.raises(Invalid):
            await egress.add(alice, "default", "alice", wrong)


async def test_half_a_preset_is_none(there: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    """git-read is two allows and two denies: the allows alone would let a push through. What is stored is in force at once."""
    egress, alice = there.rig.engine.egress, there.actor("alice")
    monkeypatch.setattr(egress_rules, "MAX_RULES", 3)
    with pytest.raises(Conflict, match="limit is 3"):
        await egress.add(alice, "default", "alice", RuleWish(ALLOW, preset="git-read:github.com"))
    assert (await egress.ls(alice, "default", "alice")).rules == []
    monkeypatch.setattr(egress_rules, "MAX_RULES", 4)
    before = len(there.told.reloads)
    stored = there.rig.store.egress_rules.add_all

    async def heard_too_late(*asked: Any) -> Any:
        await stored(*asked)
        raise Unavailable("the database did not say that it has it", remedy="look")

    monkeypatch.setattr(there.rig.store.egress_rules, "add_all", heard_too_late)
    with pytest.raises(Unavailable):
        await egress.add(alice, "default", "alice", RuleWish(ALLOW, preset="git-read:github.com"))
    assert len((await egress.ls(alice, "default", "alice")).rules) == 4
    assert len(there.told.reloads) == before + 1


async def test_what_a_user_has_written_keeps_nobody_waiting(there: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules are compared and compiled off the loop, and compiled once for who asks again."""
    loop, threads, compiled = threading.get_ident(), set(), 0

    def elsewhere(work: Any) -> Any:
        def counted(*asked: Any) -> Any:
            nonlocal compiled
            compiled += work is compile_rules
            threads.add(threading.get_ident())
            return work(*asked)

        return counted

    monkeypatch.setattr(engine_rules, "lint", elsewhere(lint))
    monkeypatch.setattr(engine_rules, "compile_rules", elsewhere(compile_rules))
    await add(there, "alice", ALLOW, "api.test")
    await there.rig.engine.egress.ls(there.actor("alice"), "default", "alice")
    for path in "abc":
        assert (await tried(there, "alice", "GET", f"https://api.test/{path}")).explanation.decision.answer is ALLOW
    assert compiled == 1
    await add(there, "alice", DENY, "api.test")
    assert (await tried(there, "alice", "GET", "https://api.test/a")).explanation.decision.answer is DENY
    assert (await tried(there, "bob", "GET", "https://api.test/a")).explanation.decision.rule is None
    assert compiled == 3 and loop not in threads


async def test_which_credential_is_used_where(there: Out) -> None:
    await there.bound("alice", "api.test", paths=("/v1/**",))
    await add(there, "alice", ALLOW, "api.test")
    found = await tried(there, "alice", "GET", "https://api.test/v1/x?secret=1")
    (binding,) = found.explanation.bindings
    assert found.credentials == {binding.credential: "gh"}
    assert "secret=1" not in repr(replace(found.explanation, asked=replace(found.explanation.asked, query="")))
    for url in ("https://api.test/v2", "http://api.test/v1/x", "https://api.test:8443/v1/x"):
        assert (await tried(there, "alice", "GET", url)).explanation.bindings == ()
    assert found.note == ""
    there.rig.with_parts["egress"] = None
    await there.rig.restart()
    assert "not enabled" in (await tried(there, "alice", "GET", "https://api.test/v1/x")).note


async def test_the_log_is_of_ones_own_box(there: Out) -> None:
    log, store = there.rig.engine.egress_log, there.rig.store
    await there.bound("alice")
    mine, other = there.rig.box("alice").id, there.rig.box("bob").id
    store.audit.traffic(mine, "api.test", "allow", 1, 2)
    store.audit.traffic(other, "bobs.test", "deny", 3, 4)
    await store.audit.release(None, "credential:crd_1", f"box:{mine}", {"user": "usr_x", "host": "api.test"})
    await store.audit.release(None, "credential:crd_2", f"box:{other}", {"user": "usr_y", "host": "bobs.test"})
    await store.audit.record(None, "egress.finding", f"box:{mine}", {"kind": "placeholder_foreign"})
    await store.audit.record(None, "box.start", f"box:{mine}", {})
    found = await log.read(there.actor("alice"), "default", "alice", None, 100)
    assert [(each["host"], each["verdict"]) for each in found.traffic] == [("api.test", "allow")]
    actions = [each["action"] for each in found.rows]
    assert actions == ["egress.finding", "release", "secret.bind", "secret.set"]
    assert "bobs.test" not in repr(found)
    later = await log.read(there.actor("alice"), "default", "alice", found.until, 100)
    assert (later.traffic, later.rows) == ([], []), "nothing comes twice"
    store.audit.traffic(mine, "new.test", "deny", 0, 0)
    news = await log.read(there.actor("alice"), "default", "alice", found.until, 100)
    assert [each["host"] for each in news.traffic] == ["new.test"]
    old = await log.read(there.actor("alice"), "default", "alice", found.until - timedelta(days=1), 1)
    assert (len(old.traffic), len(old.rows)) == (1, 1) and old.more and not found.more
    with pytest.raises(NotFound):
        await log.read(there.actor("bob"), "default", "alice", None, 1)


# --- holds -----------------------------------------------------------------------------------------------------------


async def test_a_hold_is_its_users_to_answer(there: Out) -> None:
    holds, alice, bob = there.rig.engine.holds, there.actor("alice"), there.actor("bob")
    there.told.holds.asks(alice, "api.test")
    (seen,) = await holds.ls(alice, "default", None, 10)
    assert (seen.user, seen.answerer, seen.rule) == ("alice", "alice", seen.hold.rule)
    assert await holds.ls(bob, "default", None, 10) == []
    with pytest.raises(NotFound, match="no such gate"):
        await holds.show(bob, "hld_1")
    with pytest.raises(NotFound, match="no such gate"):
        await holds.answer(bob, "hld_1", "once")
    (of_operator,) = await holds.ls(OPERATOR, "default", None, 10)
    assert of_operator.rule is None, "an operator sees that it is there, not what is asked"
    with pytest.raises(Refused):
        await holds.answer(OPERATOR, "hld_1", "once")
    with pytest.raises(Refused, match="only read"):
        await holds.answer(replace(alice, scopes=frozenset({Scope.READ})), "hld_1", "once")
    with pytest.raises(Invalid):
        await holds.answer(alice, "hld_1", "done")
    assert (await holds.answer(alice, "hld_1", "allow")).answer == "once"
    assert there.told.holds.answers == [("token:t", "hld_1", "once")]
    with pytest.raises(NotFound):
        await holds.answer(alice, "hld_1", "always")


async def test_a_hold_of_an_agent_is_its_owners(there: Out) -> None:
    holds = there.rig.engine.holds
    made = await there.rig.engine.people.user_add(OPERATOR, "default", "helper", UserKind.AGENT.value, "alice")
    helper = Actor(user=made, operator=False, via="token:h")
    there.told.holds.asks(helper, "api.test", 1)
    there.told.holds.asks(there.actor("alice"), "own.test", 2)
    listed = await holds.ls(there.actor("alice"), "default", None, 10)
    assert [(each.hold.id, each.user, each.answerer) for each in listed] == [
        ("hld_2", "alice", "alice"),
        ("hld_1", "helper", "alice"),
    ]
    with pytest.raises(Refused, match="owner"):
        await holds.answer(helper, "hld_1", "once")
    assert (await holds.answer(there.actor("alice"), "hld_1", "deny")).answer == "deny"
    assert [each.hold.id for each in await holds.ls(there.actor("alice"), "default", None, 1)] == ["hld_2"]


async def test_status_counts_what_boxes_have(there: Out) -> None:
    parts = (await there.rig.engine.health.status(OPERATOR))["parts"]
    assert parts["vault"] == {"ok": True}
    assert (parts["egress"]["enabled"], parts["egress"]["workers"]) == (True, 0)
    await there.rig.engine.boxes.start(there.actor("alice"), "default", "alice")
    parts = (await there.rig.engine.health.status(OPERATOR))["parts"]
    assert (parts["egress"]["workers"], parts["egress"]["requests"], parts["egress"]["denials"]) == (1, 2, 1)


async def test_a_value_is_in_no_log(there: Out, caplog: pytest.LogCaptureFixture) -> None:
    await there.rig.engine.secrets.set(there.actor("alice"), "default", "alice", "gh", Secret(b"canary-in-no-log"))
    found = await there.rig.engine.egress_log.read(there.actor("alice"), "default", "alice", None, 10)
    assert found.rows and "canary-in-no-log" not in repr(found) + caplog.text
