"""How much of the long tests a run does: all of it, or a share, to see that each part works. `make soak SHARE=100`."""

from __future__ import annotations

import os

SHARE = max(1, int(os.environ.get("RINGFENCE_SOAK_SHARE", "1")))
SEED = int(os.environ.get("RINGFENCE_SOAK_SEED", "1000"))  # where the seeds begin: a printed one finds the same again


def share(whole: int) -> int:
    """Of seconds, seeds or rounds: at least one."""
    return max(1, whole // SHARE)


def every(step: int) -> int:
    """Of places that are taken one by one: the distance between two."""
    return step * SHARE
