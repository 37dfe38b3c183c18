"""D-6: a query that loses its filter gives nothing out, because the rows say whose they are."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Row

from ringfence.host.kernel.errors import Failed
from ringfence.host.kernel.runs import Run
from ringfence.host.store import blobs, keys, steps, turns
from ringfence.host.store.owned import owned, owned_row
from ringfence.host.store.schema import blob_chunks, idempotency
from ringfence.host.store.schema import blobs as blob_table
from ringfence.host.store.schema import steps as step_table
from ringfence.host.store.schema import turns as turn_table
from tests.support.store import Team, a_team


def rows(*users: str) -> list[Row[tuple[str, int]]]:
    engine = sa.create_engine("sqlite://")
    try:
        with engine.connect() as connection:
            selects = [
                sa.select(sa.literal(user).label("user"), sa.literal(n).label("n")) for n, user in enumerate(users)
            ]
            return list(connection.execute(sa.union_all(*selects)))
    finally:
        engine.dispose()


def test_own_rows_come_as_they_are() -> None:
    assert [row.n for row in owned(rows("a", "a"), user="a")] == [0, 1]
    assert owned([], user="a") == []
    assert owned_row(None, user="a") is None


@pytest.mark.parametrize("users", [("b",), ("a", "b"), ("", "a")])
def test_a_row_of_another_gives_nothing_out(users: tuple[str, ...]) -> None:
    with pytest.raises(Failed, match="another user"):
        owned(rows(*users), user="a")


DATA = b"x"
NAME = hashlib.sha256(DATA).hexdigest()


async def blob_of(team: Team, run: Run) -> object:
    return await team.store.blobs.whole(run.id, run.epoch, NAME)


async def step_states(team: Team, run: Run) -> object:
    return await team.store.blobs._database.read(lambda connection: steps.states_of(connection, run.id))


async def turn_of(team: Team, run: Run) -> object:
    return await team.store.turns.get(run.turn)


async def repeated(team: Team, run: Run) -> object:
    user = team.alice if run.actor == team.alice.id else team.bob
    return await team.store.turns.repeat(team.thread.id, user.id, "hi", "queue", "k", [])


def lost(query: sa.Select[Any], which: sa.ColumnElement[str], mine: str) -> sa.Select[Any]:
    """The query with its filter the wrong way round: what comes is everybody's but the asker's."""
    return query.where(which != sa.bindparam(mine))


LOST: dict[str, tuple[ModuleType, str, Any, Callable[[Team, Run], Awaitable[object]]]] = {
    "blob": (blobs, "_BLOB", lost(sa.select(blob_table), blob_table.c.run, "in_run"), blob_of),
    "chunk": (blobs, "_CHUNK", lost(sa.select(blob_chunks), blob_chunks.c.run, "in_run"), blob_of),
    "states": (steps, "_STATES", lost(sa.select(step_table), step_table.c.run, "in_run"), step_states),
    "turn": (turns, "_BY_ID", lost(sa.select(turn_table), turn_table.c.id, "which"), turn_of),
    "key": (keys, "_FIND", lost(sa.select(idempotency), idempotency.c.actor, "by_actor"), repeated),
}


@pytest.mark.parametrize("name", LOST)
async def test_a_query_that_lost_its_filter_gives_nothing_out(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, attribute, query, ask = LOST[name]
    async with a_team(tmp_path, parallel=True) as team:
        await team.say("hi", team.alice, "k")
        await team.say("hi", team.bob, "k")
        both = await team.claim()
        for run in both:
            await team.store.blobs.put(run.id, run.epoch, NAME, 0, len(DATA), DATA)
            await team.begin(run, 1)
        assert len(both) == 2 and all([await ask(team, run) for run in both])  # control
        monkeypatch.setattr(module, attribute, query)
        for run in both:
            with pytest.raises(Failed, match="the store found a row of another"):
                await ask(team, run)
