"""Several installations on one database, each with a key of its own: what one cannot check of another is not broken."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from io import BytesIO
from pathlib import Path

import pytest

from ringfence.host.kernel.audit import Keys
from ringfence.host.kernel.audit_check import Report
from ringfence.host.kernel.errors import Conflict
from ringfence.host.store import audit_reading, verbs
from ringfence.host.store.audit_keys import Signer
from ringfence.host.store.store import SqlStore, open_store
from tests.support.clocks import CountingIds, HandClock
from tests.support.databases import address, hold_clock, is_postgres, outside

pytestmark = pytest.mark.alone

OURS, THEIRS = Keys(b"k" * 32), Keys(b"t" * 32)
BOTH = Keys(OURS.mine, (THEIRS.mine,))


async def kernel(folder: Path, worker: str, installation: str, keys: Keys) -> None:
    """A server's store, from its start to its orderly end, with an act."""
    clock = HandClock()
    clock.hold(hold_clock(folder))
    signer = Signer(worker, keys)
    ids = CountingIds(int.from_bytes(worker.encode()[-2:]) << 40)
    store = await open_store(address(folder), clock, ids, signer=signer, installation=installation)
    try:
        await store.audit.open()
        await store.kernels.hello(worker, "0.1", installation)
        await store.audit.record(None, "box.start", "box:1", {})
        await store.kernels.bye(worker)
    finally:
        await store.close()


async def report(folder: Path, keys: Keys = OURS) -> Report:
    return await audit_reading.verify(address(folder), Signer("reader", keys), "ins_a")


def job(folder: Path, keys: Keys = OURS) -> verbs.Job:
    return verbs.Job(
        url=address(folder), installation="ins_a", release="0.1", clock=HandClock(), ids=CountingIds(1 << 60),
        signer=Signer("db1", keys), by="the operator", alone=True,
    )  # fmt: skip


@pytest.fixture
async def shared(tmp_path: Path) -> Path:
    await kernel(tmp_path, "krn_a", "ins_a", OURS)
    await kernel(tmp_path, "krn_b", "ins_b", THEIRS)
    return tmp_path


async def test_anothers_chain_is_unchecked_and_named_with_the_remedy(shared: Path) -> None:
    found = await report(shared)
    assert (found.first, found.ok) == ({}, False)
    [one] = found.as_json()["unchecked"]
    assert (one["installation"], one["chains"]) == ("ins_b", 1)
    assert one["key"] in one["says"]
    assert "copy its vault/audit.key to vault/audit.key.NAME" in one["says"]
    whole = await report(shared, BOTH)
    assert (whole.ok, whole.unchecked) == (True, {})


async def test_a_check_and_a_restore_take_it_as_a_note(shared: Path) -> None:
    facts = await verbs.run(job(shared), "check", {}, None)
    assert (facts["ok"], facts["findings"]) == (True, [])
    assert "1 chain of installation ins_b" in facts["notes"][0]
    file = BytesIO()
    await verbs.run(job(shared), "backup", {}, file)
    back = await verbs.run(replace(job(shared)), "restore", {}, BytesIO(file.getvalue()))
    assert (back["findings"], back["notes"]) == ([], facts["notes"])
    with_key = await verbs.run(job(shared, BOTH), "check", {}, None)
    assert (with_key["ok"], with_key["notes"]) == (True, [])


async def test_what_was_made_here_is_broken_without_its_key(shared: Path) -> None:
    """Whoever changes a row of ours and calls its chain another's: the database says where the chain was made."""
    outside(shared, "UPDATE audit_chains SET key = (SELECT key FROM audit_chains WHERE chain = 'krn_b') "
                    "WHERE chain = 'krn_a'")  # fmt: skip
    found = await report(shared)
    assert {chain: one.wrong.value for chain, one in found.first.items()} == {"krn_a": "key"}
    file = BytesIO()
    await verbs.run(job(shared), "backup", {}, file)
    with pytest.raises(Conflict, match="made with the key"):
        await verbs.run(job(shared), "restore", {}, BytesIO(file.getvalue()))


async def test_a_row_that_was_changed_is_broken_in_anybodys_chain(shared: Path) -> None:
    outside(shared, "UPDATE audit_rows SET action = 'box.stop' WHERE chain = 'krn_b' AND action = 'box.start'")
    found = await report(shared)
    assert {chain: one.wrong.value for chain, one in found.first.items()} == {"krn_b": "changed"}


async def test_a_chain_that_nobody_knows_the_maker_of(shared: Path) -> None:
    """A kernel's row goes after 30 days. What shares its key is as that is; else a server is shared, and a file is not."""
    await kernel(shared, "krn_c", "ins_b", THEIRS)
    outside(shared, "DELETE FROM kernels WHERE worker = 'krn_b'")
    found = await report(shared)
    assert [(one.installation, one.chains) for one in found.unchecked.values()] == [("ins_b", 2)]
    outside(shared, "DELETE FROM kernels WHERE worker = 'krn_c'")
    found = await report(shared)
    told = [(one.installation, one.chains) for one in found.unchecked.values()]
    assert (told, set(found.first)) == (([("", 2)], set()) if is_postgres(shared) else ([], {"krn_b", "krn_c"}))


@asynccontextmanager
async def ten_days_later(folder: Path, worker: str) -> AsyncIterator[tuple[SqlStore, HandClock]]:
    """A store of ours that wrote one row, younger than what is there, ten days ago."""
    clock = HandClock()
    clock.hold(hold_clock(folder))
    clock.jump(timedelta(seconds=1))
    store = await open_store(
        address(folder), clock, CountingIds(1 << 41), signer=Signer(worker, OURS), installation="ins_a"
    )
    try:
        await store.audit.open()
        await store.audit.record(None, "box.start", "box:1", {})
        clock.jump(timedelta(days=10))
        yield store, clock
    finally:
        await store.close()


async def test_rows_of_another_are_in_the_way_of_no_retention(tmp_path: Path) -> None:
    """They are older, and more than one batch takes: ours go all the same, and theirs are theirs to take."""
    await kernel(tmp_path, "krn_b", "ins_b", THEIRS)
    theirs = "SELECT seq FROM audit_rows WHERE chain = 'krn_b' ORDER BY seq"
    kept = outside(tmp_path, theirs)
    async with ten_days_later(tmp_path, "krn_a") as (store, clock):
        assert len(kept) == 3
        assert [await store.audit.cut(clock.now() - timedelta(days=9), 2) for _ in range(2)] == [2, 0]
        assert outside(tmp_path, theirs) == kept
    assert (await report(tmp_path, BOTH)).ok


async def test_chains_of_no_key_are_in_the_way_of_no_retention(tmp_path: Path) -> None:
    """Ours by their name, with a head that our key did not make: older, each of more rows than one batch takes."""
    for worker in ("krn_a", "krn_b"):
        await kernel(tmp_path, worker, "ins_a", OURS)
    outside(tmp_path, "UPDATE audit_chains SET closed_by = 'krn_b', mac = 'forged'")
    forged = "SELECT chain, seq FROM audit_rows WHERE chain <> 'krn_c' ORDER BY chain, seq"
    kept = outside(tmp_path, forged)
    async with ten_days_later(tmp_path, "krn_c") as (store, clock):
        assert (len(kept), await store.audit.cut(clock.now() - timedelta(days=9), 2)) == (6, 2)
        assert outside(tmp_path, forged) == kept
