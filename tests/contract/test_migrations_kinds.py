"""Expand and contract: what each step may do, who refuses what, and an older release on a database that was expanded."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from ringfence.host.kernel.errors import Conflict, Unavailable
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.threads import EventKind
from ringfence.host.store import migrate, verbs
from ringfence.host.store.kernels import kernels_of
from ringfence.host.store.migrate import Migration
from tests.support.clocks import HandClock
from tests.support.databases import outside
from tests.support.store import a_team, opened
from tests.support.store_work import Db

pytestmark = pytest.mark.alone
FIXTURE = Path(__file__).parents[1] / "support" / "release_0.sql"

CHAIN = (Migration("0001", False), Migration("0002", False), Migration("0003", True), Migration("0004", False))


def test_floors() -> None:
    assert [migrate.floor_of(CHAIN, one.revision) for one in CHAIN] == ["0001", "0001", "0003", "0003"]


def test_every_step_says_its_kind_and_none_contracts_yet() -> None:
    chain = migrate.chain()
    assert [one.revision for one in chain] == sorted(one.revision for one in chain)
    assert not any(one.contracts for one in chain), "nothing has been in a release that an older one could need"


def test_expansions_take_nothing_away() -> None:
    """By their words: what drops, renames or narrows is a contraction."""
    folder = Path(migrate.__file__).parent / "migrations" / "versions"
    for path in folder.glob("0*.py"):
        text = path.read_text()
        if 'kind = "expand"' in text:
            for word in ("drop_", "rename_", "alter_column", "batch_alter_table", "DROP ", "RENAME "):
                assert word not in text, f"{path.name} expands, and says {word}"


async def test_a_step_that_waits_behind_a_contraction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path):
        pass
    newest = migrate.newest()
    real = migrate.chain()
    monkeypatch.setattr(migrate, "chain", lambda: (*real, Migration("9001", True)))
    async with opened(tmp_path) as store:  # its own contraction is not due at a start
        assert (await store.health())["schema"] == newest
    monkeypatch.setattr(migrate, "chain", lambda: (*real, Migration("9001", True), Migration("9002", False)))
    with pytest.raises(Unavailable, match="9001") as error:
        async with opened(tmp_path):
            pass
    assert "--contract" in error.value.remedy


async def test_an_older_release_on_an_expanded_database(tmp_path: Path) -> None:
    """The newest revision is unknown to it, the newest contraction is not: it works, and leaves the schema alone."""
    async with a_team(tmp_path) as team:
        await team.say("before")
    outside(tmp_path, f"UPDATE {migrate.EXPANDED_TABLE} SET version_num = '0999'")
    async with opened(tmp_path, first=1 << 40) as store:
        await store.turns.accept(team.thread.id, team.alice.id, "by the older one", "queue", None)
        assert (await store.health())["schema"] == "0999"
    assert outside(tmp_path, f"SELECT version_num FROM {migrate.EXPANDED_TABLE}") == [("0999",)]


async def test_an_event_of_a_later_release_has_its_place_and_no_body(tmp_path: Path) -> None:
    """Rollback: a thread in which a later release has written a kind of its own can be read. Who may see the body of it
    is not known here: it is nobody."""
    async with a_team(tmp_path) as team:
        await team.say("before")
        known = await team.events()
        outside(tmp_path, "UPDATE events SET kind = 'from.tomorrow' WHERE cursor = 2")
        events = await team.events()
        assert [event.cursor for event in events] == [event.cursor for event in known]
        assert (events[1].kind, events[1].body) == (EventKind.UNKNOWN, {})
        assert events[0] == known[0]


async def test_an_older_release_on_a_contracted_database(tmp_path: Path) -> None:
    async with a_team(tmp_path):
        pass
    for table in (migrate.EXPANDED_TABLE, migrate.VERSION_TABLE):
        outside(tmp_path, f"UPDATE {table} SET version_num = '0999'")
    with pytest.raises(Unavailable, match="newer than this release"):
        async with opened(tmp_path):
            pass


# --- the release before, as it was --------------------------------------------------------------------------------------


@contextmanager
def the_release_before(folder: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(folder / "ringfence.db")
    if connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
        connection.executescript(FIXTURE.read_text())
    connection.execute("PRAGMA foreign_keys = ON")
    try:
        yield connection
        connection.commit()
    finally:
        connection.close()


@pytest.mark.sqlite
async def test_its_database_with_data_becomes_ours(tmp_path: Path) -> None:
    """`release_0.sql` is a dump of a database that the release before this branch made and worked on."""
    with the_release_before(tmp_path) as connection:
        before = connection.execute("SELECT * FROM events ORDER BY thread, cursor").fetchall()
    clock = HandClock()
    async with opened(tmp_path, clock, first=1 << 40) as store:
        [tenant] = await store.tenants.all()
        [thread] = await store.threads.of_tenant(tenant.id)
        events = await store.events.after(thread.id, 0, 1000)
        assert len(events) == len(before)
        [run] = await store.runs.expired("krn")
        await store.runs.requeue(run.id, run.epoch, "executor_lost")
        clock.pass_seconds(60)
        assert [one.id for one in await store.runs.claim("krn", 8, lambda run: "hash")] == [run.id]
        alice = await store.users.get("default", "alice")
        again = await store.turns.accept(thread.id, alice.id, "hello", "queue", "key-1")
        assert again.repeated
    findings = await Db(tmp_path, clock).findings()
    assert not {name for name, _ in findings} - {"audit"}, findings


@pytest.mark.sqlite
async def test_it_goes_on_with_its_own_words_after_we_expanded(tmp_path: Path) -> None:
    """Rollback: the statements that the release before sends, on the database as this one leaves it."""
    with the_release_before(tmp_path):
        pass
    async with opened(tmp_path, first=1 << 40):
        pass
    with the_release_before(tmp_path) as old:
        [[version]] = old.execute("SELECT version_num FROM ringfence_schema").fetchall()
        assert version == "0001", "what it compares with the newest that it knows"
        [[thread, cursor]] = old.execute("SELECT id, cursor FROM threads").fetchall()
        [[alice, tenant]] = old.execute("SELECT id, tenant FROM users WHERE name = 'alice'").fetchall()
        at = "2026-01-02 00:00:00.000000"
        old.execute("UPDATE threads SET cursor = cursor + 2 WHERE id = ?", (thread,))
        event = "INSERT INTO events (thread, cursor, kind, actor, turn, run, body, created_at) VALUES (?,?,?,?,?,?,?,?)"
        body = '{"author":"alice","text":"old words","message":"msg_old"}'
        old.execute(event, (thread, cursor + 1, "message", alice, "trn_old", None, body, at))
        old.execute(event, (thread, cursor + 2, "run.queued", alice, "trn_old", "run_old", "{}", at))
        old.execute(
            "INSERT INTO messages (id, thread, turn, author, author_name, text, cursor, attachments, steer, created_at) "
            "VALUES ('msg_old',?,'trn_old',?,'alice','old words',?,NULL,0,?)",
            (thread, alice, cursor + 1, at),
        )
        old.execute(
            "INSERT INTO turns (id, thread, actor, message, lane, state, reason, run, created_at) "
            "VALUES ('trn_old',?,?,'msg_old',?,'queued','','run_old',?)",
            (thread, alice, thread, at),
        )
        old.execute(
            "INSERT INTO runs (id, turn, tenant, thread, actor, lane, position, state, reason, epoch, attempts, token_hash, "
            "cancel_requested, worked, created_at) VALUES ('run_old','trn_old',?,?,?,?,?,'queued','',0,0,'',0,0.0,?)",
            (tenant, thread, alice, thread, cursor + 1, at),
        )
        old.execute(
            "INSERT INTO boxes (id, tenant, user, kind, driver, desired, observed, uid, limits, image, generation, created_at) "
            "VALUES ('oldbox',?,?,'scratch','bubblewrap','stopped','stopped',1,'{}','',0,?)",
            (tenant, alice, at),
        )
        [[seq, head]] = old.execute("SELECT seq, hash FROM audit_head").fetchall()
        old.execute(
            "INSERT INTO audit (seq, at, actor, action, subject, details, previous, hash) VALUES (?,?,NULL,'x','y','{}',?,'h')",
            (seq + 1, at, head),
        )
    clock = HandClock()
    async with opened(tmp_path, clock, first=1 << 41) as store:
        assert (await store.runs.get(RunId("run_old"))).thread == thread
        assert [event.body.get("text") for event in await store.events.after(thread, cursor, 1)] == ["old words"]
    found = {name for name, _ in await Db(tmp_path, clock).findings()}
    assert not found - {"audit"}, found


# --- who stands in the way of a contraction -----------------------------------------------------------------------------


@pytest.fixture
def contract_too(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, this release has a step 9001 that takes a table away."""
    real, apply = migrate.chain(), migrate._apply

    def applied(connection: sa.Connection, known: tuple[Migration, ...], revision: str) -> None:
        if revision != "9001":
            apply(connection, known, revision)
            return
        connection.execute(sa.text("DROP TABLE glass"))
        for table in (migrate.EXPANDED_TABLE, migrate.VERSION_TABLE):
            connection.execute(sa.text(f"UPDATE {table} SET version_num = '9001'"))

    def install() -> None:
        monkeypatch.setattr(migrate, "chain", lambda: (*real, Migration("9001", True)))
        monkeypatch.setattr(migrate, "_apply", applied)

    return install


