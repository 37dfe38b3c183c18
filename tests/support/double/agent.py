"""The double's agent: says what it was told, live and then for good.

`fail` fails, `wait` waits for a steer or the end, `restart` is tried twice, `esc` answers with what a terminal obeys.
"""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import dataclass, field
from typing import Any

from ringfence.host.kernel.ids import MessageId, RunId, TurnId
from ringfence.host.kernel.people import User
from ringfence.host.kernel.ports import Accepted
from ringfence.host.kernel.runs import REASONS, Effect, Run, RunState, Step, StepState
from ringfence.host.kernel.threads import Attachment, Message, Turn, TurnState
from tests.support.double.talks import Talk
from tests.support.double.world import World, now


@dataclass
class RunView:
    run: Run
    user: str
    thread: str
    steps: list[Step]
    detail: str = ""
    models: dict[str, Any] | None = None


@dataclass
class Work:
    """A turn that is under way."""

    talk: Talk
    user: User
    turn: TurnId
    run: RunId
    texts: list[str]
    steered: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def of(self) -> dict[str, Any]:
        return {"actor": self.user.name, "turn": self.turn, "run": self.run}


@dataclass
class Agent:
    world: World
    talks: dict[tuple[str, str], Talk] = field(default_factory=dict)
    turns: dict[str, Turn] = field(default_factory=dict)
    views: dict[str, RunView] = field(default_factory=dict)
    works: dict[str, Work] = field(default_factory=dict)  # by run, once begun

    def busy(self, talk: Talk) -> bool:
        return any(not turn.ended_at and turn.thread == talk.thread.id for turn in self.turns.values())

    async def accept(self, talk: Talk, user: User, text: str, steer: bool, files: list[Attachment]) -> Accepted:
        live = self._live(talk, user) if steer else None
        turn_id = live.turn if live else TurnId(self.world.id("trn"))
        run_id = live.run if live else RunId(self.world.id("run"))
        body: dict[str, Any] = {"text": text, "author": user.name}
        body |= {"attachments": [{"path": each.path, "size": each.size} for each in files]} if files else {}
        body |= {"steer": True} if live else {}
        cursor = await talk.event("message", body, actor=user.name, turn=turn_id, run=run_id)
        about = (talk.thread.id, turn_id, user.id, user.name)
        message = Message(MessageId(self.world.id("msg")), *about, text, cursor, now(), tuple(files))
        talk.messages.append(message)
        if live:
            live.texts.append(text)
            live.steered.set()
            return Accepted(self.turns[turn_id], self.views[run_id].run, message, False, steered=True)
        accepted = self._begin(talk, user, message, run_id)
        self._go(Work(talk, user, turn_id, run_id, [text]))
        return accepted

    def _live(self, talk: Talk, user: User) -> Work | None:
        own = [work for work in self.works.values() if work.talk is talk and work.user == user]
        return next((work for work in own if not self.turns[work.turn].ended_at), None)

    def _begin(self, talk: Talk, user: User, message: Message, run_id: RunId) -> Accepted:
        turn = Turn(
            message.turn, talk.thread.id, user.id, message.id, "lane", TurnState.RUNNING, "", None, run_id, now(), None
        )
        run = Run(
            run_id, message.turn, talk.thread.id, user.id, None, RunState.RUNNING, "", 1, 1, "w", None, "", False, None,
            0.0, now(), now(), None, False,
        )  # fmt: skip
        step = Step(
            run_id,
            1,
            "shell",
            {"command": message.text},
            "d",
            Effect.LOCAL,
            StepState.ENDED,
            {"ok": True},
            now(),
            now(),
        )
        self.turns[message.turn] = turn
        self.views[run_id] = RunView(run, user.name, talk.thread.name, [step])
        return Accepted(turn, run, message, False)

    def _go(self, work: Work) -> None:
        self.works[work.run] = work
        work.task = asyncio.create_task(self._work(work))

    async def _work(self, work: Work) -> None:
        talk, text = work.talk, work.texts[0]
        await talk.event("run.started", {"attempt": 1}, **work.of)
        if text == "restart":
            await self._live_text(work, "not yet ")
            await talk.event("run.redriven", {"attempt": 2}, **work.of)
        await talk.event("step.begun", {"n": 1, "tool": "shell"}, **work.of)
        await talk.event("step.ended", {"n": 1, "ok": True}, **work.of)
        if text == "wait":
            await work.steered.wait()
        if text == "fail" and self.views[work.run].run.attempts == 1:
            detail = {"code": "diverged", "message": "step 1 was \x1b[2Jsomething else"}
            await talk.event("run.detail", detail, **work.of)
            await self.end(work, TurnState.FAILED, "diverged", None)
            return
        reply = "\x1b[2Jcleared\u202e" if text == "esc" else f"you said: {', '.join(work.texts)}"
        await self._live_text(work, reply)
        await self.end(work, TurnState.COMPLETED, "", reply)

    async def _live_text(self, work: Work, text: str) -> None:
        await asyncio.sleep(0.03)  # as the fastest loop and model take
        about = {"run": work.run, "turn": work.turn}
        work.talk.publish(work.user.id, {"kind": "progress", **about, "text": "thinking"})
        for piece in (text[:4], text[4:]):
            work.talk.publish(work.user.id, {"kind": "delta", **about, "call": 1, "text": piece})

    async def end(self, work: Work, state: TurnState, reason: str, reply: str | None) -> None:
        self.turns[work.turn] = dataclasses.replace(
            self.turns[work.turn], state=state, reply=reply, reason=reason, ended_at=now()
        )
        view = self.views[work.run]
        view.run = dataclasses.replace(view.run, state=RunState(state), reason=reason, ended_at=now())
        if reply is not None:
            await work.talk.event("reply", {"text": reply}, **work.of)
        body = {"state": str(state), "reason": reason, "message": REASONS.get(reason, "")}
        await work.talk.event("run.ended", body, **work.of)

    async def cancel(self, run: str) -> Run:
        view, work = self.views[run], self.works[run]
        if view.run.state is RunState.RUNNING:
            if work.task is not None:
                work.task.cancel()
            await self.end(work, TurnState.CANCELLED, "cancelled", None)
        return self.views[run].run

    async def redrive(self, run: str) -> Run:
        view, work = self.views[run], self.works[run]
        view.run = dataclasses.replace(view.run, state=RunState.RUNNING, reason="", attempts=2, ended_at=None)
        self.turns[work.turn] = dataclasses.replace(
            self.turns[work.turn], state=TurnState.RUNNING, reason="", ended_at=None
        )
        await work.talk.event("run.queued", {"reason": "redriven by hand"}, **work.of)
        self._go(work)
        return view.run

    async def stop(self) -> None:
        tasks = {work.task for work in self.works.values() if work.task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
