"""Rates, the audit's limit and outcomes: plain functions of their input."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import pytest

from ringfence.host.broker.outcomes import HEAD_BYTES, TAIL_BYTES, decode, outcome
from ringfence.host.broker.rate import Bucket, Buckets
from ringfence.host.broker.violations import Violations
from ringfence.host.kernel.ids import BoxId
from ringfence.wire.framing import RemoteProtocolError
from ringfence.wire.messages import CmdEnded, Kept


def test_a_bucket_holds_two_seconds_and_fills_at_its_rate() -> None:
    bucket = Bucket(10, 0.0)
    assert [bucket.take(0.0) for _ in range(20)] == [0.0] * 20
    assert bucket.take(0.0) == pytest.approx(0.1)
    assert bucket.take(0.0) == pytest.approx(0.2)  # behind the one before
    assert bucket.take(0.3) == 0.0
    assert [bucket.take(1000.0) for _ in range(21)][-1] > 0  # never more than the burst


def test_buckets_are_apart_and_bounded() -> None:
    buckets = Buckets(lambda: 0.0)
    assert [buckets.take("a", "m", 1) for _ in range(3)][-1] > 0
    assert buckets.take("b", "m", 1) == 0.0
    assert buckets.take("a", "n", 1) == 0.0
    for number in range(10_000):
        buckets.take(f"run_{number}", "m", 1)
    assert len(buckets) <= 512
    assert buckets.take("run_9999", "m", 1) == 0.0
    assert buckets.take("run_9999", "m", 1) > 0
    buckets.forget("run_9999")
    assert buckets.take("run_9999", "m", 1) == 0.0
    buckets.forget("nobody")


def test_violations_are_told_once_in_ten_seconds_with_a_count() -> None:
    told: list[tuple[str, str, Any]] = []

    def tell(box: BoxId, kind: str, details: Mapping[str, Any]) -> None:
        told.append((box, kind, details["suppressed"]))

    now = 0.0
    violations = Violations(tell, lambda: now)
    for _ in range(5):
        violations.report(BoxId("a"), "protocol", "why")
    violations.report(BoxId("b"), "flood", "why")
    now = 10.0
    violations.report(BoxId("a"), "silent", "why")
    assert told == [("a", "protocol", 0), ("b", "flood", 0), ("a", "silent", 4)]


def ended(**changes: Any) -> CmdEnded:
    fields: dict[str, Any] = {
        "key": "k",
        "code": 0,
        "signal": None,
        "reason": "exit",
        "message": "",
        "left": [],
        "duration_ms": 1,
        "stdout": None,
        "stderr": None,
    }
    return CmdEnded(**{**fields, **changes})


def b64(size: int) -> str:
    return base64.b64encode(bytes(size)).decode()


def test_an_outcome_of_the_largest_size_is_taken() -> None:
    kept = Kept(b64(HEAD_BYTES), b64(TAIL_BYTES), HEAD_BYTES + TAIL_BYTES + 5, 5)
    told = outcome(ended(stdout=kept, code=255, message="m" * 10_000))
    assert told.stdout is not None
    assert (len(told.stdout.head), len(told.stdout.tail), told.stdout.dropped) == (HEAD_BYTES, TAIL_BYTES, 5)
    assert len(told.message) == 4096


@pytest.mark.parametrize(
    "changes",
    [
        {"code": -1},
        {"code": 256},
        {"code": None, "signal": 0},
        {"code": None, "signal": 65},
        {"duration_ms": -1},
        {"left": [0]},
        {"left": [-1]},
        {"stdout": Kept(b64(HEAD_BYTES + 1), "", HEAD_BYTES + 1, 0)},
        {"stderr": Kept("", b64(TAIL_BYTES + 1), TAIL_BYTES + 1, 0)},
        {"stdout": Kept(b64(2), "", 3, 0)},
        {"stdout": Kept(b64(2), "", 1, -1)},
        {"stdout": Kept("a", "", 0, 0)},
        {"stdout": Kept("aGk=\n", "", 2, 0)},
        {"stdout": Kept("ä", "", 0, 0)},
    ],
)
def test_what_cannot_have_been_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        outcome(ended(**changes))


def test_base64_is_strict_and_bounded() -> None:
    assert decode("aGk=", 2) == b"hi"
    assert decode("", 0) == b""
    for text in ("aGk=", "aGk", "aG k=", "aGk=aGk=", "\ud800"):
        with pytest.raises(RemoteProtocolError):
            decode(text, 1)
