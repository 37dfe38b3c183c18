"""Copies of a box's files, as the API shows them. Sizes in bytes."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from ringfence.host.web.shapes import BoxShape, Request


class NewSnapshot(Request):
    name: str = Field(default="", description="letters, digits, . _ -; of one user each once")
    force: bool = Field(
        default=False, description="stop a box that is at work, where the host cannot make it stand still"
    )


class Change(Request):
    force: bool = Field(default=False, description="end what is at work in the box")
    drain: float = Field(default=0.0, description="seconds to wait for the end of what is at work in it")
    keep: bool = Field(default=True, description="make a copy of the files that go, from which this can be undone")


class Reset(Change):
    keep_files: bool = Field(default=False, description="home and workspace stay; processes, /tmp and /run go")


class Clone(Change):
    snapshot: str | None = Field(
        default=None, description="a copy of the first user's box; null: its files as they are now"
    )


class Archive(Request):
    force: bool = False
    drain: float = 0.0


class Recover(Request):
    action: str = Field(description="fsck or free-space")
    force: bool = False
    drain: float = 0.0


class SnapshotShape(BaseModel):
    id: str
    name: str
    kind: str = Field(description="asked (by a person) or before (a reset, restore or clone)")
    created_at: datetime
    entries: int = Field(description="files, folders and links")
    bytes: int = Field(description="of content")
    stored_bytes: int = Field(description="of its file")
    image: str


class SnapshotList(BaseModel):
    snapshots: list[SnapshotShape]


class TakenShape(BaseModel):
    snapshot: SnapshotShape
    left_out: dict[str, int] = Field(
        description="what no copy has, by kind: fifo, socket, device, special_bits, too_deep, mount"
    )


class ChangedShape(BaseModel):
    box: BoxShape
    before: SnapshotShape | None = Field(description="the copy of the files that it had")
    left_out: dict[str, int]


class MendedShape(BaseModel):
    box: BoxShape
    action: str
    found: str = Field(
        description="fsck: clean, mended, limits (its quota was set anew), nothing; free-space: freed, nothing"
    )
    freed_bytes: int
    removed: list[str] = Field(description="folders below the home")
