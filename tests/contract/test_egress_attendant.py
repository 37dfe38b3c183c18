"""What the server makes of a worker's last words, and what it says when it cannot answer: with the real audit."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter as Count
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ringfence.host.egress.attendant import MOST, Attendant, Counters
from ringfence.host.egress.chores import Chores
from ringfence.host.egress.holds import OpenHolds
from ringfence.host.egress.packets import Malformed
from ringfence.host.egress.site import Home
from ringfence.host.egress.tally import Tally
from ringfence.host.kernel.audit import Lane
from ringfence.host.kernel.auditing import Audit
from ringfence.host.kernel.errors import DiskFull, Failed, NotFound, RingfenceError, Unavailable
from ringfence.host.kernel.outward import renewing
from ringfence.host.kernel.outward.credentials import Binding
from ringfence.host.kernel.outward.ports import Invoker
from ringfence.host.kernel.outward.rules import EgressRule, Verdict
from ringfence.host.kernel.outward.spelled import rule_to_json
from tests.support.audit_rig import Audited
from tests.support.clocks import CountingIds, HandClock

BOX = "b" * 16
WHO = Invoker("ten_1", "usr_1", BOX, "x/1")  # type: ignore[arg-type]
WRITE = {"invocation": "inv_1", "credential": "", "binding": "", "host": "api.test", "port": 443, "method": "POST"}
SECRET = {"n": 1, "credential": "crd_1", "binding": "bnd_1", "invocation": "inv_1", "host": "api.test", "method": "GET"}
INSIDE = "cannot be read: /etc/ringfence/vault.key: SELECT data FROM credentials WHERE id = 'crd_1'"


@dataclass
class Sealed:
    """ports.Releases that has nothing to give."""

    error: Exception = field(default_factory=lambda: Unavailable(INSIDE))
    given_back: int = 0

    async def lend(self, actor: object, wanted: object) -> Any:
        raise self.error


@dataclass
class Side:
    attendant: Attendant
    audit: Audit
    chores: Chores
    releases: Sealed
    said: list[Mapping[str, Any]]

    async def told(self, count: int) -> list[Mapping[str, Any]]:
        async with asyncio.timeout(30):
            while len(self.said) < count:
                await asyncio.sleep(0.01)
        return self.said

    async def rows(self, count: int) -> list[str]:
        """Of writes that are begun."""
        for number in range(1, count + 1):
            self.attendant.asked("intent", {**WRITE, "n": number, "path": "/w"})
        return [each["row"] for each in await self.told(count)]

    def end(self, row: str, status: int = 201) -> None:
        self.attendant.asked("outcome", {"row": row, "status": status, "error": "", "up": 1, "down": 1})

    async def outcomes(self) -> Count[str]:
        rows = await self.audit.page({Lane.INTENT}, None, None, 100)
        return Count(str(row["details"]["outcome"]) for row in rows if row["action"] == "outcome")


@asynccontextmanager
async def beside(folder: Path, gateway: Any = None) -> AsyncIterator[Side]:
    clock = HandClock()
    async with Audited(folder, clock).kernel() as store:
        said: list[Mapping[str, Any]] = []
        releases, chores = Sealed(), Chores()

        def spent(*_: object) -> None:
            releases.given_back += 1

        known: Any = SimpleNamespace(
            invoker=lambda _: WHO,
            model_invoker=lambda *_: WHO,
            binding=lambda _: Binding("bnd_1", "crd_1", "api.test"),
            revocations=lambda _: 0,
            spend=lambda *_: True,
            unspent=spent,
            row=lambda: True,
        )

        def say(body: Mapping[str, Any], fds: Sequence[int]) -> None:
            said.append(body)
            for fd in fds:
                os.close(fd)

        async def added(_: object) -> None: ...

        holds = OpenHolds(store.egress_rules, store.audit, clock, CountingIds(1 << 34), 0.2, added)
        counters = Counters(releases, store.audit, holds, chores, gateway)  # type: ignore[arg-type]
        home = Home(BOX, "ten_1", "usr_1")  # type: ignore[arg-type]
        yield Side(Attendant(home, counters, known, Tally(time.monotonic), say), store.audit, chores, releases, said)
        await chores.close()


@pytest.mark.parametrize("begun", [False, True], ids=["at once", "begun"])
@pytest.mark.parametrize("by", ["its worker", "the server"])
async def test_what_a_worker_says_at_its_end_is_on_record(tmp_path: Path, begun: bool, by: str) -> None:
    """A worker that is told to end says how its requests ended, and is gone in the same turn. Of one it says nothing."""
    async with beside(tmp_path) as side:
        rows = await side.rows(11)
        for row in rows[1:]:
            side.end(row)
        if begun:
            await asyncio.sleep(0)
        if by == "its worker":
            await side.attendant.over()
        else:  # that stops at this moment
            side.chores.go(side.attendant.over(), "end", last=True)
            await side.chores.close()
        assert await side.outcomes() == {"done": 10, "unknown": 1}


async def test_an_end_that_the_audit_does_not_take_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with beside(tmp_path) as side:
        rows = await side.rows(3)
        with monkeypatch.context() as patched:

            async def full(*_: object) -> None:
                raise DiskFull("no room")

            patched.setattr(side.audit, "outcome", full)
            side.end(rows[0])
            async with asyncio.timeout(30):
                while side.attendant._recording:
                    await asyncio.sleep(0.01)
        side.end(rows[1])
        await side.attendant.over()
        assert await side.outcomes() == {"done": 1, "unknown": 2}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (NotFound(INSIDE), "revoked"),
        (Unavailable(INSIDE), "cannot be reached"),
        (DiskFull(INSIDE), "cannot be reached"),
        (Unavailable(INSIDE, remedy=renewing.OWNER), "signs in anew"),
        (Unavailable(INSIDE, remedy=renewing.LATER), "try again in a minute"),
        (Failed(INSIDE), "secret set"),
        (KeyError(INSIDE), "a fault of the server"),
    ],
)
async def test_why_there_is_no_value_says_nothing_of_the_host(
    tmp_path: Path, error: Exception, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And it is said whatever the error is, with the use given back. The log has all of it, but of a fault of ours."""
    async with beside(tmp_path) as side:
        side.releases.error = error
        side.attendant.asked("secret", {**SECRET, "path": "/"})
        [said] = await side.told(1)
        assert told in said["error"] and "/etc" not in str(said) and "SELECT" not in str(said)
        assert side.releases.given_back == 1
        assert ("/etc/ringfence" in caplog.text) == isinstance(error, RingfenceError) and "crd_1" in caplog.text


