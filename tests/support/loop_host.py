"""A host for the native loop: a store that outlives loops, and a door that kills a loop before or after its n-th ask.

The model is a function of what it is shown, as a real one is not: so a run that was killed anywhere must end alike.
"""

from __future__ import annotations

import binascii
import hashlib
import json
from collections.abc import Callable
from typing import Any

from ringfence.guest.loop import AskError
from ringfence.guest.native import carry_out
from ringfence.wire.messages import MAX_BLOB

Chat = dict[str, Any]
Generate = Callable[[list[Chat], list[dict[str, Any]]], dict[str, Any]]
CHUNK = 512 * 1024


class Killed(BaseException):
    """The loop's process is gone."""


def said(cursor: int, text: str, author: str = "alice", files: tuple[tuple[str, int], ...] = ()) -> dict[str, Any]:
    attachments = [{"path": path, "size": size} for path, size in files]
    role = "agent" if author == "ringfence" else "user"
    return {"role": role, "author": author, "text": text, "cursor": cursor, "attachments": attachments}


def calls(*made: tuple[str, dict[str, Any]], text: str = "") -> dict[str, Any]:
    listed = [{"id": f"c{n}", "name": name, "arguments": arguments} for n, (name, arguments) in enumerate(made)]
    return {"text": text, "tool_calls": listed, "stop": "tool_calls", "usage": None}


def shell(command: str) -> tuple[str, dict[str, Any]]:
    return "shell", {"command": command}


def says(text: str, stop: str = "end", usage: int | None = None) -> dict[str, Any]:
    counted = None if usage is None else {"input_tokens": usage, "output_tokens": 1}
    return {"text": text, "tool_calls": [], "stop": stop, "usage": counted}


def scripted(*answers: dict[str, Any]) -> Generate:
    """The next answer for each one that the turn (from `alice: go` on) shows; a summary when that is asked for."""

    def generate(messages: list[Chat], tools: list[dict[str, Any]]) -> dict[str, Any]:
        if is_summary(messages):
            return says(f"SUMMARY of {len(messages) - 2}")
        turn = messages[[m["text"] for m in messages].index("alice: go") :]
        given: int = sum(m["role"] == "assistant" or m["text"].startswith("[You came to an end") for m in turn)
        return answers[min(given, len(answers) - 1)]

    return generate


def is_summary(messages: list[Chat]) -> bool:
    return "Write a summary" in messages[-1]["text"]


