"""What a box is told when something may not leave, and why. Pure.

Texts are constant but for what the box itself asked for: no text of an upstream, an exception or a secret is ever in one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus

from ringfence.host.kernel.outward.rules import EgressRule, Mode


class Code(StrEnum):
    DENIED = "denied"
    ASK_PENDING = "ask_pending"
    UNKNOWN = "placeholder_unknown"
    EXPIRED = "placeholder_expired"
    FOREIGN = "placeholder_foreign"
    MISPLACED = "placeholder_misplaced"
    SPENT = "placeholder_spent"
    AUTHORITY = "authority_mismatch"
    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    TOO_MANY = "too_many"
    TOO_SLOW = "too_slow"
    UPSTREAM = "upstream_failed"
    UPSTREAM_TLS = "upstream_tls"
    ADDRESS = "address_denied"
    CREDENTIAL = "credential_unavailable"
    NOT_CONFIGURED = "not_configured"


STATUS = {
    Code.DENIED: 403,
    Code.ASK_PENDING: 403,
    Code.UNKNOWN: 403,
    Code.EXPIRED: 403,
    Code.FOREIGN: 403,
    Code.MISPLACED: 403,
    Code.SPENT: 403,
    Code.AUTHORITY: 421,
    Code.MALFORMED: 400,
    Code.TOO_LARGE: 413,
    Code.TOO_MANY: 429,
    Code.TOO_SLOW: 408,
    Code.UPSTREAM: 502,
    Code.UPSTREAM_TLS: 502,
    Code.ADDRESS: 403,
    Code.CREDENTIAL: 502,
    Code.NOT_CONFIGURED: 404,
}
REMEDY = {
    Code.DENIED: "ask the owner of this box for the rule shown: `ringfence egress allow`",
    Code.ASK_PENDING: "the owner of this box was asked and has not answered: try again after the answer",
    Code.UNKNOWN: "this stand-in is of no credential here: start the command again to be given a new one",
    Code.EXPIRED: "a stand-in ends with the command it was made for: start the command again",
    Code.FOREIGN: "this stand-in was made for another command: start this one again to be given its own",
    Code.MISPLACED: "the credential may not be used there: `ringfence secret bind` says host and position",
    Code.SPENT: "the stand-in was used as often as it may be: start the command again",
    Code.AUTHORITY: "one connection is for one host: Host, SNI and the proxy's target must agree",
    Code.MALFORMED: "the message says which part of the request no HTTP/1.1 client of good standing sends",
    Code.TOO_MANY: "wait and try again",
    Code.CREDENTIAL: "the message says what is missing: try again, then tell the owner of the credential",
    Code.UPSTREAM: "it was allowed, and the server or the way to it failed: try again later",
    Code.UPSTREAM_TLS: "the server's certificate is not valid for this name: nothing was sent to it",
    Code.ADDRESS: "the name leads to an address that no box may reach",
}
_NO_RULE = "no rule is missing here: what forbids it stands in the message, and in `ringfence egress test`"
FINDINGS = frozenset({Code.UNKNOWN, Code.EXPIRED, Code.FOREIGN, Code.MISPLACED, Code.SPENT, Code.AUTHORITY})
"""What an honest command does not do: the owner is told."""


_NOT_OURS = frozenset({Code.UPSTREAM, Code.UPSTREAM_TLS, Code.CREDENTIAL, Code.NOT_CONFIGURED})
"""What failed though it was allowed."""


class Refusal(Exception):
    """`close`: whether the connection cannot be used any more. `status` 0: that of the code."""

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        status: int = 0,
        close: bool = False,
        rule: EgressRule | None = None,
        remedy: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status or STATUS[code]
        self.close = close
        self.rule = rule
        self.remedy = remedy or (_NO_RULE if code is Code.DENIED and rule is None else REMEDY.get(code, ""))


def verdict(refusal: Refusal) -> str:
    """How it is counted: allow | deny | ask."""
    if refusal.code is Code.ASK_PENDING:
        return "ask"
    return "allow" if refusal.code in _NOT_OURS else "deny"


@dataclass(frozen=True, slots=True)
class Where:
    """What a request was for, as far as it was understood. No query: it may hold what nobody should log."""

    host: str = ""
    method: str = ""
    path: str = ""


def rule_json(rule: EgressRule | None) -> dict[str, object] | None:
    """What somebody would merge: fields that say nothing are left out."""
    if rule is None:
        return None
    shown: dict[str, object] = {"answer": str(rule.answer), "host": rule.host, "ports": list(rule.ports)}
    if rule.methods:
        shown["methods"] = sorted(rule.methods)
    if rule.paths:
        shown["paths"] = list(rule.paths)
    if rule.query:
        shown["query"] = [list(pair) for pair in rule.query]
    for name, value in (("plain", rule.plain), ("websocket", rule.websocket)):
        if value:
            shown[name] = True
    if rule.mode is not Mode.INTERCEPT:
        shown["mode"] = str(rule.mode)
    return shown


def response(refusal: Refusal, where: Where, *, close: bool, bodyless: bool = False) -> bytes:
    """The whole HTTP/1.1 response. `bodyless`: to a HEAD request."""
    body = json.dumps(
        {
            "error": {
                "code": str(refusal.code),
                "message": refusal.message,
                "remedy": refusal.remedy,
                "host": where.host,
                "method": where.method,
                "path": where.path,
                "rule": rule_json(refusal.rule),
            }
        },
        ensure_ascii=True,  # a path's bytes never end a header, and its text never anything but JSON
    ).encode()
    lines = [
        f"HTTP/1.1 {refusal.status} {_phrase(refusal.status)}",
        f"Content-Type: {_content_type(where)}",
        f"Content-Length: {len(body)}",
        f"X-Egress-Reason: {refusal.code}",
        "Cache-Control: no-store",
        f"Connection: {'close' if close else 'keep-alive'}",
    ]
    if refusal.status == HTTPStatus.TOO_MANY_REQUESTS:
        lines.append("Retry-After: 1")
    head = ("\r\n".join(lines) + "\r\n\r\n").encode()
    return head if bodyless else head + body


def _content_type(where: Where) -> str:
    """git shows a person what it is answered only where that calls itself plain text (remote-curl.c), and asks for
    references first."""
    return "text/plain" if where.path.endswith("/info/refs") else "application/json"


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase
