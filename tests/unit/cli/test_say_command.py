"""What `say` leaves to copy: commands that speak for the same user, in the same tenant."""

from __future__ import annotations

from typing import Any

import pytest

from ringfence.cli.options import again
from ringfence.cli.say_command import _left, _print

FAILED: dict[str, Any] = {
    "reply": "",
    "status": "failed",
    "gates": [],
    "reason": "loop_failed",
    "why": "",
    "run": "run_1",
}
ACCEPTED = {"thread": "t", "turn": "trn_1", "run": "run_1", "message": "msg_1"}
WHOM = [
    (again(None, "default"), ""),
    (again("alice", "default"), " --as alice"),
    (again("alice", "acme"), " --as alice --tenant acme"),
    (again(None, "a b"), " --tenant 'a b'"),
]


@pytest.mark.parametrize(("own", "said"), WHOM)
def test_the_command_to_copy(own: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    _print(FAILED, own)
    _left(ACCEPTED, "t", own, False)
    _left(None, "t", own, False)
    shown = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert f"see: ringfence run show run_1{said}" in shown
    assert f"cancel it: ringfence run cancel run_1{said}" in shown
    assert f"see: ringfence events t{said}" in shown
