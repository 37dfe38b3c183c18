"""Clients: what they say, cancel and answer, with their retries. A call whose kernel dies or does not answer is made again, under
the same key, until it has an answer; what was acknowledged is kept for the verdict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ringfence.host.engine.gates import GateView
from ringfence.host.kernel.capabilities import key_of
from ringfence.host.kernel.errors import DiskFull, RingfenceError, Unavailable
from ringfence.host.kernel.gates import Gate, GateKind
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.people import Actor
from tests.support.sim.kernel import Kernel

if TYPE_CHECKING:
    from tests.support.sim.story import Story

PATIENCE = 5.0  # seconds of one call
Call = Callable[[Kernel], Awaitable[Any]]


class People:
    def __init__(self, story: Story, actors: dict[str, Actor]) -> None:
        self._story, self.actors = story, actors
        self.acks: list[dict[str, Any]] = []
        self.texts: dict[str, int] = {}  # said under a key of its own: times that it was acknowledged
        self.runs: list[tuple[str, RunId]] = []  # acknowledged, with who said it
        self.wrong: list[str] = []
        self._said = 0

    async def called(self, call: Call, tries: int = 1000) -> Any:
        """The answer, or the RingfenceError that is one; None: nobody could be reached so often."""
        for _ in range(tries):
            kernel = await self._story.some_kernel()
            task = kernel.process.begin(_as_value(call(kernel)))
            gone = self._story.world.tasks.go(kernel.process.gone.wait())
            await asyncio.wait({task, gone}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            answer = task.result() if task.done() and not task.cancelled() else Unavailable("no answer")
            if not isinstance(answer, Unavailable | DiskFull):
                return answer
            await asyncio.sleep(self._story.chance.between(0.1, 1.5))
        return None

    async def say(self) -> None:
        chance = self._story.chance
        self._said += 1
        who = chance.one(sorted(self.actors))
        thread = chance.weighted((("#team", 3), (f"{who}-alone", 2)))
        mode = chance.weighted((("queue", 4), ("steer", 3), ("reject", 1)))
        text, key = f"text {self._said} of {who}", f"key {self._said}"
        chance.note(f"{who} says {text!r} to {thread} ({mode})")
        times = chance.weighted(((1, 3), (2, 1)))
        await asyncio.gather(*(self._one_say(who, thread, text, mode, key) for _ in range(times)))

    async def _one_say(self, who: str, thread: str, text: str, mode: str, key: str) -> None:
        actor = self.actors[who]
        said = await self.called(lambda k: k.engine.threads.say(actor, "default", thread, text, mode, key))
        if said is None or isinstance(said, RingfenceError):
            self._story.chance.note(f"{text!r}: {getattr(said, 'code', None)}")
            return
        self.acks.append({"body": {"run": said.run.id, "message": said.message.id}})
        self.texts[text] = self.texts.get(text, 0) + 1
        self.runs.append((who, said.run.id))

    async def cancel(self) -> None:
        if not self.runs:
            return
        who, run = self._story.chance.one(self.runs[-4:])
        self._story.chance.note(f"{who} cancels {run}")
        await self.called(lambda k: k.engine.runs.cancel(self.actors[who], run), 3)

    async def answer(self, *, all_of_them: bool = False) -> int:
        """Of what waits for somebody. Now and then twice, by the wrong person, or with another word. How many there were."""
        found = 0
        for who in sorted(self.actors):
            actor = self.actors[who]
            views = await self.called(lambda k, actor=actor: k.engine.gates.ls(actor, "default", [], None, 50), 3)  # type: ignore[misc]
            for view in views if isinstance(views, list) else []:
                if all_of_them or self._story.chance.happens(0.7):
                    found += 1
                    await self._decide(who, view)
        return found

    async def _decide(self, who: str, view: GateView) -> None:
        chance, gate = self._story.chance, view.gate
        word = self._word(gate)
        other = next(name for name in sorted(self.actors) if name != who)
        if chance.happens(0.2):
            got = await self.called(lambda k: k.engine.gates.answer(self.actors[other], gate.id, word, None), 3)
            if got is not None and not isinstance(got, RingfenceError):
                self.wrong.append(f"I9: {other} has answered {gate.id} of {who}")
        chance.note(f"{who} answers {gate.id} ({gate.kind.value}): {word}")
        key = f"answer {gate.id}"
        for _ in range(chance.weighted(((1, 2), (2, 1)))):
            got = await self.called(lambda k: k.engine.gates.answer(self.actors[who], gate.id, word, key))
            if got is not None and not isinstance(got, RingfenceError):
                self.acks.append({"body": {"gate": gate.id, "answer": word}})

    def _word(self, gate: Gate) -> str:
        """Of what is in doubt a person says what is true."""
        if gate.kind is not GateKind.IN_DOUBT:
            return self._story.chance.weighted((("allow", 3), ("deny", 1)))
        return "done" if self._story.receiver.carried[key_of(gate.run, gate.n, gate.digest)] else "again"


async def _as_value(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except RingfenceError as error:
        return error
