"""The rows of a backup of the whole installation: what must be known of them while it is made, and what is made of them
when it is put back on a host.

`Seen` looks at the rows that `backup.dump` writes. `settle` comes after `restoring.put_back`, which has fenced whoever was at work:
a box is where its tree was unpacked, with the id that it was given there, and nothing of it runs. Must never be called on a
database that a kernel works on.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.boxes import Desired, Observed, Rest
from ringfence.host.kernel.images import ID
from ringfence.host.kernel.life.copies import CopyKind
from ringfence.host.store.boxes import PAUSED
from ringfence.host.store.life import KEPT, snapshots
from ringfence.host.store.outward import OPEN, invocations
from ringfence.host.store.schema import boxes, users

_BLOCK = 8  # ids of a home


class Seen:
    """Of one installation's rows; those of others that share the database are not its boxes."""

    def __init__(self, installation: str) -> None:
        self._installation = installation
        self._boxes: list[dict[str, Any]] = []
        self._snapshots: list[dict[str, Any]] = []
        self._images: set[str] = set()
        self._archives: dict[str, list[tuple[datetime, str]]] = {}  # of a box, in no order
        self._spent = 0

    def __call__(self, table: str, row: Row[Any]) -> None:
        if table == "boxes" and getattr(row, "installation", "") in ("", self._installation):
            self._box(row)
        elif table == "snapshots" and row.installation in ("", self._installation):
            self._copy(row)

    def _copy(self, row: Row[Any]) -> None:
        if row.removed_at is None and row.state == "whole":
            self._snapshots.append({"id": row.id, "kind": row.kind})
            if row.kind == CopyKind.ARCHIVE.value:
                self._archives.setdefault(row.box, []).append((row.created_at, row.id))

    def _box(self, row: Row[Any]) -> None:
        self._spent = max(self._spent, row.uid + _BLOCK if row.uid else 0)
        if row.removed_at is not None:
            return
        removed = row.desired == Desired.REMOVED.value  # its files are kept until they are purged, and it never starts
        if not removed and ID.match(bound := getattr(row, "image_bound", "")):
            self._images.add(bound)
        if row.uid and row.observed != Observed.ABSENT.value:
            limits = row.limits if isinstance(row.limits, dict) else json.loads(row.limits)
            archived = getattr(row, "rest", "") == Rest.ARCHIVED.value
            self._boxes.append({"id": row.id, "kind": row.kind, "limits": limits, "archive": archived})

    def as_json(self) -> dict[str, Any]:
        """`spent`: the first host id that no box ever had; 0: none had any. `images`: ids that boxes are bound to."""
        boxes = [{**box, "archive": self._archive(box["id"]) if box["archive"] else ""} for box in self._boxes]
        return {"boxes": boxes, "snapshots": self._snapshots, "spent": self._spent, "images": sorted(self._images)}

    def _archive(self, box: str) -> str:
        """As store.snapshots has it: the oldest."""
        return min(self._archives.get(box, []), default=(None, ""))[1]


def settle(
    connection: Connection,
    installation: str,
    uids: Mapping[str, int],
    archived: Collection[str],
    kept: Collection[str],
    at: datetime,
) -> dict[str, int]:
    """`uids`: of each box that is here, its new id. `archived`: those of them whose tree is in their archive; the row of one whose tree
    is here may say so still. `kept`: ids of the snapshots whose file is here. How many boxes begin with an empty tree, and how
    many snapshots are gone. One that was to go, and has no tree, has gone."""
    rows = connection.execute(
        sa.select(boxes.c.id, boxes.c.desired).where(
            boxes.c.removed_at.is_(None), boxes.c.installation.in_(("", installation))
        )
    ).all()
    empty, ended = 0, []
    for row in rows:
        uid = uids.get(row.id, 0)
        removed = row.desired == Desired.REMOVED.value
        empty += 0 if uid or removed else 1
        ended += [row.id] if removed and not uid else []
        connection.execute(
            sa.update(boxes)
            .where(boxes.c.id == row.id)
            .values(
                uid=uid,
                observed=Observed.STOPPED.value if uid else Observed.ABSENT.value,
                desired=row.desired if removed else Desired.STOPPED.value,
                removed_at=at if row.id in ended else None,
                identity=None,
                rest=Rest.ARCHIVED.value if row.id in archived else Rest.NONE.value,
                verb="",
                verb_until=None,
                made_of=None,
            )
        )
    open_ = sa.update(invocations).where(invocations.c.box.in_(ended), sa.text(OPEN))
    connection.execute(open_.values(closed_at=at))
    # Nothing is paused any more, so nothing that a pause held back would be let go on by its end.
    connection.execute(sa.update(users).where(users.c.held == PAUSED).values(held=""))
    mine = sa.select(snapshots.c.id).where(sa.text(KEPT), snapshots.c.installation.in_(("", installation)))
    gone = [{"which": each} for each in connection.execute(mine).scalars() if each not in kept]
    if gone:
        lost = sa.update(snapshots).where(snapshots.c.id == sa.bindparam("which")).values(removed_at=at)
        connection.execute(lost, gone)
    return {"boxes_empty": empty, "snapshots_gone": len(gone)}
