"""Rules of the way out and invocations in the store: layers, ports, and what ends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ringfence.host.kernel.boxes import Box, BoxKind, Desired, Limits, Observed
from ringfence.host.kernel.errors import Conflict, Failed, Invalid, NotFound
from ringfence.host.kernel.ids import BoxId, TenantId, UserId
from ringfence.host.kernel.outward.ports import Invoker
from ringfence.host.kernel.outward.rolls import Compared
from ringfence.host.kernel.outward.rules import EgressRule, Layer, Verdict
from ringfence.host.kernel.people import UserKind
from ringfence.host.kernel.retention import Keep
from ringfence.host.store import egress_rules, rolls
from tests.support.databases import outside
from tests.support.store import Team, a_team

RULE = EgressRule("", Verdict.ALLOW, "api.test", (443, 8443), methods=frozenset({"GET", "POST"}), paths=("/a/**",))


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Team]:
    async with a_team(tmp_path) as made:
        yield made


# --- rules ------------------------------------------------------------------------------------------------------------


async def test_three_layers(team: Team) -> None:
    rules, home = team.store.egress_rules, team.tenant.id
    first = await rules.add((None, None), RULE)
    second = await rules.add((home, None), replace(RULE, note="ours"))
    third = await rules.add((home, team.alice.id), replace(RULE, id="rul_mine", query=(("a", "b"),)))
    assert [one.layer for one in (first, second, third)] == [Layer.INSTALLATION, Layer.TENANT, Layer.USER]
    assert first == replace(RULE, id=first.id, layer=Layer.INSTALLATION) and first.id.startswith("rul_")
    assert await rules.of(home, team.alice.id) == [first, second, third]
    assert await rules.of(home, team.bob.id) == [first, second]
    other = await team.store.tenants.add("other")
    mallory = await team.store.users.add("other", "mallory", UserKind.PERSON, None)
    assert await rules.of(other.id, mallory.id) == [first]
    assert await rules.all(None) == [(None, None, first), (home, None, second), (home, team.alice.id, third)]
    assert await rules.all(home) == [(home, None, second), (home, team.alice.id, third)]
    assert await rules.all(other.id) == []
    for place, there in (((None, None), [first]), ((home, None), [second]), ((home, team.alice.id), [third])):
        assert await rules.of_layer(place) == there
    for nobody in ((home, team.bob.id), (other.id, None), (other.id, mallory.id)):
        assert await rules.of_layer(nobody) == []
    with pytest.raises(Failed, match="another layer"):
        await rules.of_layer((other.id, team.alice.id))


async def test_the_same_rule_is_there_once(team: Team) -> None:
    rules, mine = team.store.egress_rules, (team.tenant.id, team.alice.id)
    made = await rules.add(mine, RULE)
    with pytest.raises(Conflict, match="the same"):
        await rules.add(mine, replace(RULE, id="rul_other", note="again", layer=Layer.INSTALLATION))
    await rules.add((team.tenant.id, team.bob.id), RULE)
    await rules.add(mine, replace(RULE, answer=Verdict.ASK))
    assert await rules.remove(made.id) == made
    with pytest.raises(NotFound):
        await rules.remove(made.id)
    assert (await rules.add(mine, RULE)).id != made.id
    done = await asyncio.gather(*(rules.add((None, None), RULE) for _ in range(3)), return_exceptions=True)
    assert sorted(type(one).__name__ for one in done) == ["Conflict", "Conflict", "EgressRule"]


async def test_rules_of_nobody(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = team.store.egress_rules
    await team.store.tenants.add("other")
    mallory = await team.store.users.add("other", "mallory", UserKind.PERSON, None)
    with pytest.raises(Invalid):
        await rules.add((None, team.alice.id), RULE)
    for place in ((team.tenant.id, mallory.id), (team.tenant.id, UserId("none")), (TenantId("none"), None)):
        with pytest.raises(NotFound):
            await rules.add(place, RULE)
    for absent in ("rul_none", "", "a\0b"):
        with pytest.raises(NotFound):
            await rules.remove(absent)
    monkeypatch.setattr(egress_rules, "MAX_RULES", 1)
    await rules.add((None, None), RULE)
    with pytest.raises(Conflict, match="the limit is 1"):
        await rules.add((None, None), replace(RULE, host="b.test"))


async def test_several_are_added_or_none(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the rules of a preset are: an allow without the deny beside it is another thing."""
    rules, mine = team.store.egress_rules, (team.tenant.id, team.alice.id)
    four = [replace(RULE, host=f"{n}.test", answer=Verdict.DENY if n > 1 else Verdict.ALLOW) for n in range(4)]
    made = await rules.add_all(mine, four)
    assert [each.host for each in made] == [each.host for each in four]
    assert sorted(each.id for each in await rules.of(*mine)) == sorted(each.id for each in made)
    bobs = (team.tenant.id, team.bob.id)
    for limit, value, word in (
        ("MAX_RULES", 3, "4 rules"),
        ("MAX_RULE_PATHS", 3, "4 paths"),
        ("MAX_RULE_BYTES", 300, "bytes of rules"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(egress_rules, limit, value)
            with pytest.raises(Conflict, match=word):
                await rules.add_all(bobs, four)
            assert await rules.of(*bobs) == []
    with pytest.raises(Conflict, match="the same"):
        await rules.add_all(bobs, [*four, four[0]])
    assert await rules.of(*bobs) == []
    assert len(await rules.add_all(bobs, four)) == 4
    with monkeypatch.context() as patched:
        patched.setattr(egress_rules, "MAX_RULE_PATHS", 4)
        with pytest.raises(Conflict, match="5 paths"):
            await rules.add(bobs, RULE)
        assert (await rules.add(bobs, replace(RULE, paths=()))).paths == ()


async def test_a_rule_that_cannot_be_read_stops_them_all(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a later release: who is not sure what is allowed allows nothing. What was changed does not count at all."""
    home = team.tenant.id
    await team.store.egress_rules.add((home, team.alice.id), RULE)
    narrower = '{"id": "rul_x", "answer": "allow", "host": "**", "only_on": "sundays"}'
    outside(team.folder, "UPDATE egress_rules SET body = ?", narrower)
    assert await team.store.egress_rules.of(home, team.alice.id) == []
    monkeypatch.setattr(rolls, "compare", lambda roll, rows, why: Compared(frozenset(rows)))
    with pytest.raises(Failed):
        await team.store.egress_rules.of(home, team.alice.id)
    # In a layer above its own, by its body: the row's keys say where it stands.
    outside(
        team.folder, "UPDATE egress_rules SET body = ?", '{"answer": "deny", "host": "a", "id": "x", "layer": "tenant"}'
    )
    [rule] = await team.store.egress_rules.of(home, team.alice.id)
    assert rule.layer is Layer.USER


async def test_rules_go_with_whom_they_are_of(team: Team) -> None:
    rules, home = team.store.egress_rules, team.tenant.id
    await rules.add((home, team.alice.id), RULE)
    kept = await rules.add((home, team.bob.id), RULE)
    await team.store.users.remove(team.alice.id)
    assert await rules.all(None) == [(home, team.bob.id, kept)]
    with pytest.raises(NotFound):
        await rules.add((home, team.alice.id), RULE)
    other = await team.store.tenants.add("other")
    await rules.add((other.id, None), RULE)
    await team.store.tenants.remove("other")
    assert await rules.all(other.id) == []
    with pytest.raises(NotFound):
        await rules.add((other.id, None), RULE)


# --- invocations ------------------------------------------------------------------------------------------------------


async def a_home(team: Team) -> Box:
    return await team.store.boxes.home_of(team.alice, "fake", Limits())


def invoker(team: Team, box: Box, key: str = "cmd_1") -> Invoker:
    return Invoker(team.tenant.id, team.alice.id, box.id, key)


async def test_a_port_is_one_invocations(team: Team) -> None:
    invocations, home = team.store.invocations, await a_home(team)
    scratch = await team.store.boxes.add(team.alice, BoxKind.SCRATCH, "fake", Limits())
    run = await team.running()
    of_run = replace(invoker(team, home, "cmd_2"), run=run.id, epoch=run.epoch)
    await invocations.open("inv_1", invoker(team, home), 100)
    await invocations.open("inv_2", of_run, 1021)
    await invocations.open("inv_3", invoker(team, scratch), 100)
    with pytest.raises(Conflict, match="port 100"):
        await invocations.open("inv_4", invoker(team, home), 100)
    assert await invocations.of_box(home.id) == [("inv_1", invoker(team, home), 100), ("inv_2", of_run, 1021)]
    await invocations.close(["inv_1", "inv_none", "a\0b", "inv_1"])
    await invocations.close([])
    await invocations.open("inv_5", invoker(team, home), 100)
    await invocations.close(["inv_1"])
    assert [id_ for id_, _, _ in await invocations.of_box(home.id)] == ["inv_2", "inv_5"]
    assert await invocations.of_box(BoxId("a\0b")) == []
    done = await asyncio.gather(
        *(invocations.open(f"inv_x{n}", invoker(team, home), 200) for n in range(3)), return_exceptions=True
    )
    assert sorted(type(one).__name__ for one in done) == ["Conflict", "Conflict", "NoneType"]


async def test_invocations_of_nothing(team: Team) -> None:
    invocations, home = team.store.invocations, await a_home(team)
    for who in (
        replace(invoker(team, home), user=team.bob.id),
        replace(invoker(team, home), tenant=TenantId("ten_x")),
        replace(invoker(team, home), box=BoxId("none")),
    ):
        with pytest.raises(NotFound):
            await invocations.open("inv_1", who, 100)
    for port in (99, 1022, 0, -1, 53):
        with pytest.raises((Invalid, Conflict)):
            await invocations.open("inv_1", invoker(team, home), port)
    with pytest.raises(Invalid):
        await invocations.open("inv_1", replace(invoker(team, home), key="a\0b"), 100)
    assert await invocations.of_box(home.id) == []


async def test_they_end_with_user_and_box(team: Team) -> None:
    invocations, home = team.store.invocations, await a_home(team)
    scratch = await team.store.boxes.add(team.alice, BoxKind.SCRATCH, "fake", Limits())
    await invocations.open("inv_1", invoker(team, home), 100)
    await invocations.open("inv_2", invoker(team, scratch), 100)
    await team.store.boxes.update(scratch.id, observed=Observed.STOPPED)
    await team.store.boxes.update(scratch.id, desired=Desired.REMOVED)
    assert len(await invocations.of_box(scratch.id)) == 1
    await team.store.boxes.update(scratch.id, observed=Observed.ABSENT)
    assert await invocations.of_box(scratch.id) == []
    with pytest.raises(NotFound):
        await invocations.open("inv_3", invoker(team, scratch), 100)
    assert len(await invocations.of_box(home.id)) == 1
    await team.store.users.remove(team.alice.id)
    assert await invocations.of_box(home.id) == []


async def test_closed_ones_are_kept_for_a_while(team: Team) -> None:
    invocations, home = team.store.invocations, await a_home(team)
    for number in range(3):
        await invocations.open(f"inv_{number}", invoker(team, home), 100 + number)
    await invocations.close(["inv_0"])
    team.clock.jump(timedelta(days=2))
    await invocations.close(["inv_1"])
    assert await team.store.retention.sweep(Keep()) == {}
    assert await team.store.retention.sweep(Keep(runs_days=1)) == {"invocations": 1}
    assert await team.store.retention.sweep(Keep(runs_days=1)) == {}
    kept = {row[0] for row in outside(team.folder, "SELECT id FROM invocations")}
    assert kept == {"inv_1", "inv_2"}, "one is closed since today, one is open"
