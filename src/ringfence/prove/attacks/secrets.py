"""For the leak scan: a loop that holds its run token while it is looked for, and a process with every form in its memory."""

from __future__ import annotations

import time
from pathlib import Path

from ringfence.prove.attacks.trying import Outcomes, Place

MIXED = 0x5A  # leak_kinds.MIXED: the file must not be what is looked for


def hold(place: Place) -> Outcomes:
    """Tells the token in a form that no scan knows, and stays. Arguments: seconds."""
    token = place.loop._token
    path = Path("/tmp/.mixed")
    path.write_text(bytes(each ^ MIXED for each in token.encode()).hex())
    time.sleep(float(place.arguments[0]))
    path.unlink()
    return {"held": "ready"}


ATTACKS = {"hold": hold}
