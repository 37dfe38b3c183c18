"""An event as an actor may see it. Pure.

Members see text, and that steps happened; what a step did is for the actor of its run alone. An operator who is no
member sees that things happened: no text, no tool, no argument. Breaking the glass shows the text, and no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringfence.host.kernel.access import Relation
from ringfence.host.kernel.ids import UserId
from ringfence.host.kernel.people import Actor
from ringfence.host.kernel.threads import Event, EventKind

_ASKED = (EventKind.RUN_PARKED, EventKind.GATE_ANSWERED, EventKind.GATE_CLOSED)
ACTOR_ONLY = frozenset(
    {EventKind.STEP_BEGUN, EventKind.STEP_ENDED, EventKind.RUN_DETAIL, EventKind.EFFECT_SETTLED, *_ASKED}
)
TEXT = frozenset({EventKind.MESSAGE, EventKind.REPLY})
READERS = frozenset({Relation.MEMBER, Relation.GLASS})  # of text
REMOVED = "(removed)"  # in the place of a name: no name has parentheses
# What is left of a body that is not for the actor. A key that is not named here is not shown.
_BARE: dict[EventKind, frozenset[str]] = {
    EventKind.STEP_BEGUN: frozenset({"n"}),
    EventKind.STEP_ENDED: frozenset({"n"}),
    EventKind.RUN_DETAIL: frozenset({"code"}),
    EventKind.EFFECT_SETTLED: frozenset({"n"}),
    **dict.fromkeys(_ASKED, frozenset({"n", "kind"})),
    EventKind.MESSAGE: frozenset({"author", "message"}),
    EventKind.REPLY: frozenset({"author", "message"}),
}


def redacted(event: Event, actor: Actor, relation: Relation, names: Mapping[UserId, str]) -> dict[str, Any]:
    """{"cursor", "kind", "actor" (a name, or REMOVED), "turn", "run", "body", "at" (ISO 8601)}."""
    own = actor.user is not None and actor.user.id == event.actor
    member = relation is Relation.MEMBER
    unread = event.kind in TEXT and relation not in READERS
    hidden = unread or (event.kind in ACTOR_ONLY and not (own and member))
    body = {k: v for k, v in event.body.items() if k in _BARE[event.kind]} if hidden else dict(event.body)
    return {
        "cursor": event.cursor,
        "kind": event.kind.value,
        "actor": names.get(event.actor, REMOVED) if event.actor is not None else None,
        "turn": event.turn,
        "run": event.run,
        "body": body,
        "at": event.created_at.isoformat(),
    }
