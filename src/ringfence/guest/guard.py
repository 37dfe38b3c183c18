"""Notices a loop that goes round in circles: the same call with the same result, again and again. Pure.

How long a command took is no part of its result here: it never takes the same time twice.
"""

from ringfence.guest.asks import RunFailed
from ringfence.guest.digest import sha256
from ringfence.guest.plain_json import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TOLD_AT = 5
ENDED_AT = 8
_VARIES = "duration_ms"


def fingerprint(call: "dict[str, Any]", result: "dict[str, Any]") -> str:
    """SHA-256 of the call and its result, in hex."""
    facts = {name: value for name, value in result.items() if name != _VARIES}
    return sha256(shown([call["name"], call["arguments"], facts]).encode())


def judge(repeats: int) -> str:
    """What the model is told with the result that has come `repeats` times in a row; empty when it is fine.
    RunFailed `loop_guard`."""
    if repeats >= ENDED_AT:
        raise RunFailed("loop_guard", f"the same call had the same result {repeats} times in a row")
    if repeats >= TOLD_AT:
        return (
            f"The same call has had the same result {repeats} times in a row. Do something else, or say what keeps "
            f"you from it; at {ENDED_AT} times the work is ended."
        )
    return ""
