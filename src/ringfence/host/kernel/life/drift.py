"""What a box was started with, against what it would be started with now. Pure.

A restart of the server alone is no drift. A box that has drifted is recycled when it is idle, and not before: it goes on as it is for
as long as it is at work.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ringfence.host.kernel.boxes import FROM_NEXT_START, Box, Limits
from ringfence.host.kernel.images import HOST

SAYS = {
    "guest": "the program that is its PID 1 is another one",
    "runtime": "the walls are another release's",
    "image": "what its /usr is made of has changed",
    "limits": "limits were changed that hold from its next start on",
    "start": "what it was started with was lost with the server that did",
}
# Box.made_of of such a one: that of before is of another start.
UNKNOWN: Mapping[str, Any] = MappingProxyType({"start": "unknown"})
_OF_HOST = ("guest", "runtime", "image")
_FACTS = {"guest": "guest_digest", "runtime": "runtime", "image": "image"}  # names in the driver's facts


def made_of(facts: Mapping[str, Any], limits: Limits, image: str = HOST) -> dict[str, Any]:
    """Of a box that is started now, with `image`: an id, or the host's /usr. What the driver does not say is left out."""
    found: dict[str, Any] = {name: str(facts[_FACTS[name]]) for name in _OF_HOST if facts.get(_FACTS[name])}
    if image != HOST:
        found["image"] = image
    return {**found, "limits": {name: getattr(limits, name) for name in FROM_NEXT_START}}


def is_known(box: Box) -> bool:
    """Whether its row says what it was started with; one of an older release does not, whatever else it notes of the box."""
    return not SAYS.keys().isdisjoint(box.made_of or {})


def drift(box: Box, facts: Mapping[str, Any]) -> list[str]:
    """Names of SAYS; of a row of an older release, which does not say what the box was made of, none."""
    before = box.made_of
    if before is None:
        return []
    if "start" in before:
        return ["start"]
    now = made_of(facts, box.limits, box.image_bound or HOST)
    return [name for name in SAYS if name in before and name in now and before[name] != now[name]]
