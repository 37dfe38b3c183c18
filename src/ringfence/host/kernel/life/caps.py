"""How many boxes may run, and which of them goes when room is needed. Pure.

The least recently idle one goes first, paused before running of the same age; one that is at work never goes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ringfence.host.kernel.ids import BoxId, TenantId


@dataclass(frozen=True, slots=True)
class Caps:
    """0: no such cap."""

    most: int = 0  # boxes that run on this server, paused ones among them
    most_tenant: int = 0
    wait_seconds: int = 60
    memory_low_percent: int = 5
    stalled_percent: int = 40


@dataclass(frozen=True, slots=True)
class Up:
    """A box that runs or is paused. `idle`: seconds; None while it is at work."""

    box: BoxId
    tenant: TenantId
    idle: float | None


@dataclass(frozen=True, slots=True)
class Load:
    """Of the host. `memory_left`: of all of it, in percent; `stalled`: of the last ten seconds, in percent."""

    memory_left: float = 100.0
    stalled: float = 0.0


def pressed(load: Load, caps: Caps) -> str:
    """Why no further box is to start and idle ones are to go; "": nothing presses."""
    if caps.memory_low_percent and load.memory_left < caps.memory_low_percent:
        return f"{load.memory_left:.1f} % of the host's memory is left"
    if caps.stalled_percent and load.stalled > caps.stalled_percent:
        return f"the host lost {load.stalled:.0f} % of the last ten seconds waiting for memory"
    return ""


@dataclass(frozen=True, slots=True)
class Room:
    """Whether one more may start. `go`: who has to be stopped for it; `why`: what it waits for when nobody can go."""

    free: bool
    go: BoxId | None = None
    why: str = ""
    own: bool = False  # it is the tenant's own cap that is reached
    pressed: bool = False  # the host is short of memory


def room(boxes: Iterable[Up], tenant: TenantId, caps: Caps, starting: Iterable[TenantId] = ()) -> Room:
    """For a box of that tenant. `starting`: tenants of those that have been let in and are not up yet."""
    up, begun = list(boxes), list(starting)
    own = [box for box in up if box.tenant == tenant]
    if caps.most_tenant and len(own) + begun.count(tenant) >= caps.most_tenant:
        return _instead(
            own, True, f"{caps.most_tenant} boxes of the tenant run, the most that may, and all are at work"
        )
    if caps.most and len(up) + len(begun) >= caps.most:
        return _instead(up, False, f"{caps.most} boxes run, the most that this server may, and all are at work")
    return Room(True)


def longest_idle(boxes: Iterable[Up]) -> BoxId | None:
    idle = [(box.idle, box.box) for box in boxes if box.idle is not None]
    return max(idle)[1] if idle else None


def _instead(among: list[Up], own: bool, why: str) -> Room:
    gone = longest_idle(among)
    return Room(False, gone, "" if gone is not None else why, own)
