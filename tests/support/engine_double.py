"""An engine in memory for tests of the web, the SDK and the command line: same signatures, real subprocesses, no walls.

It knows tenants, users, tokens, boxes, files below a folder, threads with an agent that echoes, runs. It authorises in
the simplest way that the access tests can tell from none.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import itertools
import math
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from ringfence.host.kernel.errors import Conflict, Invalid, NameInvalid, NotFound, Refused, Unauthenticated
from ringfence.host.kernel.ids import MessageId, RunId, TenantId, ThreadId, TokenId, TurnId, UserId
from ringfence.host.kernel.people import Actor, Scope, Tenant, Token, User, UserKind
from ringfence.host.kernel.ports import Accepted, FileInfo, Kept, Outcome
from ringfence.host.kernel.runs import Effect, Run, RunState, Step, StepState
from ringfence.host.kernel.threads import Message, Thread, Turn, TurnState


def now() -> datetime:
    return datetime.now(UTC)


@dataclass
class World:
    """What all parts share."""

    folder: Path
    tenants: dict[str, Tenant] = field(default_factory=dict)
    users: dict[tuple[str, str], User] = field(default_factory=dict)
    tokens: dict[str, tuple[Token, User]] = field(default_factory=dict)  # by the secret's hash
    audit: list[tuple[str, str]] = field(default_factory=list)
    counter: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def id(self, prefix: str) -> str:
        return f"{prefix}_{next(self.counter):020d}"

    def user(self, actor: Actor, tenant: str, name: str) -> User:
        """NotFound for everybody but operators and the user."""
        found = self.users.get((tenant, name))
        if found is None or not (actor.operator or actor.user == found):
            raise NotFound(f"no such user: {name!r} in tenant {tenant!r}", remedy="ringfence user ls")
        return found

    def operator(self, actor: Actor) -> None:
        if not actor.operator:
            raise Refused("only an operator may do this", remedy="ask one")

    def home(self, tenant: str, user: str) -> Path:
        home = self.folder / hashlib.sha256(f"{tenant}/{user}".encode("utf-8", "surrogatepass")).hexdigest()[:16]
        home.mkdir(exist_ok=True)
        return home


@dataclass
class People:
    world: World

    async def authenticate(self, secret: str) -> Actor:
        found = self.world.tokens.get(hashlib.sha256(secret.encode()).hexdigest())
        if found is None:
            raise Unauthenticated("the token is not valid", remedy="ringfence token add --user NAME")
        token, user = found
        if token.expires_at is not None and token.expires_at <= now():
            raise Unauthenticated("the token has expired", remedy="ringfence token add --user NAME")
        return Actor(user, Scope.OPERATOR in token.scopes, f"token:{token.id}")

    def operator(self, uid: int, gid: int, pid: int) -> Actor:
        return Actor(None, True, f"socket:{uid}")

    async def act_as(self, actor: Actor, tenant: str, user: str) -> Actor:
        if not actor.operator:
            raise Refused("only an operator acts as somebody else")
        self.world.audit.append(("act_as", user))
        return Actor(self.world.user(actor, tenant, user), False, actor.via, impersonated=True)

    async def tenant_add(self, actor: Actor, name: str) -> Tenant:
        self.world.operator(actor)
        if name in self.world.tenants:
            raise Conflict(f"the tenant {name!r} exists", remedy="choose another name")
        made = Tenant(TenantId(self.world.id("ten")), name, now())
        self.world.tenants[name] = made
        return made

    async def tenants(self, actor: Actor) -> list[Tenant]:
        self.world.operator(actor)
        return list(self.world.tenants.values())

    async def tenant_remove(self, actor: Actor, name: str) -> None:
        self.world.operator(actor)
        if name not in self.world.tenants:
            raise NotFound(f"no such tenant: {name!r}", remedy="ringfence tenant ls")
        if any(tenant == name for tenant, _ in self.world.users):
            raise Conflict(f"the tenant {name!r} has users", remedy="remove them first")
        del self.world.tenants[name]

    async def user_add(
        self, actor: Actor, tenant: str, name: str, kind: str = "person", owner: str | None = None
    ) -> User:
        self.world.operator(actor)
        if not name or len(name) > 64 or any(char in name for char in "/%\0") or name.strip(". ") != name:
            raise NameInvalid(f"{name[:80]!r} is no name for a user", remedy="use letters, digits, - and _")
        if tenant not in self.world.tenants:
            raise NotFound(f"no such tenant: {tenant!r}", remedy="ringfence tenant ls")
        if (tenant, name) in self.world.users:
            raise Conflict(f"the user {name!r} exists", remedy="choose another name")
        answers = self.world.user(actor, tenant, owner).id if owner else None
        made = User(
            UserId(self.world.id("usr")),
            self.world.tenants[tenant].id,
            tenant,
            name,
            UserKind(kind),
            answers,
            False,
            now(),
        )
        self.world.users[tenant, name] = made
        return made

    async def users(self, actor: Actor, tenant: str) -> list[User]:
        if tenant not in self.world.tenants:
            raise NotFound(f"no such tenant: {tenant!r}", remedy="ringfence tenant ls")
        of = [user for (where, _), user in self.world.users.items() if where == tenant]
        return of if actor.operator else [user for user in of if user == actor.user]

    async def user(self, actor: Actor, tenant: str, name: str) -> User:
        return self.world.user(actor, tenant, name)

    async def user_remove(self, actor: Actor, tenant: str, name: str, purge: bool = False) -> None:
        self.world.operator(actor)
        gone = self.world.user(actor, tenant, name)
        del self.world.users[tenant, name]
        self.world.tokens = {key: pair for key, pair in self.world.tokens.items() if pair[1] != gone}

    async def token_add(
        self, actor: Actor, tenant: str, user: str, scopes: list[str], note: str, ttl_seconds: float | None
    ) -> tuple[Token, str]:
        owner = self.world.user(actor, tenant, user)
        if "operator" in scopes:
            self.world.operator(actor)
        until = None if ttl_seconds is None else now() + timedelta(seconds=ttl_seconds)
        token = Token(
            TokenId(self.world.id("tok")), owner.id, frozenset(Scope(each) for each in scopes), note, now(), until, None
        )
        secret = f"secret{next(self.world.counter)}" + os.urandom(16).hex()
        self.world.tokens[hashlib.sha256(secret.encode()).hexdigest()] = (token, owner)
        return token, secret

    async def tokens(self, actor: Actor, tenant: str, user: str) -> list[Token]:
        owner = self.world.user(actor, tenant, user)
        return [token for token, of in self.world.tokens.values() if of == owner]

    async def token_remove(self, actor: Actor, tenant: str, user: str, token_id: str) -> None:
        self.world.user(actor, tenant, user)
        for key, (token, _) in list(self.world.tokens.items()):
            if token.id == token_id:
                del self.world.tokens[key]
                return
        raise NotFound(f"no such token: {token_id!r}", remedy="ringfence token ls")


@dataclass
class BoxView:
    user: str
    tenant: str
    observed: str = "stopped"
    desired: str = "stopped"
    generation: int = 0
    driver: str = "double"
    image: str = "host"
    uid: int = 70001
    pids: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    disk_limit_bytes: int | None = None
    started_at: datetime | None = None
    last_active_at: datetime | None = None
    sessions: list[str] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=lambda: {"memory": 1 << 30, "pids": 512, "cpu_milli": 2000})
    weak: list[str] = field(default_factory=list)
    box: str = "abcdefghijklmnop"


@dataclass
class BoxKeeper:
    world: World
    views: dict[tuple[str, str], BoxView] = field(default_factory=dict)

    async def list(self, actor: Actor, tenant: str | None) -> list[BoxView]:
        seen = [key for key, user in self.world.users.items() if actor.operator or user == actor.user]
        return [await self.show(actor, *key) for key in seen if tenant in (None, key[0])]

    async def show(self, actor: Actor, tenant: str, user: str) -> BoxView:
        self.world.user(actor, tenant, user)
        return self.views.setdefault((tenant, user), BoxView(user, tenant))

    async def start(self, actor: Actor, tenant: str, user: str) -> BoxView:
        view = await self.show(actor, tenant, user)
        if view.observed != "running":
            view.observed = view.desired = "running"
            view.generation += 1
            view.started_at = now()
        return view

    async def stop(self, actor: Actor, tenant: str, user: str) -> BoxView:
        view = await self.show(actor, tenant, user)
        view.observed = view.desired = "stopped"
        return view

    async def set_limits(self, actor: Actor, tenant: str, user: str, changes: dict[str, int]) -> BoxView:
        self.world.operator(actor)
        view = await self.show(actor, tenant, user)
        unknown = set(changes) - set(view.limits)
        if unknown:
            raise Invalid(f"no such limit: {sorted(unknown)[0]!r}", remedy=f"one of {sorted(view.limits)}")
        view.limits.update(changes)
        return view


HEAD, TAIL = 64 << 10, 192 << 10


def kept(data: bytes) -> Kept:
    if len(data) <= HEAD + TAIL:
        return Kept(data, b"", len(data), 0)
    return Kept(data[:HEAD], data[-TAIL:], len(data), len(data) - HEAD - TAIL)


class Command:
    """A real process in its own session."""

    def __init__(self, process: asyncio.subprocess.Process, request: Any) -> None:
        self._process = process
        self._request = request
        self._timed_out = False
        self._ended = asyncio.Event()
        self._kept = (bytearray(), bytearray())
        self._tasks: set[asyncio.Task[None]] = set()
        self._reaping = asyncio.create_task(self._reap())
        if request.timeout is not None:
            self._attend(self._expire(request.timeout))
        self._keeping = asyncio.create_task(self._keep()) if request.output == "keep" else None
        self.released = False

    def _attend(self, work: Any) -> None:
        self._tasks.add(asyncio.create_task(work))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def attached(self) -> bool:
        return False

    async def _reap(self) -> None:
        while self._process.returncode is None:  # Process.wait() would wait for the pipes' readers too
            await asyncio.sleep(0.005)
        self._ended.set()

    async def _expire(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if not self._ended.is_set():
            self._timed_out = True
            await self.stop(0.5)

    async def _keep(self) -> None:
        assert self._process.stdout is not None and self._process.stderr is not None
        self._kept = (
            bytearray(await self._process.stdout.read()),
            bytearray(await self._process.stderr.read()),
        )

    async def output(self) -> AsyncIterator[tuple[Literal[1, 2], bytes]]:
        """One chunk at a time: the pipes fill while the reader is slow."""
        pipes: dict[Literal[1, 2], asyncio.StreamReader | None] = {1: self._process.stdout, 2: self._process.stderr}
        reads: dict[asyncio.Task[bytes], Literal[1, 2]] = {}
        for number, pipe in pipes.items():
            assert pipe is not None
            reads[asyncio.create_task(pipe.read(48 << 10))] = number
        try:
            while reads:
                done, _ = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    number = reads.pop(task)
                    if data := task.result():
                        yield number, data
                        pipe = pipes[number]
                        assert pipe is not None
                        reads[asyncio.create_task(pipe.read(48 << 10))] = number
        finally:
            for task in reads:
                task.cancel()
        await self._ended.wait()

    async def write(self, data: bytes) -> None:
        if self._process.stdin is not None and not self._ended.is_set():
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._process.stdin.write(data)
                await self._process.stdin.drain()

    async def close_stdin(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def signal(self, number: int) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    async def stop(self, grace: float) -> None:
        await self.signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), grace)
        await self.signal(signal.SIGKILL)
        await self._ended.wait()

    async def outcome(self) -> Outcome:
        await self._ended.wait()
        code = self._process.returncode or 0
        streams = [kept(bytes(each)) for each in self._kept] if await self._settled() else [None, None]
        reason: Any = "timeout" if self._timed_out else "killed" if code < 0 else "exit"
        return Outcome(
            code if code >= 0 else None, -code if code < 0 else None, reason, "", [], 1, streams[0], streams[1]
        )

    async def _settled(self) -> bool:
        if self._keeping is None:
            return False
        await asyncio.wait({self._keeping}, timeout=2)
        return True

    def close(self) -> None:
        transport: Any = vars(self._process)["_transport"]
        transport.close()

    async def release(self) -> None:
        self.released = True
        await self._ended.wait()
        for task in self._tasks:
            task.cancel()


@dataclass
class NoCommand:
    """One that could not be started, or whose box ended."""

    reason: Any
    message: str
    details: dict[str, Any] = field(default_factory=dict)
    pid: int = 0
    attached: bool = False

    async def output(self) -> AsyncIterator[tuple[Literal[1, 2], bytes]]:
        empty: list[tuple[Literal[1, 2], bytes]] = []
        for chunk in empty:
            yield chunk

    async def write(self, data: bytes) -> None: ...
    async def close_stdin(self) -> None: ...
    async def signal(self, number: int) -> None: ...
    async def stop(self, grace: float) -> None: ...
    async def release(self) -> None: ...
    async def outcome(self) -> Outcome:
        return Outcome(None, 9 if self.reason == "oom" else None, self.reason, self.message, [], 1)


@dataclass
class Commands:
    world: World
    boxes: BoxKeeper
    started: list[Command] = field(default_factory=list)

    async def run(self, actor: Actor, tenant: str, user: str, request: Any) -> Command | NoCommand:
        self.world.user(actor, tenant, user)
        if not request.argv:
            raise Invalid("no command", remedy="ringfence exec U -- CMD")
        if request.timeout is not None and not (0 < request.timeout < math.inf):
            raise Invalid("timeout is not above 0", remedy="give seconds")
        await self.boxes.start(actor, tenant, user)
        if request.argv[0] == b"@oom":
            return NoCommand("oom", "out of memory: limit 1 GiB")
        if request.argv[0] == b"@lost":
            return NoCommand("box_lost", "the box ended")
        env = {b"PATH": b"/usr/bin:/bin", **{name.encode(): value for name, value in request.env.items()}}
        try:
            process = await asyncio.create_subprocess_exec(
                *request.argv,
                env=env,
                cwd=request.cwd or self.world.home(tenant, user),
                stdin=asyncio.subprocess.PIPE if request.stdin == "pipe" else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            return NoCommand("spawn_failed", f"{os.fsdecode(request.argv[0])}: {error.strerror}")
        command = Command(process, request)
        self.started.append(command)
        return command


@dataclass
class Files:
    world: World

    def _path(self, actor: Actor, tenant: str, user: str, path: bytes) -> bytes:
        self.world.user(actor, tenant, user)
        if b"\0" in path or b".." in path.split(b"/"):
            raise Refused("the path leads out of the box")
        return os.path.join(os.fsencode(self.world.home(tenant, user)), path.lstrip(b"/"))

    def _info(self, full: bytes) -> FileInfo:
        try:
            found = os.lstat(full)
        except FileNotFoundError:
            raise NotFound(
                f"no such file: {os.fsdecode(os.path.basename(full))!r}", remedy="ringfence files ls"
            ) from None
        kinds: dict[int, Literal["file", "directory", "symlink", "other"]] = {
            0o10: "file",
            0o4: "directory",
            0o12: "symlink",
        }
        kind: Literal["file", "directory", "symlink", "other"] = kinds.get(found.st_mode >> 12, "other")
        target = os.readlink(full) if kind == "symlink" else None
        return FileInfo(os.path.basename(full), kind, found.st_size, found.st_mode & 0o7777, found.st_mtime_ns, target)

    async def stat(self, actor: Actor, tenant: str, user: str, path: bytes) -> FileInfo:
        return self._info(self._path(actor, tenant, user, path))

    async def list(
        self, actor: Actor, tenant: str, user: str, path: bytes, after: bytes | None, limit: int
    ) -> list[FileInfo]:
        full = self._path(actor, tenant, user, path)
        names = sorted(name for name in os.listdir(full) if after is None or name > after)
        return [self._info(os.path.join(full, name)) for name in names[:limit]]

    @contextlib.asynccontextmanager
    async def get(
        self, actor: Actor, tenant: str, user: str, path: bytes
    ) -> AsyncIterator[tuple[FileInfo, AsyncIterator[bytes]]]:
        full = self._path(actor, tenant, user, path)
        info = self._info(full)
        if info.kind != "file":
            raise Refused("it is no regular file")
        with open(full, "rb") as opened:

            async def chunks() -> AsyncIterator[bytes]:
                while data := opened.read(64 << 10):
                    yield data

            yield info, chunks()

    async def put(
        self, actor: Actor, tenant: str, user: str, path: bytes, data: AsyncIterator[bytes], mode: int
    ) -> FileInfo:
        full = self._path(actor, tenant, user, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        part = os.path.join(os.path.dirname(full), b".part%d" % next(self.world.counter))
        try:
            with open(part, "xb") as opened:
                async for chunk in data:
                    opened.write(chunk)
            os.chmod(part, mode)
            os.rename(part, full)
        except BaseException:
            os.unlink(part)
            raise
        return self._info(full)

    async def remove(self, actor: Actor, tenant: str, user: str, path: bytes, recursive: bool) -> None:
        full = self._path(actor, tenant, user, path)
        if self._info(full).kind != "directory":
            os.unlink(full)
        elif recursive:
            shutil.rmtree(full)
        else:
            try:
                os.rmdir(full)
            except OSError:
                raise Conflict("the folder is not empty", remedy="ringfence files rm --recursive") from None


@dataclass
class Talk:
    """A thread with all that was said."""

    thread: Thread
    tenant: str
    members: list[str]
    messages: list[Message] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)


@dataclass
class RunView:
    run: Run
    user: str
    thread: str
    steps: list[Step]


@dataclass
class Threads:
    """The agent: repeats what it was told; fails on `fail`, waits for ever on `wait`."""

    world: World
    talks: dict[tuple[str, str], Talk] = field(default_factory=dict)
    turns: dict[str, Turn] = field(default_factory=dict)
    views: dict[str, RunView] = field(default_factory=dict)
    keys: dict[str, Accepted] = field(default_factory=dict)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def _talk(self, actor: Actor, tenant: str, name: str) -> Talk:
        talk = self.talks.get((tenant, name))
        member = talk is not None and actor.user is not None and actor.user.id in talk.thread.members
        if talk is None or not (actor.operator or member):
            raise NotFound(f"no such thread: {name!r}", remedy="ringfence thread ls")
        return talk

    async def add(self, actor: Actor, tenant: str, name: str, members: list[str], parallel: bool) -> Thread:
        if (tenant, name) in self.talks:
            raise Conflict(f"the thread {name!r} exists")
        operator = Actor(None, True, "double")
        names = list(dict.fromkeys([*([actor.user.name] if actor.user else []), *members]))
        users = [self.world.user(operator, tenant, each) for each in names]
        thread = Thread(
            ThreadId(self.world.id("thr")),
            self.world.tenants[tenant].id,
            name,
            parallel,
            frozenset(user.id for user in users),
            now(),
        )
        self.talks[tenant, name] = Talk(thread, tenant, names)
        return thread

    def _sees(self, actor: Actor, talk: Talk) -> bool:
        return actor.operator or (actor.user is not None and actor.user.id in talk.thread.members)

    async def show(self, actor: Actor, tenant: str, name: str) -> tuple[Thread, list[str]]:
        talk = self._talk(actor, tenant, name)
        return talk.thread, talk.members

    async def set_member(self, actor: Actor, tenant: str, name: str, user: str, member: bool) -> Thread:
        talk = self._talk(actor, tenant, name)
        who = self.world.user(Actor(None, True, "double"), tenant, user)
        ids = talk.thread.members | {who.id} if member else talk.thread.members - {who.id}
        talk.thread = dataclasses.replace(talk.thread, members=ids)
        talk.members = [*talk.members, user] if member else [each for each in talk.members if each != user]
        await self._event(talk, "member.added" if member else "member.removed", {"user": user})
        return talk.thread

    async def _event(self, talk: Talk, kind: str, body: dict[str, Any], **of: Any) -> int:
        async with talk.changed:
            cursor = len(talk.events) + 1
            talk.events.append(
                {
                    "cursor": cursor,
                    "kind": kind,
                    "actor": of.get("actor"),
                    "turn": of.get("turn"),
                    "run": of.get("run"),
                    "body": body,
                    "at": now().isoformat(),
                }
            )
            talk.changed.notify_all()
        return cursor

    async def say(self, actor: Actor, tenant: str, thread: str, text: str, mode: str, key: str | None) -> Accepted:
        if actor.user is None:
            raise Invalid("an operator speaks as somebody", remedy="--as U")
        if (tenant, thread) not in self.talks:
            await self.add(actor, tenant, thread, [], False)
        talk = self._talk(actor, tenant, thread)
        if key is not None and key in self.keys:
            if self.keys[key].message.text != text:
                raise Conflict("the key was used with another message")
            return dataclasses.replace(self.keys[key], repeated=True)
        busy = any(not turn.ended_at and turn.thread == talk.thread.id for turn in self.turns.values())
        if mode == "reject" and busy:
            refused = Conflict("the lane is busy", remedy="wait, or leave --mode reject out")
            refused.__class__ = LaneBusy
            raise refused
        accepted = await self._accept(talk, actor.user, text)
        if key is not None:
            self.keys[key] = accepted
        self.tasks.add(asyncio.create_task(self._work(talk, accepted, text)))
        return accepted

    async def _accept(self, talk: Talk, user: User, text: str) -> Accepted:
        turn_id, run_id = TurnId(self.world.id("trn")), RunId(self.world.id("run"))
        message_id = MessageId(self.world.id("msg"))
        cursor = await self._event(
            talk, "message", {"text": text, "author": user.name}, actor=user.name, turn=turn_id, run=run_id
        )
        message = Message(message_id, talk.thread.id, turn_id, user.id, user.name, text, cursor, now())
        talk.messages.append(message)
        turn = Turn(
            turn_id, talk.thread.id, user.id, message_id, "lane", TurnState.RUNNING, "", None, run_id, now(), None
        )
        run = Run(
            run_id, turn_id, talk.thread.id, user.id, None, RunState.RUNNING, "", 1, 1, "w", None, "", False, None,
            now(), now(), None,
        )  # fmt: skip
        self.turns[turn_id] = turn
        step = Step(
            run_id, 1, "shell", {"command": text}, "d", Effect.LOCAL, StepState.ENDED, {"ok": True}, now(), now()
        )
        self.views[run_id] = RunView(run, user.name, talk.thread.name, [step])
        return Accepted(turn, run, message, False)

    async def _work(self, talk: Talk, accepted: Accepted, text: str) -> None:
        of = {"actor": accepted.message.author_name, "turn": accepted.turn.id, "run": accepted.run.id}
        await self._event(talk, "run.started", {}, **of)
        await self._event(talk, "step.begun", {"n": 1, "tool": "shell"}, **of)
        await self._event(talk, "step.ended", {"n": 1, "ok": True}, **of)
        if text == "wait":
            return
        state = TurnState.FAILED if text == "fail" else TurnState.COMPLETED
        reply = None if text == "fail" else f"you said: {text}"
        self.turns[accepted.turn.id] = dataclasses.replace(
            accepted.turn, state=state, reply=reply, reason="diverged" if text == "fail" else "", ended_at=now()
        )
        if reply is not None:
            await self._event(talk, "reply", {"text": reply}, **of)
        await self._event(talk, "run.ended", {"state": str(state)}, **of)

    async def messages(self, actor: Actor, tenant: str, thread: str, before: int | None, limit: int) -> list[Message]:
        talk = self._talk(actor, tenant, thread)
        return [each for each in talk.messages if before is None or each.cursor < before][-limit:]

    async def events(self, actor: Actor, tenant: str, thread: str, after: int, limit: int) -> list[dict[str, Any]]:
        return self._talk(actor, tenant, thread).events[after : after + limit]

    async def wait(self, actor: Actor, tenant: str, thread: str, after: int, seconds: float) -> bool:
        talk = self._talk(actor, tenant, thread)
        try:
            async with asyncio.timeout(seconds), talk.changed:
                await talk.changed.wait_for(lambda: len(talk.events) > after)
        except TimeoutError:
            return False
        return True

    async def turn(self, actor: Actor, turn_id: str) -> Turn:
        found = self.turns.get(turn_id)
        if found is None or not (actor.operator or (actor.user is not None and actor.user.id == found.actor)):
            raise NotFound(f"no such turn: {turn_id!r}")
        return found

    async def list(self, actor: Actor, tenant: str) -> list[Thread]:
        return [talk.thread for (where, _), talk in self.talks.items() if where == tenant and self._sees(actor, talk)]


class LaneBusy(Conflict):
    code = "lane_busy"


@dataclass
class Runs:
    world: World
    threads: Threads

    def _sees(self, actor: Actor, view: RunView) -> bool:
        return actor.operator or (actor.user is not None and actor.user.id == view.run.actor)

    async def list(self, actor: Actor, tenant: str, limit: int) -> list[RunView]:
        return [view for view in self.threads.views.values() if self._sees(actor, view)][:limit]

    async def show(self, actor: Actor, run_id: str) -> RunView:
        view = self.threads.views.get(run_id)
        if view is None or not self._sees(actor, view):
            raise NotFound(f"no such run: {run_id!r}", remedy="ringfence run ls")
        return view


@dataclass
class Health:
    world: World
    broken: bool = False

    async def ping(self) -> dict[str, Any]:
        if self.broken:
            raise RuntimeError("the inside of a failure, with a secret")
        return {"ok": True, "version": "0"}

    async def status(self, actor: Actor) -> dict[str, Any]:
        parts = {"store": {"ok": True}, "driver": {"ok": True}}
        return {"ok": True, "version": "0", "mode": "root", "parts": parts, "boxes": {"running": 0, "total": 0}}


class Engine:
    """Starts with the tenants `default` and `other`."""

    def __init__(self, folder: Path) -> None:
        world = World(folder)
        for name in ("default", "other"):
            world.tenants[name] = Tenant(TenantId(world.id("ten")), name, now())
        self.world = world
        self.people = People(world)
        self.boxes = BoxKeeper(world)
        self.commands = Commands(world, self.boxes)
        self.files = Files(world)
        self.threads = Threads(world)
        self.runs = Runs(world, self.threads)
        self.health = Health(world)

    async def start(self) -> None: ...

    async def stop(self) -> None:
        for command in self.commands.started:
            await command.stop(0.1)
            await command.release()
            command.close()
        for task in self.threads.tasks:
            task.cancel()
