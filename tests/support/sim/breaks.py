"""Further walls that a control takes away; see kill_breaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ringfence.host.kernel.audit import GENESIS, row_hash
from ringfence.host.store import audit_chain
from ringfence.host.store.keys import Key


def no_keys() -> None:
    """Whatever is said again is said twice."""

    def unknown(_self: Any, _tx: Any) -> None:
        return None

    def kept_by_nobody(_self: Any, _tx: Any, _message: Any) -> None:
        return None

    Key.find = unknown  # type: ignore[method-assign, assignment]
    Key.keep = kept_by_nobody  # type: ignore[method-assign, assignment]


def no_links() -> None:
    """No row of the audit says what was before it."""
    vars(audit_chain)["row_hash"] = lambda _previous, *row: row_hash(GENESIS, *row)


BREAKS: Mapping[str, Callable[[], None]] = MappingProxyType({"no_keys": no_keys, "no_links": no_links})
