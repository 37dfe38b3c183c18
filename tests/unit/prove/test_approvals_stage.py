"""The stage of the approvals: what its server is told, keys that are whole, and what it does not take for an answer."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ringfence.bench.throwaway import Installation
from ringfence.client.errors import ApiError
from ringfence.client.sync import SyncClient
from ringfence.host.kernel.policy import Policy, Verdict, decide
from ringfence.host.kernel.settings_file import parse
from ringfence.prove import approvals_stage, plans
from ringfence.prove.approvals_stage import EXPIRE_SECONDS, PLACES, Scene, pay, set_key, settings
from ringfence.prove.receiving import Receiver


@pytest.fixture
def made(tmp_path: Path) -> Installation:
    home = tmp_path / "state"
    (home / "vault").mkdir(parents=True)
    return Installation(home)


@pytest.fixture
def scene(made: Installation) -> Scene:
    return Scene(made, Receiver(9))


def test_every_call_is_asked_about(made: Installation) -> None:
    """By the product's own reading of the file: without these rules the rows would try nothing."""
    told = parse(settings(made, Receiver(9)))
    assert [hook.name for hook in told.webhook] == list(PLACES)
    assert {hook.secret_file for hook in told.webhook} == {f"{made.home.parent}/key-{place}" for place in PLACES}
    for place in PLACES:
        asked = decide(Policy(told.policy), "http.webhook", {"name": place, "body": {}}, host=True)
        assert asked.answer is Verdict.ASK
        assert asked.obligations.expire_seconds == (EXPIRE_SECONDS if place == "brief" else None)


def test_a_key_is_whole_private_and_replaced(made: Installation) -> None:
    file = made.home.parent / "key-pay"
    for key in ("a key of sixteen bytes", "another key of sixteen bytes"):
        set_key(made, "pay", key)
        assert (file.read_text(), file.stat().st_mode & 0o777) == (key, 0o600)
        assert file.stat().st_uid == (made.home / "vault").stat().st_uid
    assert [name for name in os.listdir(made.home.parent) if "key" in name] == ["key-pay"]


def test_a_key_is_written_into_nobody_elses_file(made: Installation) -> None:
    (made.home.parent / "key-pay.new").symlink_to(made.home.parent / "elsewhere")
    with pytest.raises(FileExistsError):
        set_key(made, "pay", "a key of sixteen bytes")
    assert not (made.home.parent / "elsewhere").exists()


def test_what_never_comes_is_said_in_words(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals_stage, "PATIENCE", 0.0)
    with pytest.raises(TimeoutError, match="waited 0 s for a question to alice"):
        scene.until(lambda: None, "a question to alice")
    assert scene.until(lambda: {"gate": "g"}, "it") == {"gate": "g"}


class Answers:
    """A client that is refused, or is not."""

    def __init__(self, code: str = "") -> None:
        self.code, self.said = code, [("", "")]

    def answer_gate(self, gate: str, said: str) -> None:
        self.said.append((gate, said))
        if self.code:
            raise ApiError(self.code, "no")


@pytest.mark.parametrize(("code", "came"), [("", "answered"), ("not_found", "not_found")])
def test_what_came_of_an_answer(scene: Scene, code: str, came: str) -> None:
    """Who answers is who was named: nobody else's client is used."""
    alice, operator = Answers(code), Answers("refused")
    scene._actors["alice"], scene.client = cast(SyncClient, alice), cast(SyncClient, operator)
    assert scene.answer("alice", "gat_1") == came
    assert alice.said[1:] == [("gat_1", "allow")] and operator.said[1:] == []
    assert scene.answer(None, "gat_2", "deny") == "refused"
    assert operator.said[1:] == [("gat_2", "deny")]


def test_a_call_is_told_apart_by_who_and_by_its_step() -> None:
    asked = pay("label", "alice", n=2, place="brief", card="1")
    assert (asked["label"], asked["m"], asked["repeat"]) == ("label", "step.begin", 1)
    assert asked["p"]["n"] == 2
    assert asked["p"]["arguments"] == {"name": "brief", "body": {"who": "alice", "amount": 5, "card": "1"}}


def box(data: bytes | None) -> SyncClient:
    def get_file(user: str, path: str) -> bytes:
        if data is None:
            raise ApiError("not_found", "no such file")
        return data

    return cast(SyncClient, SimpleNamespace(get_file=get_file))


@pytest.mark.parametrize(
    ("data", "seen"),
    [(None, []), (b"", []), (b'{"ask": "a"}\n', [{"ask": "a"}]), (b'{"ask": "a"}\n{"ask": "b', [{"ask": "a"}])],
)
def test_what_a_box_has_seen(data: bytes | None, seen: list[dict[str, Any]]) -> None:
    """A line under way is not taken for a whole one."""
    assert plans.seen(box(data), "alice") == seen
