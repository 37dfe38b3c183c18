"""Whether a box is at work, by what its way out says: also while it is about to be paused, and not once it stands still."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from ringfence.host.engine.life.presence import Presence
from ringfence.host.engine.links import Slot
from ringfence.host.engine.live import LiveRuns
from ringfence.host.engine.oom import Kills
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.ids import BoxId
from tests.support.clocks import HandClock


class WayOut:
    def __init__(self) -> None:
        self.says: dict[str, Any] = {"holds": 0, "requests": 0, "up": 0, "down": 0}

    def facts(self, box: BoxId) -> dict[str, Any]:
        return self.says


def test_what_begins_on_the_way_out_while_a_pause_is_on_its_way_is_seen() -> None:
    clock, way = HandClock(), WayOut()
    parts = cast(Parts, SimpleNamespace(clock=clock, egress=way))
    presence, slot = Presence(parts, cast(Any, ()), LiveRuns()), Slot(BoxId("b" * 16), Kills())
    slot.started_at = clock.monotonic()
    clock.pass_seconds(100)
    assert presence.idle(slot) == 100
    slot.paused = True  # on its way: nothing can begin in it, and what runs in it may still connect
    way.says["up"] = 1
    assert presence.idle(slot) == 0
    clock.pass_seconds(10)
    assert presence.idle(slot) == 10
    way.says["holds"] = 1
    assert presence.idle(slot) is None
    slot.paused_at = clock.monotonic()  # it stands still, and its way out has ended
    way.says = {"holds": 0, "requests": 0, "up": 0, "down": 0}
    assert presence.idle(slot) == 10
