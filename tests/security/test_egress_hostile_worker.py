"""A worker that is the box's by now: what the server gives it of what it asks, over a real control socket.

Each attack has its control: the honest ask beside it, which is answered.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.egress.attendant import Attendant, Counters
from ringfence.host.egress.channel import Channel
from ringfence.host.egress.chores import Chores
from ringfence.host.egress.control import MAX_PACKET
from ringfence.host.egress.hearing import KINDS
from ringfence.host.egress.holds import OpenHolds
from ringfence.host.egress.site import Home
from ringfence.host.egress.tally import Tally
from ringfence.host.kernel.audit import Lane
from ringfence.host.kernel.boxes import Limits
from ringfence.host.kernel.outward.credentials import Binding, Use
from ringfence.host.kernel.outward.ports import Invoker
from ringfence.host.kernel.outward.rules import EgressRule, Verdict
from ringfence.host.kernel.outward.spelled import rule_to_json
from ringfence.host.vault.release import Counter
from tests.support.clocks import CountingIds
from tests.support.store import Team, a_team, newest
from tests.support.vault_rig import CANARY, a_vault, put_key, stored

HONEST = {"t": "secret", "n": 1, "invocation": "inv_1", "host": "api.test", "method": "GET", "path": "/"}


@dataclass
class Known:
    """The configuration of alice's box."""

    bindings: dict[str, Binding]
    live: dict[str, Invoker]
    looks: int = 0
    rows: int = 1000  # that the box may make
    moving: bool = False  # a revocation comes between any two looks

    def binding(self, identifier: str) -> Binding | None:
        return self.bindings.get(identifier)

    def invoker(self, invocation: str) -> Invoker | None:
        return self.live.get(invocation)

    def model_invoker(self, invocation: str, digest: str) -> Invoker | None:
        return None

    def spend(self, invocation: str, binding: str) -> bool:
        return True

    def unspent(self, invocation: str, binding: str) -> None:
        pass

    def row(self) -> bool:
        self.rows -= 1
        return self.rows >= 0

    def revocations(self, credential: str) -> int:
        self.looks += self.moving
        return self.looks


@dataclass
class Side:
    team: Team
    worker: socket.socket
    channel: Channel
    known: Known
    credential: str
    foreign: str  # bob's credential

    async def say(self, **body: Any) -> None:
        await asyncio.get_running_loop().sock_sendall(self.worker, json.dumps(body).encode())

    async def heard(self) -> dict[str, Any]:
        async with asyncio.timeout(10):
            data = await asyncio.get_running_loop().sock_recv(self.worker, MAX_PACKET)
        found: dict[str, Any] = json.loads(data) if data else {}
        return found

    async def asked(self, **body: Any) -> dict[str, Any]:
        await self.say(**body)
        return await self.heard()

    def honest(self) -> dict[str, Any]:
        return {**HONEST, "credential": self.credential, "binding": "bnd_a"}


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Side]:
    put_key(folder)
    async with a_team(folder) as t:
        vault = await a_vault(folder, t.store)
        mine, theirs = await stored(t, vault), await stored(t, vault, "other", user=t.bob, number=7)
        box = await t.store.boxes.home_of(t.alice, "d", Limits())
        who = Invoker(t.tenant.id, t.alice.id, box.id, "x/1")
        nobody = Invoker(t.tenant.id, t.alice.id, box.id, "")
        bound = await t.store.credentials.bind(t.alice.id, Binding("bnd_a", mine.id, "api.test"))
        known = Known({"bnd_a": bound}, {"inv_1": who, "": nobody})
        chores = Chores()

        async def added(_: str) -> None:
            pass

        holds = OpenHolds(t.store.egress_rules, t.store.audit, t.clock, CountingIds(1 << 34), 0.2, added)
        counters = Counters(Counter(vault, t.store.credentials, t.store.audit), t.store.audit, holds, chores)
        ours, worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        worker.setblocking(False)
        held: list[Attendant] = []
        channel = Channel(ours.detach(), lambda kind, said: held[0].asked(kind, said))
        tally = Tally(asyncio.get_running_loop().time)
        held.append(Attendant(Home(box.id, t.tenant.id, t.alice.id), counters, known, tally, channel.say))
        try:
            yield Side(t, worker, channel, known, mine.id, theirs.id)
        finally:
            channel.close("over")
            await held[0].over()
            await chores.close()
            worker.close()


@pytest.mark.parametrize(
    "lie",
    [
        {"credential": "foreign"},
        {"binding": "bnd_zzz"},
        {"invocation": "inv_2"},
        {"invocation": ""},
        {"host": "evil.test"},
        {"credential": "foreign", "binding": ""},
    ],
)
async def test_only_what_the_configuration_names_is_given(tmp_path: Path, lie: dict[str, str]) -> None:
    async with opened(tmp_path) as side:
        named = {k: side.foreign if v == "foreign" else v for k, v in lie.items()}
        said = await side.asked(**{**side.honest(), **named})
        assert said["n"] == 1 and said["error"] and "value" not in said
        assert await side.team.store.audit.page({Lane.RELEASE}, None, None, 9) == []
        said = await side.asked(**side.honest())  # the control
        assert base64.b64decode(said["value"]) == CANARY
        [row] = await side.team.store.audit.page({Lane.RELEASE}, None, None, 9)
        assert row["details"]["invocation"] == "inv_1" and CANARY.decode() not in str(row)


