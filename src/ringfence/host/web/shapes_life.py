"""Bodies of routes_life."""

from __future__ import annotations

from pydantic import BaseModel, Field

from ringfence.host.web.shapes import BoxShape, Request


class Pause(Request):
    force: bool = Field(default=False, description="park the runs that are at work in it")


class Quarantine(Request):
    reason: str = Field(description="why, in one line: whoever is refused is told")


class Upgrade(Request):
    force: bool = Field(default=False, description="end what is at work in it")
    drain: float = Field(default=0.0, description="seconds to wait for the end of what is at work in it")
    image: str | None = Field(
        default=None,
        description="name or id of the image it has from now on, `host` or `default`; null: what its image's name stands for now",
    )


class Upgraded(BaseModel):
    box: BoxShape
    drifted: list[str] = Field(
        description="what it was started with that is another now: guest, runtime, image, limits"
    )
