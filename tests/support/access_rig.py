"""The scene of tests/contract/test_access.py: a whole server of real parts, two people at work in one thread, and everybody
who may want to know what they do there.

Alice and carol are members of one thread. Alice has said something with a file, had a command run and been answered (ALICE);
has a run that failed, and one at work. Bob is of the same tenant, eve of another. Only driver, guest and model's words are
made up.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import tempfile
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import sqlalchemy as sa

from ringfence.host.broker.broker import WireBroker
from ringfence.host.drivers.shelf import FileShelf
from ringfence.host.engine.engine import Engine
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.outward.rules import Verdict as Way
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.outward.wishes import BindingWish, RuleWish
from ringfence.host.kernel.people import Actor
from ringfence.host.kernel.policy import Policy, Rule, Verdict
from ringfence.host.kernel.script import parse_script
from ringfence.host.models.scripted import Scripted
from ringfence.host.store.store import SqlStore, open_store
from ringfence.host.vault.keyring import Keyring
from ringfence.host.vault.keys import Keys
from ringfence.host.vault.seen import Witnesses
from ringfence.host.vault.vault import SealedVault
from ringfence.host.web.server import listening
from tests.support.engine_rig import CONFIG, OPERATOR, Numbers, RealClock, Rig
from tests.support.fakes import World
from tests.support.seals import seals
from tests.support.wired_guest import WiredDriver, WiredGuest

WHO = ("anonymous", "box", "foreign", "stranger", "member", "owner", "reader", "operator", "glass")
"""`box`: the token of a run as a bearer token. `owner`: alice, whose the things are; `reader`: her token that may only
read. `operator`: by the socket. `glass`: by a token, and it has opened the thread."""

THREAD = "canary-thread"
ALICE = {
    "name": '"alice"',
    "thread": THREAD,
    "text": "canary-text",
    "path": "canary-path",
    "file": "canary-file",
    "command": "canary-command",
    "result": "canary-result",
    "reply": "canary-reply",
    "detail": "canary-detail",
    "live": "canary-live",
    "summary": "canary-summary",
    "state": "canary-state",
    "asked": "canary-asked",
    "secret": "canary-secret",  # the name of a credential
    "value": "canary-value",  # nobody ever sees it
    "host": "canary-host.test",  # where it is bound, and of a rule
}
CAROL = {kind: f"canary-of-carol-{kind}" for kind in ("text", "command", "result", "reply", "summary", "state")}
_QUIET = 3600.0  # seconds between two looks: no statement of the server's own while those of one request are counted


@dataclass(frozen=True, slots=True)
class At:
    """A run at work, with what its loop knows."""

    guest: WiredGuest
    run: str
    token: str
    turn: str

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        return await self.guest.ask(self.run, method, self.token, **params)

    async def does(self, method: str, **params: Any) -> dict[str, Any]:
        reply = await self.ask(method, **params)
        assert "ok" in reply, reply
        result: dict[str, Any] = reply["ok"]
        return result


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]  # but the date
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class Statements:
    """Of the store, in order."""

    said: list[str] = field(default_factory=list)

    @contextmanager
    def counted(self) -> Iterator[list[str]]:
        counted: list[str] = []
        self.said = counted
        yield counted
        self.said = []

    def __call__(self, _conn: Any, _cursor: Any, statement: str, _values: Any, _context: Any, _many: bool) -> None:
        if not statement.startswith("PRAGMA"):  # of a connection that is new to its pool
            self.said.append(statement)


class Scene(Rig):
    """An engine rig on the real wire, with the real web before it."""

    broker: WireBroker
    driver: WiredDriver

    def __init__(self, store: SqlStore, world: World) -> None:
        rules = [{"when": "say it", "answers": [{"text": ALICE["live"]}]}]
        config = replace(
            CONFIG,
            sweep_seconds=_QUIET,
            heartbeat_seconds=_QUIET,
            active_seconds=_QUIET,
            watch_seconds=_QUIET,
            sign_seconds=_QUIET,
            upkeep_seconds=_QUIET,
            disk_seconds=_QUIET,
            usage_seconds=_QUIET,
            rest_seconds=_QUIET,
            debris_seconds=_QUIET,
        )
        super().__init__(store, world, config, Scripted(parse_script(json.dumps(rules))))
        self.names: dict[str, str] = {}
        self.canaries = dict(ALICE)
        self.tokens: dict[str, str] = {}
        self.runs: dict[str, At] = {}
        self.statements = Statements()

    def _made(self) -> Engine:
        self.driver = WiredDriver(self.world)
        self.broker = WireBroker(self.ids.new("krn"), lambda box, kind, details: None)
        models = {"scripted": self.model}
        key = Keyring(b"k" * 32)
        vault = SealedVault(Keys(lambda: key, key), Witnesses(self.world.folder / "seen", 1))
        parts = (self.store, self.driver, self.broker, models, RealClock(), self.ids, self.config, self.ids.new("wrk"))
        shelf = FileShelf(self.world.folder)
        (self.world.folder / "snapshots").mkdir(parents=True, exist_ok=True)
        asks = Policy((Rule("shell", Verdict.ASK, (("command", "*canary-asked*"),)),))
        return Engine(Parts(*parts, policy=asks, gate_key=b"k" * 32, vault=vault, shelf=shelf))

    def serve(self, tcp: httpx2.AsyncClient, socket: httpx2.AsyncClient, path: Path) -> None:
        self.tcp, self.socket, self.socket_path = tcp, socket, path

    # --- asking --------------------------------------------------------------------------------------------------

    async def http(self, who: str, method: str, path: str, content: bytes | None = None, **headers: str) -> Answer:
        """A stream is read to the cursor of the newest event."""
        client = self.socket if who == "operator" else self.tcp
        kind = {"Content-Type": "application/json"} if (content or b"")[:1] == b"{" else {}
        given = {**self.bearer(who), **kind, **headers}
        async with asyncio.timeout(30), client.stream(method, path, headers=given, content=content) as response:
            body, stream = b"", response.headers.get("content-type", "").startswith("text/event-stream")
            async for chunk in response.aiter_raw():
                body += chunk
                if stream and b"\nid: %d\n" % await self.newest() in body:
                    break
        seen = {name: value for name, value in response.headers.items() if name != "date"}
        return Answer(response.status_code, seen, body)

    async def follow(self, who: str, method: str, path: str, opened: asyncio.Event) -> bytes:
        """A stream of what comes from now on, to the end of a run of carol's; or of a message that is posted for it."""
        client = self.socket if who == "operator" else self.tcp
        headers = {**self.bearer(who), "Accept": "text/event-stream"}
        given: dict[str, Any] = {"json": {"text": "mine"}} if method == "POST" else {}
        if method == "GET":
            path = f"{path}?after={await self.newest() - 1}"
        async with asyncio.timeout(30), client.stream(method, path, headers=headers, **given) as response:
            assert response.status_code in (200, 202)
            body = b""
            async for chunk in response.aiter_raw():
                body += chunk
                opened.set()
                if re.search(rb'event: run.ended\ndata: [^\n]*"actor": "carol"', body):
                    break
        return body

    def bearer(self, who: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[who]}"} if who in self.tokens else {}

    async def newest(self) -> int:
        thread = await self.store.threads.get(self.user("alice").tenant, THREAD)
        return (await self.store.events.after(thread.id, 0, 1000))[-1].cursor

    def user(self, name: str) -> Any:
        return self.actors[name].user

    # --- what has happened ---------------------------------------------------------------------------------------

    async def at_work(self, name: str, text: str, thread: str = THREAD, files: Collection[str] = ()) -> At:
        said = await self.engine.threads.say(self.actors[name], "default", thread, text, "queue", None, list(files))
        await self.until(said.run.id, lambda row: row.box is not None)
        guest = self.driver.guest(self.box(name).id)
        start = await guest.started(said.run.id)
        return At(guest, said.run.id, start["token"], said.turn.id)

    async def command(self, at: At, n: int, command: str) -> None:
        arguments = {"command": command}
        begun = await at.does("step.begin", n=n, tool="shell", arguments=arguments, effect="local")
        assert begun["decision"] == "done", begun

    async def fails(self, name: str, thread: str) -> At:
        """In a thread of that name, with carol as a member."""
        if thread != THREAD:
            await self.engine.threads.add(self.actors[name], "default", thread, ["carol"], True)
        at = await self.at_work(name, "and then?", thread)
        await at.does("run.fail", code="no_luck", message=ALICE["detail"])
        at.guest.end_loop(at.run)
        return at

    async def asks(self, name: str, thread: str) -> str:
        """The gate of a run that waits for an answer, in a thread of that name, with carol as a member."""
        await self.engine.threads.add(self.actors[name], "default", thread, ["carol"], True)
        at = await self.at_work(name, "may I?", thread)
        arguments = {"command": f"echo {ALICE['asked']}"}
        reply = await at.ask("step.begin", n=1, tool="shell", arguments=arguments, effect="local")
        assert reply["err"]["code"] == "parked", reply
        return (await self.store.gates.of_run(RunId(at.run)))[0].id

    async def finish(self, at: At, text: str) -> None:
        newest = (await self.store.turns.said((await self.store.runs.get(at.run)).turn))[-1]  # type: ignore[arg-type]
        assert (await at.does("run.finish", text=text, seen=newest.cursor))["steers"] == []
        at.guest.end_loop(at.run)

    async def prepare(self) -> None:
        await self.store.tenants.add("default")
        await self.store.tenants.add("other")
        people = (("alice", "default"), ("bob", "default"), ("carol", "default"), ("ops", "default"), ("eve", "other"))
        for name, tenant in people:
            await self.person(name, tenant)
        for name, canaries in (("alice", ALICE), ("carol", CAROL)):
            self.driver.output[self.box(name).id] = canaries["result"].encode()
        await self._thread()
        await self._tokens()
        opened = await self.http(
            "glass", "POST", f"/v1/tenants/default/threads/{THREAD}/break-glass", b'{"reason":"asked"}'
        )
        assert opened.status == 200

    async def _thread(self) -> None:
        await self.engine.threads.add(self.actors["alice"], "default", THREAD, ["carol"], True)
        (self.box("alice").folder / ALICE["path"]).write_text(ALICE["file"])
        done = await self.at_work("alice", ALICE["text"], files=[ALICE["path"]])
        await self.command(done, 1, f"echo {ALICE['command']}")
        await self.finish(done, ALICE["reply"])
        self.runs = {"done": done, "failed": await self.fails("alice", THREAD)}
        live = self.runs["live"] = await self.at_work("alice", "and now?")
        first = live.guest.starts[live.run]["messages"][0]["cursor"]
        await live.does("thread.summarise", cursor=first, text=ALICE["summary"])
        await live.does("checkpoint.save", boundary="before_model", step=0, state=ALICE["state"], blobs=[])
        self.canaries |= {"box": self.box("alice").id, "run": done.run, "run token": live.token}
        self.names = {"tenant": "default", "user": "alice", "thread": THREAD, "turn": done.turn, "run": done.run}
        self.names["gate"] = await self.asks("alice", "asks")
        await self._outward()

    async def _outward(self) -> None:
        """A credential of alice's, where it is bound, and a rule."""
        wish = BindingWish(host=ALICE["host"])
        value, alice = Secret(ALICE["value"].encode()), self.actors["alice"]
        kept = await self.engine.secrets.set(alice, "default", "alice", ALICE["secret"], value, shared=True, wish=wish)
        added = await self.engine.egress.add(alice, "default", "alice", RuleWish(Way.ALLOW, ALICE["host"]))
        self.names |= {"secret": kept.credential.name, "binding": kept.bindings[0].id, "rule": added.rules[0].id}
        self.names["to"] = "bob"
        self.names["snapshot"] = (await self.engine.copies.snapshot(OPERATOR, "default", "alice")).snapshot.id

    async def _tokens(self) -> None:
        given = {
            "foreign": ("other", "eve", ["user"]),
            "stranger": ("default", "bob", ["user"]),
            "member": ("default", "carol", ["user"]),
            "owner": ("default", "alice", ["user"]),
            "reader": ("default", "alice", ["read"]),
            "glass": ("default", "ops", ["operator"]),
        }
        self.tokens = {"box": self.runs["live"].token}
        for who, (tenant, name, scopes) in given.items():
            made = await self.engine.people.token_add(OPERATOR, tenant, name, scopes, "", None)
            self.tokens[who] = made[1]
        self.names["token"] = (await self.engine.people.token_add(OPERATOR, "default", "alice", [], "", None))[0].id


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    """In a folder with a short name: the path of a socket has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="rf") as name:
        folder = Path(name)
        async with AsyncExitStack() as stack:
            world = World(folder / "world")
            stack.push_async_callback(world.close)
            store = await open_store(
                f"sqlite:///{folder / 'ringfence.db'}", RealClock(), Numbers(), seals=seals(folder)
            )
            stack.push_async_callback(store.close)
            made = Scene(store, world)
            sa.event.listen(sa.Engine, "before_cursor_execute", made.statements)
            stack.callback(sa.event.remove, sa.Engine, "before_cursor_execute", made.statements)
            await made.engine.start()
            stack.push_async_callback(_stopped, made)
            await _served(made, folder, stack)
            await made.prepare()
            yield made


async def _stopped(made: Scene) -> None:
    await made.engine.stop()
    await made.broker.close()


async def _served(made: Scene, folder: Path, stack: AsyncExitStack) -> None:
    bound = await stack.enter_async_context(listening(made.engine, folder / "api.sock", ("127.0.0.1", 0)))
    assert bound.tcp is not None
    options: dict[str, Any] = {"trust_env": False, "timeout": 10}
    url = "http://{}:{}".format(*bound.tcp)
    tcp = await stack.enter_async_context(httpx2.AsyncClient(base_url=url, **options))
    transport = httpx2.AsyncHTTPTransport(uds=str(bound.socket))
    socket = httpx2.AsyncClient(base_url="http://localhost", transport=transport, **options)
    made.serve(tcp, await stack.enter_async_context(socket), bound.socket)


def found(text: bytes | str | Any, canaries: dict[str, str] = ALICE) -> set[str]:
    """Which of them are in it. A canary has no character that JSON escapes."""
    seen = text.decode(errors="replace") if isinstance(text, bytes) else json.dumps(text, default=str)
    return {kind for kind, canary in canaries.items() if canary in seen}


def absent(name: str) -> str:
    """A name of the same length that nothing has."""
    return name[:-1] + ("y" if name[-1] != "y" else "z")


def blob(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


__all__ = ["ALICE", "CAROL", "WHO", "Actor", "Answer", "At", "Scene", "absent", "blob", "found", "scene"]
