"""What a backup of the whole must know of the rows, and what becomes of boxes and copies when it is put back. On both databases."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pytest

from ringfence.host.kernel.boxes import BoxKind, Desired, Limits, Observed, Rest
from ringfence.host.kernel.life.backups import held_of
from ringfence.host.kernel.life.copies import Copied, CopyKind, Kept
from ringfence.host.store import verbs
from tests.support.clocks import HandClock
from tests.support.store_work import Db, a_signed_team, signed

pytestmark = pytest.mark.alone


async def test_rows_are_seen_in_the_moment_that_is_written(tmp_path: Path) -> None:
    clock = HandClock()
    db = Db(tmp_path, clock)
    async with a_signed_team(tmp_path, clock) as team:
        store = team.store
        users = await store.users.all("default")
        made = [await store.boxes.add(users[0], BoxKind.RUN, "fake", Limits(memory=1 << 29)) for _ in range(6)]
        there, running, absent, removed, archived, ended = (box.id for box in made)
        await store.boxes.update(there, observed=Observed.STOPPED, uid=1008)
        await store.boxes.update(running, observed=Observed.RUNNING, uid=1016, identity={"pid": 1})
        await store.boxes.update(removed, desired=Desired.REMOVED, observed=Observed.STOPPED, uid=1024)
        await store.boxes.update(archived, observed=Observed.STOPPED, uid=1032, rest=Rest.ARCHIVED)
        await store.boxes.update(ended, desired=Desired.REMOVED, observed=Observed.STOPPED, uid=1040)
        await store.boxes.quarantine(running, "it is odd")
        copies = [
            ("snp_" + letter * 20, kind)
            for letter, kind in (("a", CopyKind.ARCHIVE), ("b", CopyKind.ASKED), ("c", CopyKind.ASKED))
        ]
        for copy, kind in copies:
            await store.snapshots.begin(copy, await store.boxes.get(archived), kind, "")
        for copy, _ in copies[:2]:
            await store.snapshots.whole(copy, Copied(1, 1), Kept(1, "d"))
        file = BytesIO()
        facts = await verbs.run(db.job(), "backup", {"whole": True}, file)
        assert absent
    boxes = {box.id: box for box in map(held_of, facts["seen"]["boxes"])}
    assert set(boxes) >= {there, running, archived, removed, ended}  # what a removal keeps is kept here too
    assert absent not in boxes
    assert boxes[there].limits.memory == 1 << 29
    assert [(box, boxes[box].archive) for box in boxes if boxes[box].archive] == [(archived, copies[0][0])]
    assert facts["seen"]["spent"] == 1048  # also of the one that is to be gone
    assert facts["seen"]["snapshots"] == [
        {"id": copies[0][0], "kind": "archive"},
        {"id": copies[1][0], "kind": "asked"},
    ]

    file.seek(0)
    await verbs.run(db.job(), "restore", {"file": "x"}, file)
    kept = {"uids": {there: 5008, archived: 5016, removed: 5024}, "archived": [archived], "kept": [copies[0][0]]}
    settled = await verbs.run(db.job(), "settle", kept, None)
    assert settled["snapshots_gone"] == 2
    assert settled["boxes_empty"] >= 2
    async with signed(tmp_path, clock, 1 << 40) as store:
        rows = {box.id: box for box in await store.boxes.all()}
        assert (rows[there].uid, rows[there].observed) == (5008, Observed.STOPPED)
        assert (rows[archived].uid, rows[archived].rest) == (5016, Rest.ARCHIVED)
        assert (rows[running].uid, rows[running].observed, rows[running].identity) == (0, Observed.ABSENT, None)
        assert rows[running].quarantine == "it is odd"  # it stays what people decided
        assert rows[running].desired is Desired.STOPPED
        assert (rows[removed].desired, rows[removed].observed) == (
            Desired.REMOVED,
            Observed.STOPPED,
        )  # not to be purged, nor started
        assert rows[removed].uid == 5024
        assert ended not in rows  # its files were purged while the backup was made
        assert [copy.id for copy in await store.snapshots.here()] == [copies[0][0]]
    assert await db.findings() == set()