class LoopHost:
    """`thread`: messages before the turn's own; the newest `tail` of them are in run.start. `steers`: (n, message, m):
    said while the model is called for the n-th time, and told to the loop during the m-th call, 0 for never."""

    def __init__(
        self,
        generate: Generate,
        *,
        thread: list[dict[str, Any]] | None = None,
        own: dict[str, Any] | None = None,
        steers: list[tuple[int, dict[str, Any], int]] | None = None,
        tail: int = 100,
        window: int = 100_000,
        actor: str = "alice",
        result: Callable[[int, dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        self.generate = generate
        self.thread = thread or []
        self.own = own or said(1000, "go")
        self.tail, self.window, self.actor = tail, window, actor
        self.result = result or (lambda n, arguments: {"ok": True, "n": n, "duration_ms": n * 7})
        self.tools: list[dict[str, Any]] = []  # that the host carries out
        self.summary: dict[str, Any] | None = None
        self.planned = steers or []
        self.wind_down_at = 0  # at the n-th ask of a loop
        self.soft_at = 0  # the call of the model that is in flight at the soft deadline, by its number
        self.soft = False  # it has passed: a loop that does not know is told before its call is refused
        self.knows = False  # the present loop was told
        self.turn: list[dict[str, Any]] = []  # steers in the store
        self.journal: dict[int, tuple[str, dict[str, Any], dict[str, Any] | None]] = {}
        self.checkpoint: str | None = None
        self.blobs: dict[str, dict[int, bytes]] = {}
        self.reply: str | None = None
        self.shown: list[list[Chat]] = []  # what the model was shown, call for call
        self.calls: list[int] = []  # their numbers
        self.asks: list[tuple[str, dict[str, Any]]] = []  # of the present loop
        self.events: list[str] = []
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.kill: tuple[int, bool] | None = None  # (n-th ask, whether it was carried out)
        self.errors: dict[str, list[AskError]] = {}  # method -> what the next asks are answered with

    # --- a loop

    def start(self) -> dict[str, Any]:
        after = self.summary["cursor"] if self.summary else 0
        open_ = [m for m in self.thread if m["cursor"] > after]
        shown = open_[-self.tail :] if self.tail else []
        earlier = (shown[0]["cursor"] if shown else self.own["cursor"]) if len(shown) < len(open_) else 0
        ended = [n for n, step in self.journal.items() if step[2] is not None]
        return {
            "actor": self.actor,
            "summary": self.summary,
            "messages": [*shown, self.own],
            "earlier": earlier,
            "steers": list(self.turn),
            "checkpoint": self.checkpoint,
            "next_step": max(ended, default=0) + 1,
            "model": "m",
            "window": self.window,
            "tools": self.tools,
            "posture": "POSTURE",
        }

    def attempt(self, kill: tuple[int, bool] | None = None) -> bool:
        """One loop from run.start on; False when it was killed."""
        self.kill, self.asks, self.told, self.knows = kill, [], [], False
        start = json.loads(json.dumps(self.start()))
        try:
            carry_out(start, self)
        except Killed:
            return False
        return True

    def news(self) -> list[tuple[str, dict[str, Any]]]:
        told, self.told = self.told, []
        return told

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        p = json.loads(json.dumps(params, allow_nan=False))
        self.asks.append((method, p))
        n = len(self.asks)
        if n == self.wind_down_at:
            self.told.append(("wind_down", {"seconds": 60}))
        if self.kill == (n, False):
            raise Killed
        if self.errors.get(method):
            raise self.errors[method].pop(0)
        try:
            answer: dict[str, Any] = getattr(self, "_" + method.replace(".", "_"))(p)
        finally:
            if self.kill == (n, True):
                raise Killed
        return json.loads(json.dumps(answer))  # type: ignore[no-any-return]

    # --- asks

    def _model_generate(self, p: dict[str, Any]) -> dict[str, Any]:
        assert self.checkpoint is not None or p["call"] == 1, (
            "but for the first time the model is asked from a checkpoint"
        )
        self._in_time(p)
        messages = json.loads(self._whole(p["blob"])) if p["blob"] else p["messages"]
        assert not (p["blob"] and p["messages"])
        assert len(json.dumps(p)) < 1024 * 1024 - 64 and json.dumps(p).count('":') < 10_000
        pairs(messages)
        self.shown.append(messages)
        self.calls.append(p["call"])
        now = len(self.shown)
        self.turn += [message for n, message, _ in self.planned if n == now]
        self.told += [("steer", {"message": message}) for _, message, m in self.planned if m == now] * 2
        return self.generate(messages, p["tools"])

    def _in_time(self, p: dict[str, Any]) -> None:
        """As the server does: past the soft deadline no call with tools reaches the model, and none is in flight."""
        passes = 0 < self.soft_at <= p["call"] and not self.soft
        self.soft = self.soft or passes
        if passes or (self.soft and p["tools"] and not self.knows):
            self.told.append(("wind_down", {"seconds": 60}))
            self.knows = True
            raise AskError("unavailable", "the soft deadline")

    def _step_begin(self, p: dict[str, Any]) -> dict[str, Any]:
        n = p["n"]
        assert n <= len(self.journal) + 1, "steps have no gaps"
        known = self.journal.setdefault(n, (p["tool"], p["arguments"], None))
        assert known[:2] == (p["tool"], p["arguments"]), "diverged"
        if known[2] is None and p["effect"] != "local":
            return {"decision": "run", "result": None, "reason": ""}
        result = known[2] or self.result(n, p["arguments"])
        self.journal[n] = (*known[:2], result)
        return {"decision": "done", "result": result, "reason": ""}

    def _step_end(self, p: dict[str, Any]) -> dict[str, Any]:
        tool, arguments, result = self.journal[p["n"]]
        self.journal[p["n"]] = (tool, arguments, result or p["result"])
        return {}

    def _checkpoint_save(self, p: dict[str, Any]) -> dict[str, Any]:
        assert len(json.dumps(p["state"])) <= 512 * 1024
        for blob in p["blobs"]:
            self._whole(blob)
        self.blobs = {blob: chunks for blob, chunks in self.blobs.items() if blob in p["blobs"]}
        self.checkpoint = p["state"]
        return {}

    def _blob_put(self, p: dict[str, Any]) -> dict[str, Any]:
        data = binascii.a2b_base64(p["data_b64"], strict_mode=True)
        assert p["size"] <= MAX_BLOB
        assert len(data) == min(CHUNK, p["size"] - p["n"] * CHUNK)
        self.blobs.setdefault(p["blob"], {}).setdefault(p["n"], data)
        return {}

    def _blob_get(self, p: dict[str, Any]) -> dict[str, Any]:
        data = binascii.b2a_base64(self.blobs[p["blob"]][p["n"]], newline=False).decode()
        return {"data_b64": data, "size": sum(map(len, self.blobs[p["blob"]].values()))}

    def _whole(self, blob: str) -> bytes:
        data = b"".join(part for _, part in sorted(self.blobs[blob].items()))
        assert hashlib.sha256(data).hexdigest() == blob, "not whole"
        return data

    def _thread_read(self, p: dict[str, Any]) -> dict[str, Any]:
        older = [m for m in self.thread if m["cursor"] < p["before"]]
        return {"messages": older[-p["limit"] :], "more": len(older) > p["limit"]}

    def _thread_summarise(self, p: dict[str, Any]) -> dict[str, Any]:
        assert p["cursor"] in [m["cursor"] for m in self.thread if m["cursor"] < self.own["cursor"]]
        assert len(p["text"].encode()) <= 64 * 1024
        if self.summary is None or p["cursor"] > self.summary["cursor"]:
            self.summary = {"cursor": p["cursor"], "text": p["text"]}
        return {}

    def _run_event(self, p: dict[str, Any]) -> dict[str, Any]:
        self.events.append(p["text"])
        return {}

    def _run_finish(self, p: dict[str, Any]) -> dict[str, Any]:
        behind = [m for m in self.turn if m["cursor"] > p["seen"]]
        if not behind:
            assert self.reply in (None, p["text"]), "finished twice, with another text"
            self.reply = p["text"]
        return {"steers": behind}


def pairs(messages: list[Chat]) -> None:
    """Every call has its result right behind it, in order, and no result is without its call."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert waiting and waiting.pop(0) == message["tool_call_id"]
        else:
            assert not waiting, "a call without a result"
            waiting = [call["id"] for call in message["tool_calls"]]
    assert not waiting
