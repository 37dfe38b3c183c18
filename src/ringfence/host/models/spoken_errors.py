"""Errors of our own in the words of the providers, so that a client of theirs reads them as it reads those. Pure.

Sources: the error pages of the two providers' API references, and what their Python clients make of each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType

from ringfence.host.kernel.models.upstreams import Kind

_OPENAI: Mapping[int, str] = MappingProxyType(
    {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "invalid_request_error",
        405: "invalid_request_error",
        413: "invalid_request_error",
        429: "insufficient_quota",
    }
)
_ANTHROPIC: Mapping[int, str] = MappingProxyType(
    {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        405: "invalid_request_error",
        413: "request_too_large",
        429: "rate_limit_error",
    }
)


class Wrong(Exception):
    """What is answered. `retry`: the client may try again, unchanged. `allow`: the methods that there are (405)."""

    def __init__(self, status: int, code: str, message: str, *, retry: bool = False, allow: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.retry, self.allow = status, code, message, retry, allow


def body(kind: Kind, wrong: Wrong) -> bytes:
    if kind is Kind.ANTHROPIC:
        said: dict[str, object] = {"type": "error", "error": _anthropic(wrong)}
    else:
        said = {"error": {**_openai(wrong), "param": None}}
    return json.dumps(said).encode()


def event(kind: Kind, path: str, wrong: Wrong) -> bytes:
    """As the last of a stream that had begun well."""
    if kind is Kind.ANTHROPIC:
        return b"event: error\ndata: " + body(kind, wrong) + b"\n\n"
    if path.endswith("/responses"):
        said = {"type": "error", "code": wrong.code, "message": wrong.message, "param": None, "sequence_number": 0}
        return b"event: error\ndata: " + json.dumps(said).encode() + b"\n\n"
    return b"data: " + body(kind, wrong) + b"\n\n"


def _openai(wrong: Wrong) -> dict[str, object]:
    return {"message": wrong.message, "type": _OPENAI.get(wrong.status, "server_error"), "code": wrong.code}


def _anthropic(wrong: Wrong) -> dict[str, object]:
    return {"type": _ANTHROPIC.get(wrong.status, "api_error"), "message": wrong.message}
