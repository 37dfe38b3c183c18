"""The self-check that every driver passes: what people who use a box rely on, asked through the public API of a throw-away
installation.

Through the API and not through the driver's own methods: what counts is what comes out at the end that users hold, and
the same questions then fit a driver whose wire is another one. Covers the list of inspect_ai's sandbox self-check (case
F101) and the cases A and C of docs. Blocking. It must never ask an installation that somebody uses.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ringfence.client.errors import ApiError
from ringfence.client.sync import SyncClient

Found = tuple[bool, str]
"""(as expected, what was found in words)."""


@dataclass(frozen=True, slots=True)
class Place:
    """One user's box, shared by the checks: each has names of its own."""

    client: SyncClient
    user: str

    def exec(self, argv: list[Any], **options: Any) -> dict[str, Any]:
        """The object of `exec --json`. Within a minute in any case."""
        outcome: dict[str, Any] = self.client.exec(self.user, argv, **{"timeout": 60.0, **options})
        return outcome

    def sh(self, script: str, **options: Any) -> dict[str, Any]:
        return self.exec(["sh", "-c", script], **options)

    def out(self, script: str, **options: Any) -> str:
        return str(self.sh(script, **options).get("stdout", ""))

    def put(self, path: str | bytes, data: bytes) -> None:
        self.client.put_file(self.user, path, data)

    def get(self, path: str | bytes) -> bytes:
        data: bytes = self.client.get_file(self.user, path)
        return data


@dataclass(frozen=True, slots=True)
class Check:
    """`ask` is called once; an exception is a failed check."""

    id: str
    expected: str
    ask: Callable[[Place], Found]


@dataclass(frozen=True, slots=True)
class Checked:
    id: str
    ok: bool
    seconds: float
    found: str
    expected: str

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "ok": self.ok,
            "seconds": round(self.seconds, 3),
            "found": self.found,
            "expected": self.expected,
        }


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """The report of one driver."""

    driver: str
    checks: list[Checked] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return bool(self.checks) and all(check.ok for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        return {"driver": self.driver, "ok": self.ok, "checks": [check.as_json() for check in self.checks]}


def run(driver: str, place: Place, checks: tuple[Check, ...]) -> SelfCheck:
    """One after another: they share a box, and a slow machine is not to make one fail for another."""
    return SelfCheck(driver, [_checked(check, place) for check in checks])


def _checked(check: Check, place: Place) -> Checked:
    began = time.monotonic()
    try:
        ok, found = check.ask(place)
    except Exception as error:
        ok, found = False, f"{type(error).__name__}: {error}"
    return Checked(check.id, ok, time.monotonic() - began, found[:400], check.expected)


def equal(found: object, expected: object) -> Found:
    return found == expected, repr(found)


def refused(work: Callable[[], object], *codes: str) -> Found:
    """The work fails with one of the error codes."""
    try:
        work()
    except ApiError as error:
        return error.code in codes, error.code
    return False, "no error"


def gone(place: Place, *paths: str) -> None:
    """Tidies up; what is not there is fine."""
    for path in paths:
        with suppress(ApiError):
            place.client.remove_file(place.user, path, recursive=True)