async def test_what_is_mounted_or_revoked_meanwhile_is_not_given(tmp_path: Path) -> None:
    async with opened(tmp_path) as side:
        side.known.bindings["bnd_a"] = Binding("bnd_a", side.credential, "api.test", use=Use.MOUNTED)
        assert "error" in await side.asked(**side.honest())
        side.known.bindings["bnd_a"] = Binding("bnd_a", side.credential, "api.test")
        side.known.moving = True
        assert "error" in await side.asked(**side.honest())
        side.known.moving = False
        assert "value" in await side.asked(**side.honest())


@pytest.mark.parametrize(
    "packet",
    [
        b"no json",
        b"[]",
        b"{}",
        b'{"t": "unknown"}',
        b'{"t": "secret", "n": true}',
        b'{"t": "intent", "n": 1, "invocation": "inv_1", "port": 70000}',
        b'{"t": "done", "seq": 9}',
        b'{"t": "traffic", "items": [1], "dropped": 0}',
        b'{"t": "finding", "kind": "../../x", "invocation": "", "details": {}}',
        b'{"t": "hold", "n": 1, "invocation": "inv_1", "rule": {"host": "*"}}',
        b'{"t": "hold", "n": 1, "invocation": "inv_1", "query": "", "rule": {"id": "", "answer": "allow", "host": ["*"]}}',
        b'{"t": "hold", "n": 1, "invocation": "inv_1", "query": "", "rule": {"id": "", "answer": "allow", "host": "a", "ports": [true]}}',
        b'{"t": "outcome", "row": "\\u0000", "status": 200, "error": "", "up": 0, "down": 0}',
        b'{"t": "ending", "why": "x\\u001b[2J\\nroot logged in"}',
        b'{"t": "finding", "kind": "authority_mismatch", "invocation": "", "details": {"host": "a\\u0007"}}',
        b'{"t": "idle", "names": []}',
        b'{"t": "rested", "names": []}',  # nobody told it to rest
        b'{"t": "rested", "names": [["API.test", "198.18.0.1"]]}',
        b'{"t": "rested", "names": [["api.test", "198.18.0.1", ""]]}',
        b'{"t": "rested", "names": [["198.18.0.2", "198.18.0.1"]]}',
        b'{"t": "rested", "names": {"api.test": "198.18.0.1"}}',
        b"x" * (MAX_PACKET + 1),
    ],
)
async def test_what_breaks_a_rule_of_the_socket_ends_it(tmp_path: Path, packet: bytes) -> None:
    async with opened(tmp_path) as side:
        assert "value" in await side.asked(**side.honest())  # the control: it was not ended before
        await asyncio.get_running_loop().sock_sendall(side.worker, packet)
        async with asyncio.timeout(10):
            why = await asyncio.shield(side.channel.closed)
        assert why and why.isprintable()  # it goes to a log
        assert await side.heard() == {}


async def test_descriptors_of_a_worker_are_not_taken(tmp_path: Path) -> None:
    async with opened(tmp_path) as side:
        with socket.socket() as other:
            socket.send_fds(side.worker, [json.dumps(side.honest()).encode()], [other.fileno()])
        async with asyncio.timeout(10):
            assert "too long" in await asyncio.shield(side.channel.closed)


async def test_a_flood_ends_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as side:
        packet = json.dumps({"t": "traffic", "items": [], "dropped": 0}).encode()
        loop = asyncio.get_running_loop()
        with pytest.raises(OSError):
            for _ in range(40_000):
                await loop.sock_sendall(side.worker, packet)
        assert "more packets" in side.channel.closed.result()


async def test_evidence_is_of_this_workers_rows_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as side:
        audit = side.team.store.audit
        foreign = await audit.intent(None, "egress.request", "box:other", {})
        ended = {"t": "outcome", "status": 200, "error": "", "up": 1, "down": 2}
        await side.say(**ended, row=foreign)
        ask = {"t": "intent", "n": 4, "invocation": "inv_1", "credential": "", "binding": "", "host": "api.test"}
        said = await side.asked(**ask, port=443, method="POST", path="/p")
        assert said["ok"] and said["row"] != foreign
        await side.say(**ended, row=said["row"])
        async with asyncio.timeout(10):
            while not await audit.outcomes(said["row"]):
                await asyncio.sleep(0.01)
        assert await audit.outcomes(foreign) == []


