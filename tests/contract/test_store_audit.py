"""The audit's chains: what each lane keeps, how kernels sign and close each other's, what retention leaves."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ringfence.host.kernel.audit import Keys, Lane, Outcome
from ringfence.host.kernel.canonical import canonical_json
from ringfence.host.kernel.errors import Invalid, NotFound, TooLarge
from ringfence.host.kernel.ids import TenantId, UserId
from ringfence.host.kernel.people import Actor, User, UserKind
from ringfence.host.store.store import SqlStore
from ringfence.host.store.transaction import Tx
from tests.support.audit_rig import Audited
from tests.support.clocks import HandClock
from tests.support.databases import hold_clock, outside
from tests.support.store import newest

LANES = frozenset(Lane) - {Lane.TRAFFIC}


@pytest.fixture
def made(tmp_path: Path) -> Audited:
    clock = HandClock()
    clock.hold(hold_clock(tmp_path))
    return Audited(tmp_path, clock)


async def chain_rows(store: SqlStore, chain: str) -> list[dict[str, Any]]:
    """Oldest first."""
    rows = [row for row in await store.audit.page(LANES, None, None, 1000) if row["chain"] == chain]
    return sorted(rows, key=lambda row: int(row["seq"]))


async def heads(store: SqlStore, chain: str) -> list[dict[str, Any]]:
    """What the chain said of others, row by row."""
    rows = [row for row in await chain_rows(store, chain) if row["lane"] == "chain"]
    return [row["details"].get("heads", {}) for row in rows]


# --- rows ------------------------------------------------------------------------------------------------------------


async def test_what_a_row_keeps(made: Audited) -> None:
    clock = made.clock
    ids = UserId("usr_a"), TenantId("ten_a")
    alice = User(*ids, "default", "alice", UserKind.PERSON, None, False, clock.now())
    async with made.kernel("krn_a") as store:
        await store.audit.record(
            Actor(alice, True, "socket:0", impersonated=True), "user.add", "bob\udcff\0", {"why": "\ud800"}
        )
        [row] = await newest(store.audit, 9)
        assert row["actor"] == {
            "user": "usr_a",
            "name": "alice",
            "tenant": "default",
            "operator": True,
            "via": "socket:0",
            "impersonated": True,
        }
        assert (row["subject"], row["details"]) == ("bob\ufffd\ufffd", {"why": "\ud800"})
        assert (row["id"], row["lane"], datetime.fromisoformat(row["at"])) == ("krn_a:2", "act", clock.now())
        first, second = await chain_rows(store, "krn_a")
        assert (first["previous"], second["previous"]) == ("0" * 64, first["hash"])
        with pytest.raises(Invalid):
            await store.audit.record(None, "x", "", {"x": float("nan")})
        with pytest.raises(TooLarge):
            await store.audit.record(None, "x", "", {"x": "x" * (256 << 10)})
        assert [row["seq"] for row in await newest(store.audit, 9)] == [2]
    assert (await made.verify()).ok


async def test_the_lanes(made: Audited) -> None:
    async with made.kernel("krn_a") as store:
        audit = store.audit
        await audit.release(None, "credential:c1", "worker:w1", {"run": "run_1"})
        intent = await audit.intent(None, "http.webhook", "run:run_1/2", {"digest": "d"})
        assert await audit.outcomes(intent) == []
        await audit.outcome(intent, Outcome.UNKNOWN, {"status": None})
        await audit.outcome(intent, Outcome.DONE, {"status": 200})
        told = [row["details"] for row in await audit.outcomes(intent)]
        assert told == [{"outcome": "unknown", "status": None}, {"outcome": "done", "status": 200}]
        by_lane = {lane: len(await audit.page({lane}, None, None, 10)) for lane in LANES}
        assert by_lane == {Lane.RELEASE: 1, Lane.INTENT: 3, Lane.ACT: 0, Lane.CHAIN: 1}
        [released] = await audit.page({Lane.RELEASE}, None, None, 10)
        assert released["details"] == {"run": "run_1", "to": "worker:w1"}
        for odd in ("krn_a:99", "krn_x:1", "krn_a:2", "krn_a:4"):  # not there, not there, a release, an outcome
            with pytest.raises(NotFound):
                await audit.outcome(odd, Outcome.DONE, {})
        with pytest.raises(Invalid):
            await audit.outcome("nothing", Outcome.DONE, {})
    async with made.kernel("krn_b") as store:
        await store.audit.outcome(intent, Outcome.DONE, {})  # by the next kernel, in its chain
        assert [row["chain"] for row in await store.audit.outcomes(intent)] == ["krn_a", "krn_a", "krn_b"]
    assert (await made.verify()).ok


async def test_pages(made: Audited) -> None:
    for _ in range(2):
        await made.acts(5)
    async with made.kernel(begun=False) as store:
        everything = await store.audit.page(LANES, None, None, 1000)
        assert len(everything) == 14
        walked: list[dict[str, Any]] = []
        while rows := await store.audit.page(LANES, None, walked[-1]["id"] if walked else None, 3):
            walked += rows
        assert walked == everything
        acts = await store.audit.page({Lane.ACT}, None, None, 1000)
        assert [row["details"]["n"] for row in acts] == [4, 3, 2, 1, 0] * 2
        since = datetime.fromisoformat(acts[3]["at"])
        assert await store.audit.page({Lane.ACT}, since, None, 1000) == acts[:4]
        with pytest.raises(NotFound):
            await store.audit.page(LANES, None, "krn_1:99", 3)


# --- one chain for each kernel ---------------------------------------------------------------------------------------


async def test_the_next_kernel_closes_what_ended(made: Audited) -> None:
    await made.acts(2, "krn_a")
    async with made.kernel("krn_b") as store:
        rows = await chain_rows(store, "krn_a")
        assert [row["action"] for row in rows] == ["audit.open", "box.start", "box.start", "audit.end"]
        [opening] = await chain_rows(store, "krn_b")
        assert opening["details"]["heads"] == {"krn_a": [4, rows[-1]["hash"]]}
        assert opening["details"]["closed"] == ["krn_a"]
        assert [head.chain for head in (await store.audit.verify()).open] == ["krn_b"]


@pytest.mark.sqlite
async def test_a_kernel_that_was_killed_is_closed_by_the_next(made: Audited) -> None:
    """SQLite has one kernel at a time: whoever opens it next knows that all others are gone."""
    async with made.kernel("krn_a") as store:
        await store.audit.record(None, "works", "", {})
        async with made.kernel("krn_b") as other:
            assert (await heads(other, "krn_b"))[0]["krn_a"][0] == 2
            assert (await other.audit.verify()).ok
        made.clock.pass_seconds(1)
        await store.audit.record(None, "works on", "", {})  # a closed chain takes no row: it begins another
        [_, row] = await newest(store.audit, 9)
        assert (row["action"], row["chain"] != "krn_a", row["seq"]) == ("works on", True, 2)
    assert (await made.verify()).ok


@pytest.mark.postgresql
async def test_kernels_sign_each_other(made: Audited) -> None:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(made.kernel("krn_a"))
        two = await stack.enter_async_context(made.kernel("krn_b"))
        for number in range(3):
            await one.audit.record(None, "of one", str(number), {})
            await two.audit.record(None, "of two", str(number), {})
        await one.audit.sign()
        await two.audit.sign()
        assert (await heads(one, "krn_a"))[-1] == {"krn_b": [4, (await chain_rows(two, "krn_b"))[3]["hash"]]}
        assert (await heads(two, "krn_b"))[-1] == {"krn_a": [5, (await chain_rows(one, "krn_a"))[4]["hash"]]}
        for _ in range(3):  # a signature is no news: nobody signs signatures for ever
            await one.audit.sign()
            await two.audit.sign()
        assert [len(await chain_rows(one, chain)) for chain in ("krn_a", "krn_b")] == [5, 5]
        report = await one.audit.verify()
        assert (report.ok, [head.chain for head in report.open]) == (True, ["krn_a", "krn_b"])


@pytest.mark.postgresql
async def test_a_tail_that_is_cut_off_shows_in_the_others_chain(made: Audited) -> None:
    async with made.kernel("krn_a") as one, made.kernel("krn_b") as two:
        for number in range(3):
            await one.audit.record(None, "of one", str(number), {})
        await two.audit.sign()
        named = (await heads(two, "krn_b"))[-1]
        outside(made.folder, "DELETE FROM audit_rows WHERE chain = 'krn_a' AND seq > 2")
        outside(
            made.folder,
            "UPDATE audit_chains SET seq = 2, hash = (SELECT hash FROM audit_rows WHERE chain = 'krn_a' AND seq = 2) "
            "WHERE chain = 'krn_a'",
        )
        first = (await two.audit.verify()).first["krn_a"]
        assert (first.seq, first.wrong.value) == (4, "cut")
        assert "krn_b:2 names this row" in first.what
        await two.audit.sign()
        assert (await heads(two, "krn_b"))[-1] == named, "what is left of the other chain is not signed in its place"


@pytest.mark.postgresql
async def test_a_kernel_that_was_not_seen_is_closed_and_begins_anew(made: Audited) -> None:
    async with made.kernel("krn_a") as one, made.kernel("krn_b") as two:
        await two.audit.sign()
        assert len((await two.audit.verify()).open) == 2, "control: it is seen"
        made.clock.pass_seconds(599)
        await two.audit.sign()
        assert len((await two.audit.verify()).open) == 2
        made.clock.pass_seconds(2)
        await two.audit.sign()
        assert [head.chain for head in (await two.audit.verify()).open] == ["krn_b"]
        await one.audit.record(None, "late", "", {})
        [row] = await newest(one.audit, 9)
        assert (row["action"], row["chain"] != "krn_a", row["seq"]) == ("late", True, 2)
    assert (await made.verify()).ok


async def test_writers_at_once_make_one_chain(made: Audited) -> None:
    async with made.kernel("krn_a") as store:
        await asyncio.gather(*(store.audit.record(None, "x", str(number), {}) for number in range(100)))
        intents = await asyncio.gather(*(store.audit.intent(None, "x", str(number), {}) for number in range(100)))
        assert len(set(intents)) == 100
        report = await store.audit.verify()
        assert (report.ok, report.rows) == (True, 201)


async def test_a_write_that_fails_leaves_no_gap(made: Audited) -> None:
    async with made.kernel("krn_a") as store:
        odd = [store.audit.outcome("krn_a:999", Outcome.DONE, {}) for _ in range(5)]
        good = [store.audit.record(None, "x", str(number), {}) for number in range(20)]
        told = await asyncio.gather(*odd, *good, return_exceptions=True)
        assert [type(each) for each in told] == [NotFound] * 5 + [type(None)] * 20
        assert (await store.audit.verify()).ok
        assert [row["seq"] for row in await newest(store.audit, 99)] == list(range(2, 22))


async def test_rows_without_a_key_are_told(tmp_path: Path, made: Audited) -> None:
    keyless = Audited(tmp_path, made.clock, Keys())
    await keyless.acts(1, "krn_plain")
    assert (await keyless.verify()).ok, "no key here: nothing to compare with"
    assert await made.found() == {"krn_plain": (0, "key")}


async def test_a_chain_of_another_host_needs_its_key(tmp_path: Path, made: Audited) -> None:
    theirs = Keys(b"t" * 32)
    await Audited(tmp_path, made.clock, theirs, 10).acts(1, "krn_theirs")
    assert await made.found() == {"krn_theirs": (0, "key")}
    both = Audited(tmp_path, made.clock, Keys(b"k" * 32, (b"t" * 32,)), 20)
    assert await both.found() == {}


# --- the chain of before, and retention ------------------------------------------------------------------------------


async def older_release(made: Audited, numbers: range) -> None:
    """Rows as the release with one chain wrote them."""
    kept = outside(made.folder, "SELECT hash FROM audit WHERE seq = ?", numbers.start - 1)
    previous = str(kept[0][0]) if kept else "0" * 64
    for seq in numbers:
        at = datetime(2025, 1, 1) + timedelta(seconds=seq)
        fields = {"actor": None, "action": "old", "subject": f"s{seq}", "details": {"n": seq}, "seq": seq}
        stamp = at.isoformat(timespec="microseconds") + "+00:00"
        fresh = hashlib.sha256(previous.encode() + canonical_json({**fields, "at": stamp})).hexdigest()
        outside(
            made.folder,
            "INSERT INTO audit (seq, at, action, subject, details, previous, hash) VALUES (?, ?, 'old', ?, ?, ?, ?)",
            seq,
            at.isoformat(sep=" ", timespec="microseconds") + ("" if (made.folder / "ringfence.db").exists() else "+00"),
            f"s{seq}",
            f'{{"n":{seq}}}',
            previous,
            fresh,
        )
        previous = fresh
    outside(made.folder, "DELETE FROM audit_head")
    outside(made.folder, "INSERT INTO audit_head (id, seq, hash) VALUES (1, ?, ?)", numbers.stop - 1, previous)


async def test_the_one_chain_of_before_is_closed_and_goes_on_being_verified(made: Audited) -> None:
    async with made.kernel(begun=False):
        pass
    await older_release(made, range(1, 6))
    report = await made.verify()
    assert (report.ok, report.rows) == (True, 5)
    await made.acts(1, "krn_a")
    async with made.kernel("krn_b") as store:
        assert [row["id"] for row in await newest(store.audit, 9)] == [*(f"first:{n}" for n in range(1, 6)), "krn_a:2"]
        assert (await heads(store, "krn_a"))[0]["first"][0] == 5
        report = await store.audit.verify()
        assert (report.ok, report.rows, report.chains) == (True, 9, 3)
    # That release ran once more, and wrote where it writes.
    await older_release(made, range(6, 9))
    assert (await made.found()) == {"first": (6, "surplus")}
    await made.acts(0, "krn_c")
    report = await made.verify()
    assert report.ok
    assert any("older release: [6, 8]" in note for note in report.notes)


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("UPDATE audit SET subject = 'x' WHERE seq = 3", (3, "changed")),
        ("DELETE FROM audit WHERE seq = 2", (2, "missing")),
        ("DELETE FROM audit WHERE seq > 3", (4, "cut")),
        ("DELETE FROM audit", (1, "cut")),
        ("DELETE FROM audit_head", None),  # it is in the chain of now
    ],
)
async def test_a_change_of_the_one_chain_of_before_shows(
    made: Audited, statement: str, found: tuple[int, str] | None
) -> None:
    async with made.kernel(begun=False):
        pass
    await older_release(made, range(1, 6))
    await made.acts(0, "krn_a")
    outside(made.folder, statement)
    assert await made.found() == ({} if found is None else {"first": found})


async def test_retention_signs_what_it_takes(made: Audited) -> None:
    async with made.kernel(begun=False):
        pass
    await older_release(made, range(1, 6))
    await made.acts(5, "krn_a")
    made.clock.pass_seconds(100)
    border = made.clock.now()
    await made.acts(3, "krn_b")
    async with made.kernel("krn_c") as store:
        assert await store.audit.cut(border, 3) == 3
        assert await store.audit.cut(border, 1000) == 9
        assert await store.audit.cut(border, 1000) == 0
        assert (await chain_rows(store, "krn_c"))[-1]["action"] == "audit.cut"
        assert [row["id"] for row in await newest(store.audit, 99)] == ["krn_b:2", "krn_b:3", "krn_b:4"]
        report = await store.audit.verify()
        assert (report.ok, report.rows) == (True, 8)
    outside(made.folder, "DELETE FROM audit_rows WHERE chain = 'krn_b' AND seq = 1")
    assert await made.found() == {"krn_b": (1, "missing")}, "control: what retention did not sign is missing"


# --- rows that cannot be read ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("column", "value"), [("at", "'x'"), ("seq", "'abc'"), ("details", "'{'")])
async def test_a_row_that_cannot_be_read_is_named_and_hides_no_other(made: Audited, column: str, value: str) -> None:
    """SQLite keeps text in any column; PostgreSQL refuses what is no time or number, and there the third alone is tried."""
    for kernel in ("krn_a", "krn_b"):
        async with made.kernel(kernel) as store:
            for n in range(3):
                await store.audit.record(None, "x", str(n), {})

    def work(tx: Tx) -> None:
        changed = (column, value) if tx.connection.dialect.name == "sqlite" else ("details", "'{'")
        for (name, to), chain, seq in ((changed, "krn_a", 3), (("subject", "'other'"), "krn_b", 2)):
            where = f"WHERE chain = '{chain}' AND seq = {seq}"
            tx.connection.execute(sa.text(f"UPDATE audit_rows SET {name} = {to} {where}"))

    async with made.kernel("krn_c") as store:
        await store._database.write(work)
    report = await made.verify()
    assert {chain: found.seq for chain, found in report.first.items()} == {"krn_a": 3, "krn_b": 2}
    assert report.chains == 3
