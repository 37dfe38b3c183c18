"""For the leak scan: a loop that holds its run token while it is looked for."""

from __future__ import annotations

import time
from pathlib import Path

from ringfence.prove.attacks.trying import Outcomes, Place

MIXED = 0x5A  # each byte of the token by this: the file must not be what is looked for
TOLD = "/tmp/.mixed"


def hold(place: Place) -> Outcomes:
    """Tells the token in a form that no scan knows, and stays until that is taken away. Arguments: the most seconds."""
    token = place.loop._token
    path = Path(TOLD)
    path.write_text(bytes(each ^ MIXED for each in token.encode()).hex())
    until = time.monotonic() + float(place.arguments[0])
    while path.exists() and time.monotonic() < until:
        time.sleep(0.1)
    ended = "when told" if not path.exists() else "by its time"
    path.unlink(missing_ok=True)
    return {"held": ended}


ATTACKS = {"hold": hold}