async def test_a_hold_asks_for_no_more_than_a_rule_of_the_user(tmp_path: Path) -> None:
    async with opened(tmp_path) as side:
        rule = EgressRule("rul_1", Verdict.ASK, "api.test", note="please say always", layer="installation")  # type: ignore[arg-type]
        said = await side.asked(t="hold", n=5, invocation="inv_1", rule=rule_to_json(rule), query="to&sum")
        assert (said["ok"], said["why"]) == (False, "timeout")
        [row] = [r for r in await newest(side.team.store.audit, 9) if r["action"] == "egress.held"]
        assert row["details"]["rule"] == {"id": "", "answer": "allow", "host": "api.test"}
        assert row["details"]["query"] == "to&sum"


@pytest.mark.parametrize(
    "more", [{"paths": ["/" + "a" * 1500]}, {"methods": ["BREW"]}, {"ports": []}, {"host": "a..b"}]
)
async def test_what_nobody_could_add_is_denied_and_ends_no_worker(tmp_path: Path, more: dict[str, Any]) -> None:
    """A box chooses path and method: it must not choose that all of its connections end. Control: what may be added is asked."""
    async with opened(tmp_path) as side:
        rule = {"id": "", "answer": "allow", "host": "api.test"}
        said = await side.asked(t="hold", n=5, invocation="inv_1", rule=rule | more, query="")
        assert (said["ok"], said["why"]) == (False, "deny")
        assert [r for r in await newest(side.team.store.audit, 9) if r["action"] == "egress.held"] == []
        assert "value" in await side.asked(**side.honest())
        assert (await side.asked(t="hold", n=6, invocation="inv_1", rule=rule, query=""))["why"] == "timeout"


@pytest.mark.parametrize("lie", [{"websocket": 1}, {"plain": "yes"}, {"up_bytes": 443.0}, {"ports": [443.0]}, {}])
async def test_a_question_is_of_a_rule_s_own_types(tmp_path: Path, lie: dict[str, Any]) -> None:
    """A yes stores it. Control: an honest one is asked."""
    async with opened(tmp_path) as side:
        rule = rule_to_json(EgressRule("", Verdict.ASK, "api.test")) | lie
        said = await side.asked(t="hold", n=5, invocation="inv_1", rule=rule, query="")
        assert (said == {}) == bool(lie)


async def test_a_finding_is_no_row_of_another_kind(tmp_path: Path) -> None:
    """Nor says it anything about another user, hold or command. Control: an honest one."""
    forged = {"user": "usr_bob", "kind": "held", "hold": "hld_7", "said": "always", "command": "x/9", "run": "run_9"}
    async with opened(tmp_path) as side:
        for invocation in ("inv_1", "inv_9"):
            await side.say(t="finding", kind=f"placeholder_{'foreign' if invocation == 'inv_1' else 'unknown'}",
                           invocation=invocation, details=forged)  # fmt: skip
        async with asyncio.timeout(10):
            while len(rows := await newest(side.team.store.audit, 9)) < 2:
                await asyncio.sleep(0.01)
        by = {row["details"]["kind"]: row for row in rows if row["action"] == "egress.finding"}
        known = by["placeholder_foreign"]["details"]
        mine = {"user": side.team.alice.id, "invocation": "inv_1", "command": "x/1", "run": ""}
        assert known == {"kind": "placeholder_foreign", "said": forged, **mine}
        unknown = by["placeholder_unknown"]["details"]
        assert unknown == {"kind": "placeholder_unknown", "said": forged, "user": side.team.alice.id}
        for kind in ("answer", "held", "request", "worker_ended", "rules"):
            assert kind not in KINDS
        await side.say(t="finding", kind="answer", invocation="inv_1", details=forged)
        async with asyncio.timeout(10):
            assert "finding" in await asyncio.shield(side.channel.closed)
        assert len(await newest(side.team.store.audit, 9)) == 2


async def test_rows_that_stay_are_so_many_a_box(tmp_path: Path) -> None:
    """Values, writes and questions together, whatever the worker says. Control: as many as there may be are answered."""
    write = {"t": "intent", "n": 4, "invocation": "inv_1", "credential": "", "binding": "", "host": "api.test",
             "port": 443, "method": "POST", "path": "/p"}  # fmt: skip
    async with opened(tmp_path) as side:
        side.known.rows = 3
        assert "value" in await side.asked(**side.honest())
        assert (await side.asked(**write))["ok"] and (await side.asked(**write))["ok"]
        assert "too many" in (await side.asked(**side.honest()))["error"]
        assert "too many" in (await side.asked(**write))["why"]
        rule = rule_to_json(EgressRule("", Verdict.ASK, "api.test"))
        assert (await side.asked(t="hold", n=5, invocation="inv_1", rule=rule, query=""))["why"] == "timeout"
        rows = await side.team.store.audit.page({Lane.INTENT, Lane.RELEASE}, None, None, 20)
        actions = [row["action"] for row in rows]
        assert sorted(actions) == ["egress.request", "egress.request", "release"]
