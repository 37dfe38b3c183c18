"""Agent loops for tests of the guest: what starts one, a host that answers its asks, and loops that were taken over."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from ringfence.wire.framing import decode
from tests.support.guest_rig import PYTHON, Host


def message(cursor: int, text: str = "do it", author: str = "alice") -> dict[str, Any]:
    return {"role": "user", "author": author, "text": text, "cursor": cursor, "attachments": []}


def start(run: str, token: str = "t1", checkpoint: str | None = None, text: str = "do it") -> dict[str, Any]:
    """The parameters of run.start, for a turn whose message has the cursor 1."""
    return {
        "run": run,
        "token": token,
        "thread": "thr",
        "actor": "alice",
        "epoch": 1,
        "summary": None,
        "messages": [message(1, text)],
        "earlier": 0,
        "steers": [],
        "checkpoint": checkpoint,
        "next_step": 1,
        "model": "scripted",
        "window": 100_000,
        "tools": [],
        "posture": "You are alone.",
    }


class Runs:
    """Answers the asks of loops as a host would: `replies` of the model in turn, steps journaled by number."""

    def __init__(self, host: Host, replies: list[dict[str, Any]]) -> None:
        self.host = host
        self.replies = replies
        self.said: list[tuple[str, str, dict[str, Any]]] = []
        self.checkpoints: list[dict[str, Any]] = []
        self.journal: dict[int, dict[str, Any]] = {}
        self.finished: dict[str, dict[str, Any]] = {}
        self.models: dict[str, int] = {}
        self.steers: list[dict[str, Any]] = []  # what was said to the turn

    def next(self, seconds: float = 10) -> tuple[str, dict[str, Any]]:
        self.host.until(lambda: self.host.asks, seconds)
        run, frame = self.host.asks.pop(0)
        return run, decode(frame)

    def answer(self) -> str:
        """One ask; its method."""
        run, ask = self.next()
        method, p = ask["m"], ask["p"]
        self.said.append((run, method, p))
        result: dict[str, Any] = getattr(self, "_" + method.replace(".", "_"))(run, p)
        self.host.to_loop(run, {"re": ask["id"], "ok": result})
        return str(method)

    def until_finished(self, *runs: str) -> None:
        while not set(runs) <= set(self.finished):
            self.answer()

    def _model_generate(self, run: str, p: dict[str, Any]) -> dict[str, Any]:
        turn = self.models[run] = self.models.get(run, -1) + 1
        return self.replies[turn]

    def _step_begin(self, run: str, p: dict[str, Any]) -> dict[str, Any]:
        if p["tool"] == "shell":
            return {
                "decision": "done",
                "result": {"ok": True, "stdout": f"ran {p['arguments']['command']}"},
                "reason": "",
            }
        if p["n"] in self.journal:
            return {"decision": "done", "result": self.journal[p["n"]], "reason": ""}
        return {"decision": "run", "result": None, "reason": ""}

    def _step_end(self, run: str, p: dict[str, Any]) -> dict[str, Any]:
        self.journal[p["n"]] = p["result"]
        return {}

    def _checkpoint_save(self, run: str, p: dict[str, Any]) -> dict[str, Any]:
        self.checkpoints.append(p)
        return {}

    def _run_event(self, run: str, p: dict[str, Any]) -> dict[str, Any]:
        return {}

    def _run_finish(self, run: str, p: dict[str, Any]) -> dict[str, Any]:
        more = [steer for steer in self.steers if steer["cursor"] > p["seen"]]
        if not more:
            self.finished[run] = p
        return {"steers": more}

    def _run_fail(self, run: str, p: dict[str, Any]) -> dict[str, Any]:
        self.finished[run] = p
        return {}


def calls(*tools: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    made = [{"id": f"c{n}", "name": name, "arguments": arguments} for n, (name, arguments) in enumerate(tools)]
    return {"text": "", "tool_calls": made, "stop": "tool_calls", "usage": None}


def says(text: str) -> dict[str, Any]:
    return {"text": text, "tool_calls": [], "stop": "end", "usage": None}


# --- loops that were taken over --------------------------------------------------------------------------------------


def hostile_main(body: str) -> str:
    """Source that stands for guest/loop.py: `body`, lines indented by four, has the socket to PID 1 as `sock`."""
    return f"import os, time\ndef main(sock, first):\n    sock.setblocking(True)\n    {body}\n"


def take_over(tree: Path, source: str, module: str = "loop") -> None:
    """Puts `source` in the place of a module of the guest that loops load."""
    path = tree / f"{module}.py"
    path.write_text(source)
    target = tree / f"lib/ringfence/guest/{module}.pyc"
    target.unlink()
    compiled = f"import py_compile; py_compile.compile({str(path)!r}, cfile={str(target)!r}, doraise=True)"
    subprocess.run([PYTHON, "-I", "-S", "-c", compiled], check=True)
