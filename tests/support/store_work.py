"""A store with work in every state, and the `db` verbs over it as the command's process calls them."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from ringfence.host.kernel.audit import Keys
from ringfence.host.kernel.canonical import digest
from ringfence.host.kernel.people import UserKind
from ringfence.host.kernel.runs import Effect, RunState
from ringfence.host.store import verbs
from ringfence.host.store.audit_keys import Signer
from ringfence.host.store.store import SqlStore, open_store
from tests.support.clocks import CountingIds, HandClock
from tests.support.databases import address, hold_clock, outside
from tests.support.seals import seals
from tests.support.store import Team

KEYS = Keys(b"k" * 32, ())
INSTALLATION = "installation1234"


class Db:
    """`ringfence db` over the database of a folder."""

    def __init__(self, folder: Path, clock: HandClock) -> None:
        self.folder, self.clock = folder, clock
        self._ids = CountingIds(1 << 45)
        self._signers = 0

    def job(self, installation: str = INSTALLATION, alone: bool = True) -> verbs.Job:
        self._signers += 1
        return verbs.Job(
            url=address(self.folder),
            installation=installation,
            release="0.1",
            clock=self.clock,
            ids=self._ids,
            signer=Signer(f"db{self._signers}", KEYS),
            by="the operator",
            alone=alone,
        )

    async def run(self, verb: str, file: BytesIO | None = None, **options: Any) -> dict[str, Any]:
        return await verbs.run(self.job(), verb, options, file)

    async def backup(self) -> bytes:
        file = BytesIO()
        await self.run("backup", file)
        return file.getvalue()

    async def restore(self, backup: bytes, **options: Any) -> dict[str, Any]:
        return await self.run("restore", BytesIO(backup), **options)

    async def findings(self) -> set[tuple[str, str]]:
        facts = await self.run("check")
        assert facts["ok"] == (not facts["findings"])
        return {(one["rule"], one["id"]) for one in facts["findings"]}

    async def found_after(self, statement: str) -> set[str]:
        """The rules that are broken when somebody has written past the store."""
        outside(self.folder, statement)
        return {rule for rule, _ in await self.findings()}


@asynccontextmanager
async def a_signed_team(folder: Path, clock: HandClock, first: int = 0) -> AsyncIterator[Team]:
    async with signed(folder, clock, first) as store:
        tenant = await store.tenants.add("default")
        alice = await store.users.add("default", "alice", UserKind.PERSON, None)
        bob = await store.users.add("default", "bob", UserKind.PERSON, None)
        await store.users.add("default", "a-bot", UserKind.AGENT, "alice")  # sorts before its owner
        thread = await store.threads.add(tenant.id, "#team", [alice.id, bob.id], False)
        yield Team(store, clock, tenant, alice, bob, thread)


@asynccontextmanager
async def signed(folder: Path, clock: HandClock, first: int = 0) -> AsyncIterator[SqlStore]:
    clock.hold(hold_clock(folder))
    store = await open_store(
        address(folder), clock, CountingIds(first), signer=Signer(f"krn{first}", KEYS), seals=seals(folder)
    )
    try:
        yield store
    finally:
        await store.close()


async def work_of_all_kinds(team: Team) -> Mapping[str, str]:
    """name -> run: `done` (two steps), `failed`, `working` (a step under way, a checkpoint, a blob), `waiting`."""
    runs: dict[str, str] = {}
    await team.say("the first", key="k1")
    [run] = await team.claim()
    runs["done"] = run.id
    for n in (1, 2):
        await team.begin(run, n)
        await team.store.steps.end(run.id, run.epoch, n, {"ok": True, "text": "é\u0000\ud800 \U0001f600"}, False)
    await team.store.runs.end(run.id, run.epoch, RunState.COMPLETED, "", "done: ünï")
    await team.say("the second")
    [run] = await team.claim()
    runs["failed"] = run.id
    await team.store.runs.end(run.id, run.epoch, RunState.FAILED, "diverged", None)
    await team.say("the third", user=team.bob)
    [run] = await team.claim()
    runs["working"] = run.id
    data = bytes(range(256)) * 16
    name = hashlib.sha256(data).hexdigest()
    await team.store.blobs.put(run.id, run.epoch, name, 0, len(data), data)
    await team.begin(run, 1)
    await team.store.steps.end(run.id, run.epoch, 1, {"ok": True}, False)
    await team.store.steps.save_checkpoint(run.id, run.epoch, "before_model", 1, "state", [name])
    arguments = {"command": "sleep 9"}
    how = digest("shell", arguments, Effect.LOCAL)
    await team.store.steps.begin(run.id, run.epoch, 2, "shell", arguments, how, Effect.LOCAL)
    accepted = await team.say("the fourth")
    runs["waiting"] = accepted.run.id
    await team.store.audit.record(None, "tested", "store", {"n": 1})
    return runs
