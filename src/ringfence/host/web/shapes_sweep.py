"""The JSON of the sweep's route as types. No behaviour here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

BoxName = Annotated[str, Field(pattern=r"^[a-z2-7]{16}$")]


class SweepWish(BaseModel):
    """`boxes`: ids of boxes without an owner that are to go with all that is in them, as an earlier sweep has shown them."""

    model_config = ConfigDict(extra="forbid")

    dry_run: bool = False
    boxes: list[BoxName] = Field(default_factory=list, max_length=1000)


class LeftShape(BaseModel):
    """One thing that was left behind. `box`, `owner` (tenant/user): null where it is of none. `bytes`: of memory or disk."""

    kind: str
    what: str
    box: str | None
    owner: str | None
    bytes: int
    why: str
    action: Literal["removed", "reported", "failed"]
    error: str


class SweepShape(BaseModel):
    """`ids`: host ids given out, of them held by boxes, free to be given again and spent for good; and left in the range."""

    found: list[LeftShape]
    dry_run: bool
    ids: dict[str, int]
