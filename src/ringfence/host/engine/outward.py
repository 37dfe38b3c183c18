"""The way out of boxes, around their starts and commands. Without egress (Parts.egress) there is none, and nothing of it is said.

Only homes have one; whose they are is what their rows say, which callers have proven. Must never let a command start whose
placeholders are of another user's box.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.boxes import Box, BoxKind
from ringfence.host.kernel.errors import RingfenceError, Unavailable
from ringfence.host.kernel.ids import BoxId, RunId, TenantId, UserId
from ringfence.host.kernel.outward.ports import Invoker
from ringfence.host.kernel.ports import Command, CommandSpec

OPENED_SECONDS = 20.0  # that a command waits for its box's way out; it takes some ms


class Outward:
    def __init__(self, parts: Parts) -> None:
        self._egress = parts.egress
        self._homes: dict[BoxId, tuple[TenantId, UserId] | None] = {}  # opened; None: without a way out, not a home
        self._early: dict[BoxId, set[str]] = {}  # commands that ended since the hello of a box that is not open yet
        self._yet: dict[BoxId, asyncio.Event] = {}  # boxes that are yet to be opened
        self._let_go = False
        self._log = logging.getLogger("ringfence.engine")

    async def provisioned(self, box: Box) -> None:
        """What its first start would wait for: making a user's CA takes some fsyncs. Never raises: the start tries again."""
        try:
            await self.before(box)
        except RingfenceError as error:
            self._log.warning("the way out of box %s: %s", box.id, error)

    async def before(self, box: Box) -> None:
        """It is to be started: it trusts its user's CA then."""
        if self._egress is not None and box.kind is BoxKind.HOME:
            await self._egress.prepare(box.id, box.tenant, box.user)

    async def opened(self, box: Box, keys: Collection[str], *, fresh: bool) -> None:
        """It runs: its listeners are there when this returns. `keys`: of the commands that run in it. `fresh`: it was started
        anew, so that what is remembered is of what ran before."""
        self._yet.setdefault(box.id, asyncio.Event())
        try:
            await self._opened(box, keys, fresh=fresh)
        finally:
            self._decided(box.id)

    async def _opened(self, box: Box, keys: Collection[str], *, fresh: bool) -> None:
        if self._egress is None:
            return
        if box.kind is not BoxKind.HOME:
            self._homes[box.id] = None
            self._early.pop(box.id, None)
            return
        if fresh:
            await self._egress.close(box.id)
        self._homes[box.id] = (box.tenant, box.user)
        await self._egress.open(box.id, box.tenant, box.user, keys)
        for key in self._early.pop(box.id, ()):  # `keys` are of the hello, which was before
            self._egress.end(box.id, key)

    def greeted(self, box: BoxId, keys: Collection[str]) -> None:
        """A hello. `keys`: of the commands that run in the box: what was of any other is over, whoever waited for its end."""
        if self._egress is None:
            return
        if box in self._early or box not in self._homes:  # it is yet to be opened
            self._early[box] = set()
            self._yet.setdefault(box, asyncio.Event())
        self._egress.keep(box, keys)

    async def closed(self, box: BoxId) -> None:
        """It stops, or is gone. Never raises."""
        self._early.pop(box, None)
        self._decided(box)
        if self._egress is None or self._homes.pop(box, None) is None:
            return
        try:
            await self._egress.close(box)
        except RingfenceError as error:
            self._log.error("the way out of box %s: %s", box, error)

    async def paused(self, box: BoxId) -> None:
        """It is to stand still: before its freeze, which would kill the worker. Its commands keep ports and placeholders; whoever
        begins one waits until it is `opened`, also where the freeze fails, or `closed`. Never raises."""
        if self._egress is None or self._homes.get(box) is None:
            return
        self._yet.setdefault(box, asyncio.Event())
        try:
            await self._egress.suspend(box)
        except RingfenceError as error:
            self._log.error("the way out of box %s: %s", box, error)

    async def equipped(
        self,
        box: BoxId,
        key: str,
        spec: CommandSpec,
        run: RunId | None = None,
        epoch: int = 0,
        own: Collection[str] = (),
    ) -> CommandSpec:
        """The command with its way out in its environment, but for variables that are its `own`; the same one when its box has
        none. Of one that is yet to be opened, as after a start of the server or a pause, it waits for that. Unavailable: the box was closed
        meanwhile. Conflict: too many commands of it run."""
        if (yet := self._yet.get(box)) is not None:
            try:
                async with asyncio.timeout(OPENED_SECONDS):
                    await yet.wait()
            except TimeoutError:
                raise Unavailable(f"the way out of box {box} does not open", remedy="try again") from None
        home = self._homes.get(box)
        if self._egress is None or home is None:
            return spec
        begun = await self._egress.begin(Invoker(*home, box, key, run, epoch))
        return replace(spec, env={**spec.env, **_encoded(begun.environment, own)})

    def _decided(self, box: BoxId) -> None:
        """Whether it has a way out: nobody waits for that any more."""
        if (yet := self._yet.pop(box, None)) is not None:
            yet.set()

    def attend(self, box: BoxId, key: str, command: Command) -> None:
        """Its end ends its way out, whoever waits for that, or nobody."""
        if self._egress is not None:
            command.on_end(lambda: self.over(box, key))

    def over(self, box: BoxId, key: str) -> None:
        """The command has ended. Idempotent."""
        if self._egress is None or self._let_go:
            return
        if (early := self._early.get(box)) is not None:
            early.add(key)
        self._egress.end(box, key)

    def let_go(self) -> None:
        """The server ends: a command that is lost from now on is lost to this server alone. What has ended, the next one's first
        hello says."""
        self._let_go = True

    async def stop(self) -> None:
        if self._egress is not None:
            await self._egress.stop()


def _encoded(environment: Mapping[str, str], own: Collection[str]) -> dict[str, bytes]:
    return {name: value.encode() for name, value in environment.items() if name not in own}
