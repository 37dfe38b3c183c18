"""Every way a turn can go wrong ends in a status that the reader of the thread understands, and in bounded time."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.installation import Installation, eventually, installation

AGAIN = {"tool_calls": [{"name": "shell", "arguments": {"command": "echo round"}}]}
SCRIPT: list[dict[str, Any]] = [
    {"when": "down", "answers": [{"error": {"code": "unavailable", "message": "the provider is down"}}]},
    {"when": "forbidden", "answers": [{"error": {"code": "refused", "message": "not this"}}]},
    {"when": "hang", "answers": [{"hang": True}]},
    {"when": "no such tool", "answers": [{"tool_calls": [{"name": "teleport", "arguments": {}}]}, {"text": "I see."}]},
    {"when": "circles", "answers": [AGAIN] * 40},
    {"when": "nothing", "answers": [{"text": ""}] * 10},
    {"when": "cut off", "answers": [{"text": "first half, ", "stop": "length"}, {"text": "second half."}]},
    {
        "when": "slow work",
        "answers": [
            {"tool_calls": [{"name": "shell", "arguments": {"command": "sleep 77.5"}}]},
            {"text": "never reached"},
        ],
    },
    {"when": "talk", "answers": [{"deltas": ["one ", "two ", "three"], "delay_seconds": 0.05}]},
]


@contextlib.contextmanager
def following(folder: Path, settings: str) -> Iterator[Installation]:
    """An installation whose model follows SCRIPT, and `ann` with a warm box."""
    script = folder / "script.json"
    script.write_text(json.dumps(SCRIPT))
    with installation(settings=f"script = {json.dumps(str(script))}\n{settings}") as made:
        made.ok("user", "add", "ann")
        made.shell("ann", "true")
        yield made


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with following(tmp_path_factory.mktemp("script"), "model_timeout_seconds = 1\n") as made:
        yield made


def ended(server: Installation, thread: str) -> dict[str, Any]:
    """The body of the one run.ended of the thread."""
    found = server.ok("events", thread, "--as", "ann", "--json").json()["events"]
    (last,) = [event["body"] for event in found if event["kind"] == "run.ended"]
    assert isinstance(last, dict)
    return last


def fails(server: Installation, text: str, limit: float = 120) -> tuple[str, str]:
    """(reason, what people read), of a turn that must fail."""
    thread = text.replace(" ", "-")
    result = server.run("say", "--as", "ann", "--thread", thread, "--json", text, limit=limit)
    answer = result.json()
    assert (result.code, answer["status"], answer["reply"]) == (1, "failed", None), answer
    body = ended(server, thread)
    assert body["reason"] == answer["reason"]
    return answer["reason"], body["message"]


def test_a_provider_that_is_down_is_tried_again_and_then_given_up(scripted: Installation) -> None:
    reason, words = fails(scripted, "down")
    assert reason == "retries_exhausted" and "3 times" in words
    events = scripted.ok("events", "down", "--as", "ann", "--json").json()["events"]
    assert [event["kind"] for event in events].count("run.redriven") == 2
    details = [event["body"] for event in events if event["kind"] == "run.detail"]
    assert any("the provider is down" in json.dumps(body) for body in details), "the actor is told why"


def test_a_failed_run_can_be_tried_again_by_hand(scripted: Installation) -> None:
    fails(scripted, "forbidden at first")  # at once: three attempts are the matter of the test before
    run = scripted.ok("run", "ls", "--json").json()["runs"][0]
    assert run["state"] == "failed"
    scripted.ok("run", "redrive", run["run"], "--as", "ann")
    eventually(lambda: scripted.ok("run", "show", run["run"], "--json").json()["state"] == "failed", 60)
    kinds = [event["kind"] for event in scripted.ok("events", "forbidden-at-first", "--json").json()["events"]]
    assert kinds.count("run.ended") == 2 and kinds.count("run.queued") == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [("forbidden", "refused"), ("circles", "loop_guard"), ("nothing", "empty_reply")],
)
def test_what_the_model_does_wrong_has_a_name(scripted: Installation, text: str, reason: str) -> None:
    found, words = fails(scripted, text)
    assert found == reason and len(words) > 15


def test_a_model_that_hangs_is_not_waited_for(scripted: Installation) -> None:
    reason, _ = fails(scripted, "hang")
    assert reason == "retries_exhausted"


def test_a_tool_that_does_not_exist_is_the_models_to_mend(scripted: Installation) -> None:
    answer = scripted.ok("say", "--as", "ann", "--thread", "tool", "--json", "no such tool").json()
    assert (answer["status"], answer["reply"]) == ("completed", "I see.")


def test_an_answer_that_was_cut_off_goes_on(scripted: Installation) -> None:
    answer = scripted.ok("say", "--as", "ann", "--thread", "cut", "--json", "cut off").json()
    assert answer["reply"].replace("\n", "") == "first half, second half."


def test_a_run_that_works_too_long_is_ended_with_its_command(tmp_path: Path) -> None:
    with following(tmp_path, "run_soft_seconds = 2\nrun_hard_seconds = 5\n") as limited:
        reason, words = fails(limited, "slow work")
        assert reason == "deadline" and "longer" in words
        eventually(lambda: limited.shell("ann", "pgrep -f '[s]leep 77.5'").code != 0, 15, "its command has ended")


def until_the_end_of_a_run(watcher: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
    assert watcher.stdout is not None
    seen: list[dict[str, Any]] = []
    for line in watcher.stdout:
        seen.append(json.loads(line))
        if seen[-1]["kind"] == "run.ended":
            return seen
    raise AssertionError(f"the watcher ended: {seen}")


def test_text_is_seen_as_it_comes_by_its_author_only(scripted: Installation) -> None:
    scripted.ok("user", "add", "ben")
    scripted.ok("thread", "add", "live", "--member", "ann", "--member", "ben")
    watchers = {u: scripted.popen("events", "live", "--as", u, "--follow", "--json") for u in ("ann", "ben")}
    scripted.ok("say", "--as", "ann", "--thread", "live", "no such tool")
    for watcher in watchers.values():  # each is there when it has seen the end of a first turn; nothing live is kept
        until_the_end_of_a_run(watcher)
    answer = scripted.ok("say", "--as", "ann", "--thread", "live", "--json", "talk").json()
    assert answer["reply"] == "one two three"
    seen = {user: until_the_end_of_a_run(watcher) for user, watcher in watchers.items()}
    for watcher in watchers.values():
        watcher.terminate()
        watcher.communicate(timeout=120)
    assert "".join(item["text"] for item in seen["ann"] if item["kind"] == "delta") == "one two three"
    assert not [item for item in seen["ben"] if item["kind"] == "delta"]
    assert [item["body"]["text"] for item in seen["ben"] if item["kind"] == "reply"] == ["one two three"]


def test_a_script_that_is_none_is_a_clear_refusal(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('[{"when": "x", "answerz": []}]')
    with installation(started=False) as made:
        (made.home / "ringfence.toml").write_text(f"script = {json.dumps(str(bad))}\n")
        result = made.run("serve", "--listen", "none", limit=30)
    assert result.code == 2 and "answers" in result.errors, result.errors
