"""`db check`, backup and restore know calls of models and their sums."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.models.granting import Expected, fit
from ringfence.host.kernel.models.ports import Call, Caller
from ringfence.host.kernel.models.usage import Amount, BudgetLimits, Prices, Usage
from ringfence.host.kernel.people import UserKind
from ringfence.host.store.check_models import MODELS
from tests.support.clocks import HandClock
from tests.support.store import Team
from tests.support.store_work import Db, a_signed_team, signed

pytestmark = pytest.mark.alone

LIMITS = BudgetLimits(user_tokens=10_000)
# rule -> what somebody did to the rows, each enough by itself
DAMAGE: dict[str, list[str]] = {
    "model_spent_user": [
        "UPDATE model_spent SET tokens = tokens - 1 WHERE period <> ''",
        "UPDATE model_spent SET micros = micros - 1 WHERE period <> ''",
        *(
            f"UPDATE model_spent SET {name} = {name} - 1 WHERE period <> ''"
            for name in ("calls", "input", "output", "paid")
        ),
        "DELETE FROM model_spent WHERE period <> ''",
    ],
    "model_spent_run": [
        "UPDATE model_calls SET reserved_tokens = reserved_tokens + 1 WHERE state = 'reserved'",
        "UPDATE model_calls SET output = output + 1 WHERE state = 'settled'",
        "DELETE FROM model_spent WHERE period = ''",
    ],
    "model_call_run": [
        "UPDATE runs SET actor = (SELECT id FROM users WHERE name = 'bob')",
        "UPDATE model_calls SET tenant = (SELECT id FROM tenants WHERE name = 'other')",
    ],
}


async def calls_of_models(team: Team) -> RunId:
    await team.store.tenants.add("other")
    await team.store.users.add("other", "mallory", UserKind.PERSON, None)
    run, usage = await team.running(), team.store.model_usage
    for n, of in enumerate((run.id, run.id, run.id, None)):
        call = Call(f"mdl_{n}", Caller(team.tenant.id, team.alice.id, of), "gpt", "loop", f"krn_{n}")
        await usage.reserve(call, LIMITS, lambda room: fit(Expected(100, 50), Prices(1000, 1000), room))
    await usage.settle("mdl_0", Usage(20, 30), 50, "done")
    return run.id


async def test_a_whole_store_has_no_findings(tmp_path: Path) -> None:
    clock = HandClock()
    async with a_signed_team(tmp_path, clock) as team:
        await calls_of_models(team)
        assert await Db(tmp_path, clock).findings() == set()
        for user in (await team.store.users.get("default", "a-bot"), team.alice):
            await team.store.users.remove(user.id)
    assert await Db(tmp_path, clock).findings() == set()


@pytest.mark.parametrize(("rule", "statement"), [(rule, one) for rule, all_ in DAMAGE.items() for one in all_])
async def test_damage_is_found(tmp_path: Path, rule: str, statement: str) -> None:
    clock = HandClock()
    async with a_signed_team(tmp_path, clock) as team:
        await calls_of_models(team)
    assert rule in await Db(tmp_path, clock).found_after(statement)


def test_every_rule_is_broken_by_a_test() -> None:
    assert {rule.name for rule in MODELS} == set(DAMAGE)


async def test_there_and_back(tmp_path: Path) -> None:
    """What was under way when the backup was made is nobody's any more: it is counted at its most."""
    clock = HandClock()
    db = Db(tmp_path, clock)
    async with a_signed_team(tmp_path, clock) as team:
        run = await calls_of_models(team)
        before = await team.store.model_usage.of_run(run)
        backup = await db.backup()
    assert (await db.restore(backup))["findings"] == []
    async with signed(tmp_path, clock, 1 << 40) as store:
        assert await store.model_usage.of_run(run) == before and before.reserved == Amount(300, 300)
        assert await store.model_usage.sweep("krn_new", lambda: ()) == 3
        assert (await store.model_usage.of_run(run)).usage.tokens == 350
