"""Rules and requests in a few words, and what the matcher says of them."""

from __future__ import annotations

from typing import Any

from ringfence.host.kernel.outward.matching import compile_rules
from ringfence.host.kernel.outward.rules import EgressRule, Layer, Request, Verdict

ALLOW, DENY, ASK = Verdict.ALLOW, Verdict.DENY, Verdict.ASK
OPERATOR, TENANT = Layer.INSTALLATION, Layer.TENANT
NAMED = iter(range(10**9))


def rule(host: str, answer: Verdict = ALLOW, **more: Any) -> EgressRule:
    return EgressRule(f"rul_{next(NAMED)}", answer, host, **more)


def asked(host: str = "api.test", path: str = "/", method: str = "GET", **more: Any) -> Request:
    return Request(host, more.pop("port", 443), more.pop("tls", True), method, path, **more)


def answer(rules: list[EgressRule], request: Request) -> Verdict:
    return compile_rules(rules).request(request).answer
