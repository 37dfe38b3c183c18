"""What group J plays: a question that does not come is an error, and never a row that held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ringfence.host.kernel import gates
from ringfence.prove import approvals_plays, approvals_stage
from ringfence.prove.approvals_stage import Json, Scene


class Silent(Scene):
    """Everything is asked and answered, and there is no gate of it."""

    def __init__(self) -> None:
        self.client = self.made = self.outside = Anything()  # type: ignore[assignment]

    def plan(self, name: str, runs: Any, wires: Any = None) -> None:
        """Nobody plays it."""

    def acting(self, name: str) -> Any:
        return Anything()

    def gates(self, name: str, *states: str) -> list[Json]:
        return []

    def answer(self, name: str | None, gate: str, said: str = "allow") -> str:
        return "not_found"

    def asked(self, name: str, label: str) -> Json:
        return {"answer": {"error": {"code": "refused"}}, "ended": True}


class Anything:
    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self

    def __len__(self) -> int:
        return 0


def _words(here: Scene) -> object:
    stage: Any = Anything()
    return approvals_plays._words(stage, here)


def _another_account(here: Scene) -> object:
    stage: Any = Anything()
    return approvals_plays._another_account(stage, here)


PLAYS = ("_flood", "_honest", "_changed", "_moved", "_reused", "_shown", "_late", "_forged")


@pytest.mark.parametrize(
    "play",
    [*(getattr(approvals_plays, name) for name in PLAYS), _words, _another_account],
    ids=[*PLAYS, "_words", "_another_account"],
)
def test_a_question_that_does_not_come_is_an_error(
    monkeypatch: pytest.MonkeyPatch, play: Callable[[Scene], object]
) -> None:
    monkeypatch.setattr(approvals_stage, "PATIENCE", 0.0)
    monkeypatch.setattr(approvals_plays, "set_key", lambda *_: None)
    monkeypatch.setattr("time.sleep", lambda _: None)
    with pytest.raises(TimeoutError):
        play(Silent())


def test_the_limit_is_the_kernels() -> None:
    """prove imports nothing of the kernel."""
    assert approvals_plays.MAX_OPEN == gates.MAX_OPEN
