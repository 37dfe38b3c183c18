"""The native loop in the real guest: its file tools, a conversation too large for a frame, and what is said meanwhile."""

from __future__ import annotations

import binascii
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.guest_rig import Box, Host, built_tree, running_box
from tests.support.loop_rig import Runs, calls, message, says, start


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    with built_tree() as made:
        yield made


@pytest.fixture
def box(tree: Path) -> Iterator[Box]:
    with running_box(tree) as made:
        yield made
        assert made.process.poll() is None, made.said()


class Keeping(Runs):
    """Keeps blobs, as a store does."""

    def __init__(self, host: Host, replies: list[dict[str, Any]]) -> None:
        super().__init__(host, replies)
        self.blobs: dict[str, dict[int, bytes]] = {}

    def _blob_put(self, run: str, p: dict[str, Any]) -> dict[str, Any]:
        self.blobs.setdefault(p["blob"], {})[p["n"]] = binascii.a2b_base64(p["data_b64"])
        return {}

    def _blob_get(self, run: str, p: dict[str, Any]) -> dict[str, Any]:
        chunks = self.blobs[p["blob"]]
        data = binascii.b2a_base64(chunks[p["n"]], newline=False).decode()
        return {"data_b64": data, "size": sum(map(len, chunks.values()))}

    def whole(self, blob: str) -> bytes:
        data = b"".join(self.blobs[blob][n] for n in sorted(self.blobs[blob]))
        assert hashlib.sha256(data).hexdigest() == blob
        return data

    def shown(self) -> list[dict[str, Any]]:
        """To the model, last."""
        last = next(p for _, method, p in reversed(self.said) if method == "model.generate")
        found: list[dict[str, Any]] = json.loads(self.whole(last["blob"])) if last["blob"] else last["messages"]
        return found


def results(runs: Keeping) -> list[dict[str, Any]]:
    return [json.loads(m["text"]) for m in runs.shown() if m["role"] == "tool"]


def test_every_file_tool_works_in_the_box(box: Box) -> None:
    work = [
        calls(
            ("write", {"path": "d/a.txt", "text": "one\ntwo\n"}),
            ("edit", {"path": "d/a.txt", "old": "two", "new": "2"}),
        ),
        calls(("list", {"path": "d"}), ("search", {"text": "2"}), ("read", {"path": "/home/user/d/a.txt"})),
        calls(("read", {"path": "/etc/passwd"}), ("read", {"path": "d"}), ("read", {}), ("fly", {})),
        says("done"),
    ]
    with box.dial() as host:
        runs = Keeping(host, work)
        host.request("run.start", **start("r1"))
        runs.until_finished("r1")
    found = results(runs)
    assert [result["ok"] for result in found] == [True] * 5 + [False] * 4
    assert found[2]["entries"] == [{"name": "a.txt", "kind": "file", "bytes": 6}]
    assert [match["line"] for match in found[3]["matches"]] == [2]
    assert found[4]["text"] == "one\n2\n"
    assert (box.home / "d/a.txt").read_text() == "one\n2\n"
    assert max(p["n"] for _, method, p in runs.said if method == "step.begin") == 7, "what makes no sense is no step"


def test_a_conversation_too_large_for_a_frame_survives_its_loop(box: Box) -> None:
    """Worst-case bytes too: binary data, control characters, quotes, text beyond ASCII."""
    (box.home / "text").write_text("日本" * 20_000)
    (box.home / "quotes").write_text('\\"\x01\n' * 30_000)
    (box.home / "binary").write_bytes(bytes(range(256)) * 800)
    reads = calls(*[("read", {"path": name}) for name in ("text", "quotes", "binary")])
    window = {"window": 2_000_000}
    with box.dial() as host:
        first = Keeping(host, [reads, reads, reads])
        host.request("run.start", **start("r1") | window)
        while len([m for _, m, _ in first.said if m == "model.generate"]) < 3:
            first.answer()
        assert first.said[-1][2]["blob"], "it was too large"
        before = first.shown()
        host.request("run.cancel", run="r1", grace_ms=0)
        host.until(lambda: host.loop_ends)
        host.asks.clear()
        second = Keeping(host, [says("done")])
        second.blobs, second.journal = first.blobs, first.journal
        last = first.checkpoints[-1]
        assert all(first.whole(blob) for blob in last["blobs"])
        assert len(last["state"]) < 512 * 1024
        host.request("run.start", **start("r1", "t2", last["state"]) | window)
        second.until_finished("r1")
        assert second.finished["r1"]["text"] == "done"
        assert second.shown() == before
        assert all(result["ok"] for result in results(second))


@pytest.mark.parametrize("told", [True, False])
def test_what_is_said_meanwhile_is_answered_once(box: Box, told: bool) -> None:
    steer = message(7, "and this")
    with box.dial() as host:
        runs = Keeping(host, [calls(("list", {})), says("first"), says("both")])
        host.request("run.start", **start("r1"))
        while runs.answer() != "step.begin":
            pass
        runs.steers = [steer]
        if told:
            host.request("run.steer", run="r1", message=steer)
        runs.until_finished("r1")
        assert runs.finished["r1"] == {"token": "t1", "text": "first" if told else "both", "seen": 7}
    texts = [m["text"] for m in runs.shown() if m["role"] == "user"]
    assert texts == ["alice: do it", "alice: and this"]


def test_a_loop_that_is_told_to_come_to_an_end_does(box: Box) -> None:
    with box.dial() as host:
        runs = Keeping(host, [calls(("list", {}), ("list", {})), says("so far")])
        host.request("run.start", **start("r1"))
        while runs.answer() != "model.generate":
            pass
        host.request("run.wind_down", run="r1", seconds=60)
        runs.until_finished("r1")
        assert runs.finished["r1"]["text"] == "so far"
    last = next(p for _, method, p in reversed(runs.said) if method == "model.generate")
    assert last["tools"] == []
    assert not runs.journal, "no step began"