async def test_a_contraction_waits_for_older_kernels(tmp_path: Path, contract_too: Callable[[], None]) -> None:
    clock = HandClock()
    db = Db(tmp_path, clock)
    async with opened(tmp_path, clock) as older:
        await older.kernels.hello("old", "0.1", "here")
    contract_too()
    with pytest.raises(Conflict, match="old"):
        await contract(db, alone=False)
    async with opened(tmp_path, clock, 1 << 40) as store:
        await store.kernels.hello("new", "0.2", "here")  # knows it: it is not in the way
        clock.pass_seconds(119)
        with pytest.raises(Conflict, match="old"):
            await contract(db, alone=False)
        clock.pass_seconds(2)
        await contract(db, alone=False)
    assert (await db.run("upgrade"))["schema"] == "9001"


async def contract(db: Db, *, alone: bool) -> None:
    await verbs.run(db.job(alone=alone), "upgrade", {"contract": True}, None)


async def test_a_lease_of_a_kernel_that_never_said_hello(tmp_path: Path, contract_too: Callable[[], None]) -> None:
    """The release before this one has no word for it."""
    clock = HandClock()
    db = Db(tmp_path, clock)
    async with a_team(tmp_path) as team:
        await team.running()
        team.clock.hold(None)
    contract_too()
    with pytest.raises(Conflict, match="lease"):
        await contract(db, alone=False)
    outside(tmp_path, "UPDATE runs SET lease_until = '2020-01-01 00:00:00'")
    await contract(db, alone=False)


@pytest.mark.sqlite
async def test_whoever_holds_the_lock_of_the_file_is_alone(tmp_path: Path, contract_too: Callable[[], None]) -> None:
    clock = HandClock()
    async with a_team(tmp_path) as team:
        await team.running()
    contract_too()
    await contract(Db(tmp_path, clock), alone=True)


async def test_hello_and_bye(tmp_path: Path) -> None:
    clock = HandClock()
    async with opened(tmp_path, clock) as store:
        first = await store.kernels.hello("a", "0.1", "here")
        clock.pass_seconds(30)
        again = await store.kernels.hello("a", "0.1", "here")
        assert again.started_at == first.started_at
        assert again.seen_at - first.seen_at == timedelta(seconds=30)
        assert (first.schema_from, first.schema_to) == (migrate.oldest_fit(), migrate.newest())
        await store.kernels.bye("a")
        await store.kernels.bye("a")
        await store.kernels.bye("nobody")
        [kept] = await store._database.read(kernels_of)
        assert kept.ended_at == kept.seen_at