@pytest.mark.parametrize("kind", ["intent", "hold"])
async def test_what_the_audit_does_not_take_is_answered(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asked is told no at once, and not after its own deadline."""
    async with beside(tmp_path) as side:

        async def shut(*_: object) -> str:
            raise Unavailable(INSIDE)

        monkeypatch.setattr(side.audit, "record" if kind == "hold" else "intent", shut)
        rule = rule_to_json(EgressRule("", Verdict.ASK, "api.test"))
        asks = {
            "intent": {**WRITE, "n": 1, "path": "/"},
            "hold": {"n": 1, "invocation": "inv_1", "rule": rule, "query": ""},
        }
        side.attendant.asked(kind, asks[kind])
        [said] = await side.told(1)
        assert (said["n"], said["ok"]) == (1, False) and "/etc" not in str(said)


async def test_idle_connections_to_the_gateway_take_no_place_of_asks(tmp_path: Path) -> None:
    """Each of 128 connections keeps one. Control: too many asks end the worker. With its command each of them ends."""
    served: list[str] = []

    class Idle:
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, who: Any) -> None:
            served.append(who.invocation)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                served.remove(who.invocation)

    async with beside(tmp_path, Idle()) as side:
        for number in range(MOST // 2):
            ask = {"n": number, "invocation": f"inv_{number % 2}", "digest": "0" * 64}
            side.attendant.asked("model", ask)
        await side.told(MOST // 2)
        for number in range(MOST):
            side.attendant.asked("secret", {**SECRET, "n": number, "path": "/"})
        with pytest.raises(Malformed):
            side.attendant.asked("secret", {**SECRET, "path": "/"})
        await side.told(MOST // 2 + MOST)
        side.attendant.ended("inv_1")
        async with asyncio.timeout(30):
            while "inv_1" in served:
                await asyncio.sleep(0.01)
        assert len(served) == MOST // 4
        await side.attendant.over()
        assert not served
