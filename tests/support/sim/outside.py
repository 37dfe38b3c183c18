"""The receiver of webhooks and the model, with the faults of both. What a receiver carried out is in a log that nothing takes back.

A request that is sent arrives at once or never, and a look-up's answer is final, as the contract of http.webhook asks of a receiver.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ringfence.host.kernel.canonical import sha256_json
from ringfence.host.kernel.capabilities import Capability, Sealed, Sending, Sent
from ringfence.host.kernel.errors import Failed, Refused, Unavailable
from ringfence.host.kernel.ports import ModelReply
from ringfence.host.kernel.runs import Effect, Evidence
from tests.support.oracle import EffectLog
from tests.support.sim.chance import Chance

PAY, NOTE = "http.webhook", "http.note"
WAIT = 5.0  # seconds until a sender gives up on an answer


class Receiver:
    """Carries out whatever arrives: it does not look whether a key was there before."""

    def __init__(self, log: EffectLog, chance: Chance) -> None:
        self.log, self._chance = log, chance
        self.carried: Counter[str] = Counter()
        self.down = self.forgetful = False
        self.trouble = 0.0  # share of requests that something befalls

    async def take(self, key: str) -> Sent:
        """How the sender sees it."""
        if self.down:
            await asyncio.sleep(0.01)
            return Sent(Evidence.NOT_DONE, {"error": "refused"}, retry=True)
        self.log.note("arrived", key)
        what = "ok"
        if self._chance.happens(self.trouble):
            what = self._chance.one(("lost before", "lost after", "slow", "refused"))
            self._chance.note(f"receiver: {key} {what}")
        if what == "refused" and not self.carried[key]:  # it says so of what it has never done
            return Sent(Evidence.NOT_DONE, {"status": 400}, retry=False)
        if what == "lost before":
            await asyncio.sleep(WAIT)
            return Sent(Evidence.UNKNOWN, {"error": "no answer"})
        self.log.note("carried", key)
        self.carried[key] += 1
        if what == "lost after":
            await asyncio.sleep(WAIT)
            return Sent(Evidence.UNKNOWN, {"error": "no answer"})
        await asyncio.sleep(self._chance.between(0, 4 if what == "slow" else 0.05))
        return Sent(Evidence.DONE, {"status": 200})

    async def known(self, key: str) -> Sent:
        await asyncio.sleep(self._chance.between(0, 0.05))
        if self.down or self.forgetful:
            return Sent(Evidence.UNKNOWN, {"error": "not known"})
        if self.carried[key]:
            return Sent(Evidence.DONE, {"status": 200})
        return Sent(Evidence.NOT_DONE, {}, retry=True)


class Hook:
    """kernel.capabilities.Tool."""

    def __init__(self, receiver: Receiver, name: str, effect: Effect) -> None:
        self._receiver = receiver
        self.capability = Capability(name, effect, "sends", {"type": "object"}, lookup=True)

    def wrong(self, arguments: Mapping[str, Any]) -> str:
        return ""

    def sealed(self, arguments: Mapping[str, Any]) -> Sealed:
        return Sealed(sha256_json(["one receiver"]), {"to": "the receiver"})

    async def lacks(self, arguments: Mapping[str, Any]) -> None:
        """Nothing."""

    async def send(self, sending: Sending) -> Sent:
        return await self._receiver.take(sending.key)

    async def look_up(self, sending: Sending) -> Sent:
        return await self._receiver.known(sending.key)


class SimModel:
    """kernel.ports.Model: whatever comes to mind, for at most so many tools in one run."""

    window = 1 << 20
    MOST = 3

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self.trouble = 0.0
        self._calls = 0

    async def generate(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        on_delta: Callable[[str], None],
    ) -> ModelReply:
        await asyncio.sleep(self._chance.between(0, 0.5))
        if self._chance.happens(self.trouble):
            await self._fail(on_delta)
        done = sum(1 for message in messages if message["role"] == "tool")
        if tools and done < self.MOST and self._chance.happens(0.75):
            calls = [self._call() for _ in range(self._chance.weighted(((1, 4), (2, 1))))]
            return ModelReply("", calls, "tool_calls")
        on_delta("well")
        return ModelReply("well", (), "end")

    async def _fail(self, on_delta: Callable[[str], None]) -> None:
        what = self._chance.one(("unavailable", "refused", "failed", "hangs", "truncated"))
        self._chance.note(f"model: {what}")
        if what == "hangs":
            await asyncio.sleep(10_000)
        if what == "truncated":
            on_delta("we")
        if what == "refused":
            raise Refused("the model refuses")
        raise Failed("the model failed") if what == "failed" else Unavailable("the model is not there")

    def _call(self) -> Mapping[str, Any]:
        self._calls += 1
        name, arguments = self._chance.weighted(
            (
                (("shell", {"command": f"say {self._calls}"}), 4),
                (("write", {"path": "a.txt", "text": f"{self._calls}"}), 2),
                ((PAY, {"body": {"n": self._calls}}), 4),
                ((NOTE, {"body": {"n": self._calls}}), 1),
            )
        )
        return {"id": f"c{self._calls}", "name": name, "arguments": arguments}
