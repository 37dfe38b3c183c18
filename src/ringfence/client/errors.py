"""Errors of the SDK: what the server said, as exceptions; and what went wrong on the way to it.

ApiError             code, message, remedy, details; exit_code for a command line
├── Invalid          2  the caller's input
├── Unauthenticated  3  no, wrong or expired credential
├── Refused          3  policy says no
├── NotFound         4  absent, or not to be seen
├── Conflict         1  state says no
├── Unavailable      5  the server, a part or an isolation is missing
└── Failed           1  the server's to mend
"""

from __future__ import annotations

from typing import Any, ClassVar


class ApiError(Exception):
    exit_code: ClassVar[int] = 1

    def __init__(self, code: str, message: str, remedy: str = "", details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.remedy = remedy
        self.details = details or {}

    def as_json(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message, "remedy": self.remedy, "details": self.details}


class Invalid(ApiError):
    exit_code = 2


class Unauthenticated(ApiError):
    exit_code = 3


class Refused(ApiError):
    exit_code = 3


class NotFound(ApiError):
    exit_code = 4


class Conflict(ApiError):
    exit_code = 1


class Unavailable(ApiError):
    exit_code = 5


class Failed(ApiError):
    exit_code = 1


def _by_code(code: str) -> type[ApiError] | None:
    return {
        "invalid": Invalid,
        "invalid_name": Invalid,
        "too_large": Invalid,
        "method_not_allowed": Invalid,
        "unauthenticated": Unauthenticated,
        "refused": Refused,
        "not_found": NotFound,
        "unavailable": Unavailable,
        "box_lost": Unavailable,
        "disk_full": Unavailable,
        "failed": Failed,
    }.get(code)


def _by_status(status: int) -> type[ApiError]:
    exact = {401: Unauthenticated, 403: Refused, 404: NotFound, 409: Conflict, 429: Conflict}
    exact |= {503: Unavailable, 507: Unavailable}
    return exact.get(status) or (Invalid if 400 <= status < 500 else Failed)


def from_answer(answer: object, status: int = 409) -> ApiError:
    """Of the object {"error": {...}}; anything else is a Failed that says so. Codes that are not known here (a newer
    server's) are classed by the HTTP status."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("code"), str):
        return Failed("failed", f"the server's answer makes no sense (HTTP {status})", "is it ringfence that answers?")
    kind = _by_code(error["code"]) or _by_status(status)
    details = error.get("details")
    return kind(
        error["code"],
        str(error.get("message", "")),
        str(error.get("remedy", "")),
        details if isinstance(details, dict) else {},
    )
