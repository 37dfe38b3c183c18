"""What of somebody who is removed is still in force is found by the rules of `db check`, and ended as his removal would have."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.host.store.check_outward import OUTWARD
from ringfence.host.store.references import LOOKED_AT
from tests.contract.test_store_check_outward import DAMAGE, GONE, outward_of_all_kinds
from tests.support.clocks import HandClock
from tests.support.store_work import Db, a_signed_team, signed

pytestmark = pytest.mark.alone
# What is of somebody who is removed; other damage is nobody's removal.
ENDED = {
    GONE.format("users", "alice"): {"credential_user", "credential_binding", "egress_rule_layer"},
    GONE.format("users", "bob"): {"credential_grant", "credential_binding"},
    "UPDATE boxes SET desired = 'removed', removed_at = created_at": {"invocation_box"},
}


@pytest.mark.parametrize("statement", ENDED)
async def test_it_is_found_and_ended(tmp_path: Path, statement: str) -> None:
    clock = HandClock()
    async with a_signed_team(tmp_path, clock) as team:
        await outward_of_all_kinds(team, tmp_path)
        assert await team.store.references.broken() == []
    db = Db(tmp_path, clock)
    assert ENDED[statement] <= await db.found_after(statement)
    async with signed(tmp_path, clock, 1 << 40) as store:
        found = await store.references.broken()
        assert {left.what.split()[0] for left in found} >= ENDED[statement]
        assert all(left.ours for left in found)
        assert all([await store.references.end(left) for left in found])
        assert await store.references.broken() == []
    assert not (ENDED[statement] & {name for name, _ in await db.findings()})


@pytest.mark.parametrize("rule", DAMAGE)
async def test_other_damage_is_told_and_left(tmp_path: Path, rule: str) -> None:
    statement = next(one for one in DAMAGE[rule] if one not in ENDED and "removed_at" not in one)
    clock = HandClock()
    async with a_signed_team(tmp_path, clock) as team:
        await outward_of_all_kinds(team, tmp_path)
    db = Db(tmp_path, clock)
    before = await db.found_after(statement)
    assert rule in before
    async with signed(tmp_path, clock, 1 << 40) as store:
        found = [left for left in await store.references.broken() if left.what.startswith(f"{rule} ")]
        assert found and not any(left.ours for left in found)
        assert "db check" in found[0].why
        assert not any([await store.references.end(left) for left in found])
    assert {name for name, _ in await db.findings()} == before


def test_it_asks_no_question_of_its_own() -> None:
    assert set(OUTWARD) <= set(LOOKED_AT)
