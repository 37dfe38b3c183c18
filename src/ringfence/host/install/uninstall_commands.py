"""The parts of `ringfence uninstall` for its command: each gives facts, or `{"error": {...}, "status": HTTP status}`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ringfence.host.install import uninstall
from ringfence.host.install.uninstall import Found
from ringfence.host.kernel.errors import RingfenceError

Facts = dict[str, Any]


def find(environment: Mapping[str, str]) -> Facts:
    return _facts(lambda: {"found": uninstall.find(environment)})


def plan(found: Found) -> Facts:
    return _facts(lambda: uninstall.plan(found))


def stop(found: Found) -> Facts:
    return _facts(lambda: {"stopped": uninstall.stop_boxes(found)})


def purge(found: Found, *, force: bool) -> Facts:
    return _facts(lambda: uninstall.purge(found, force=force))


def _facts(work: Callable[[], Facts]) -> Facts:
    try:
        return work()
    except RingfenceError as error:
        return {"error": error.as_json(), "status": error.http_status}
