"""From a command's outcome to the result of a step: text, bounded, with what was left out counted. Pure."""

from __future__ import annotations

import json
from typing import Any

from ringfence.host.kernel.ports import Kept, Outcome

# The journal takes 256 KiB of JSON for a result: two streams of 120 KiB and 16 KiB for everything else.
STREAM_JSON_BYTES = 120 * 1024
FIGURES = ("memory_limit_bytes", "memory_peak_bytes", "disk_limit_bytes", "disk_used_bytes", "timeout_seconds")
_HEAD_SHARE = 4  # a quarter of what is kept is head, the rest tail: errors come last
_MARK = "\n[... {dropped} bytes left out ...]\n"


def bounded(kept: Kept | None, limit: int = STREAM_JSON_BYTES) -> tuple[str, int]:
    """(text, bytes left out). Invalid UTF-8 becomes U+FFFD. As JSON the text has at most `limit` bytes and a marker."""
    if kept is None:
        return "", 0
    head, tail = kept.head, kept.tail
    size = limit
    while True:
        text, dropped = _joined(head, tail, kept.total)
        if len(json.dumps(text)) <= limit:
            return text, dropped
        # Escapes make up to six bytes of one, so the raw bytes are halved until it fits: at most three or four rounds.
        whole = len(head) + len(tail)
        size = min(size, whole) // 2
        head, tail = _shrink(head, tail, size)


def _shrink(head: bytes, tail: bytes, size: int) -> tuple[bytes, bytes]:
    if not tail:  # nothing had been dropped so far: the head is the whole
        head, tail = head[: size // _HEAD_SHARE], head[len(head) - (size - size // _HEAD_SHARE) :]
        return head, tail
    keep = min(len(head), size // _HEAD_SHARE)
    return head[:keep], tail[len(tail) - min(len(tail), size - keep) :]


def _joined(head: bytes, tail: bytes, total: int) -> tuple[str, int]:
    dropped = max(0, total - len(head) - len(tail))
    if dropped:
        text = head.decode("utf-8", "replace") + _MARK.format(dropped=dropped) + tail.decode("utf-8", "replace")
        return text, dropped
    return (head + tail).decode("utf-8", "replace"), 0


def shell_result(outcome: Outcome) -> dict[str, Any]:
    """What the journal keeps of a shell step. `ok`: it ran to its own end with status 0."""
    stdout, stdout_dropped = bounded(outcome.stdout)
    stderr, stderr_dropped = bounded(outcome.stderr)
    lost = outcome.reason == "box_lost"
    result: dict[str, Any] = {
        "ok": outcome.reason == "exit" and outcome.code == 0,
        "exit_code": outcome.code,
        "signal": outcome.signal,
        "reason": "interrupted" if lost else outcome.reason,
        **({"cause": "box_lost"} if lost else {}),
        "stdout": stdout,
        "stderr": stderr,
        "stdout_dropped": stdout_dropped,
        "stderr_dropped": stderr_dropped,
        "duration_ms": outcome.duration_ms,
    }
    result |= {name: value for name in FIGURES if (value := getattr(outcome, name)) is not None}
    if outcome.left:
        result["left"] = list(outcome.left)[:64]
    if outcome.message:
        result["message"] = outcome.message[:2000]
    return result


def interrupted(why: str) -> dict[str, Any]:
    """The result of a command whose end nobody knows: its box was lost. It is not run again."""
    return {**_nothing("interrupted", why), "cause": "box_lost"}


def invalid(why: str) -> dict[str, Any]:
    """The result of a call that asks for nothing that can be run."""
    return _nothing("invalid", why)


def _nothing(reason: str, why: str) -> dict[str, Any]:
    return {
        "ok": False,
        "exit_code": None,
        "signal": None,
        "reason": reason,
        "stdout": "",
        "stderr": "",
        "stdout_dropped": 0,
        "stderr_dropped": 0,
        "duration_ms": 0,
        "message": why,
    }
