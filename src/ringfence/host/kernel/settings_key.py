"""One key of the file of settings: a row of the table in settings_file.py. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LIST = "list of tables"
MONEY = "amount"


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the file. `check` gives the value as it is kept, or raises ValueError with what is allowed."""

    name: str  # `limits.memory` is `memory` in the table [limits]
    kind: str  # for people
    allowed: str
    says: str
    check: Callable[[object], Any]
