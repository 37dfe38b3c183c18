"""What one exchange is about, and what it came to. Nouns."""

from __future__ import annotations

from dataclasses import dataclass

from ringfence.host.egress.head import RequestHead
from ringfence.host.egress.judging import Judged, Policy
from ringfence.host.kernel.outward.rules import EgressRule


@dataclass(frozen=True, slots=True)
class Asked:
    """`rule`: what its bodies are bound by. `policy`: None for the model gateway, which is given no credential here.
    `evidence`: writes are recorded before they leave. `stripped`: fields that end here besides the usual ones."""

    head: RequestHead
    judged: Judged
    rule: EgressRule
    invocation: str
    websocket: bool
    policy: Policy | None
    evidence: bool = True
    stripped: tuple[bytes, ...] = ()


@dataclass(slots=True)
class Spent:
    """`started`: a byte of an answer has gone to the box. `error`: a refusal's code or an exception's name."""

    status: int = 0
    error: str = ""
    up: int = 0
    down: int = 0
    started: bool = False
