"""The two requests about what was left behind. protocol.py names them again. Data only; must name no more than a box and a kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ringfence.spawner.replies import DebrisKind


@dataclass(frozen=True, slots=True)
class Debris:
    """A page of what was left behind, box by box: of those after `after` ("": from the first, and what is of none)."""

    op: ClassVar[str] = "debris"
    after: str = ""


@dataclass(frozen=True, slots=True)
class Clear:
    """Takes away what Debris tells of, proven anew; of no box: "". Refused: it is not ours, or in use. Failed: it stays."""

    op: ClassVar[str] = "clear"
    box: str
    debris: DebrisKind
