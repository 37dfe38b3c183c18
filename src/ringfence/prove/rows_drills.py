"""The drills as rows: `prove --only drills`. Declarations only."""

from __future__ import annotations

from ringfence.prove.drills import Drills
from ringfence.prove.row import Row, Tries, ran
from ringfence.prove.stage import Stage

GROUP = "drills"
STAYS = "nothing of the victim's comes out"


def _row(drills: Drills, name: str, attempt: str, wall: str) -> Row:
    def attack(stage: Stage, _runner: str) -> Tries:
        drills.left = stage.left
        return drills.walled(name)

    def control(_stage: Stage) -> Tries:
        return drills.shown(name)

    return Row(name, attempt, STAYS, wall, attack, ran(control), runners="h", alone=True, group=GROUP)


def rows() -> tuple[Row, ...]:
    """New ones: they share one server, made when the first of them is asked for."""
    drills = Drills()
    return (
        _row(
            drills, "D-1", "web takes bob for alice (a cache; an edit)", "the actor's seal, over the credential shown"
        ),
        _row(drills, "D-2", "files opens the wrong root", "the helper's uid against 0700"),
        _row(drills, "D-3", "the broker attaches the wrong run", "run token; the box that the run was given to"),
        _row(drills, "D-4", "the driver gets the wrong tree", "the box's uid against 0700"),
        _row(
            drills,
            "D-5",
            "the egress worker gets the wrong listener",
            "a listener is of one command; digests of one user",
        ),
        _row(drills, "D-6", "a store query loses its user filter", "row keys checked on read; the box's owner"),
        _row(drills, "D-7", "an empty user cache, an actor who is nobody", "fails closed; the box's owner"),
    )
