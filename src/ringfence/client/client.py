"""The SDK, async. One object for everything; answers are the API's JSON as dicts, documented at /v1/openapi.json.

Holds no state but its connections. Every method raises ApiError and nothing else.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from ringfence.client import urls
from ringfence.client.address import Address, from_environment
from ringfence.client.errors import ApiError, Unavailable, from_answer
from ringfence.client.events import EventParser
from ringfence.client.http import Http

if TYPE_CHECKING:
    from ringfence.client.command import Running, Word

Json = dict[str, Any]
FINAL = frozenset({"completed", "failed", "cancelled", "parked"})
RESUME_SECONDS = 20.0  # how long a followed stream tries to come back: a restarted server needs about one
RESUME_PAUSE = 0.2


class Client:
    """`socket` (operators), or `url` and `token`; neither: as the environment says. `act_as`: an operator acts as that
    user of `tenant`; `tenant` is also the default of every method."""

    def __init__(
        self,
        *,
        socket: str | None = None,
        url: str | None = None,
        token: str | None = None,
        act_as: str | None = None,
        tenant: str = "default",
    ) -> None:
        given = Address(socket if url is None else None, url, token)
        self._address = given if socket or url else from_environment()
        self._headers = urls.identity(self._address.token, act_as, tenant)
        self._http = Http(self._address, self._headers)
        self._tenant = tenant

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.close()

    def _user(self, user: str, tenant: str | None) -> str:
        return urls.user_path(tenant or self._tenant, user)

    def _thread(self, thread: str, tenant: str | None) -> str:
        return urls.thread_path(tenant or self._tenant, thread)

    def _in_tenant(self, tenant: str | None, noun: str) -> str:
        return f"/v1/tenants/{urls.segment(tenant or self._tenant)}/{noun}"

    async def _json(self, method: str, path: str, body: object = None) -> Any:
        return await self._http.json(method, path, body)

    # --- the server --------------------------------------------------------------------------------------------------

    async def health(self) -> Json:
        """Needs no credential."""
        answer: Json = await self._json("GET", "/v1/health")
        return answer

    async def status(self) -> Json:
        answer: Json = await self._json("GET", "/v1/status")
        return answer

    # --- people ------------------------------------------------------------------------------------------------------

    async def tenants(self) -> list[Json]:
        return list((await self._json("GET", "/v1/tenants"))["tenants"])

    async def add_tenant(self, name: str) -> Json:
        answer: Json = await self._json("POST", "/v1/tenants", {"name": name})
        return answer

    async def remove_tenant(self, name: str) -> None:
        await self._json("DELETE", f"/v1/tenants/{urls.segment(name)}")

    async def users(self, *, tenant: str | None = None) -> list[Json]:
        return list((await self._json("GET", self._in_tenant(tenant, "users")))["users"])

    async def add_user(
        self, name: str, *, kind: str = "person", owner: str | None = None, tenant: str | None = None
    ) -> Json:
        body = {"name": name, "kind": kind, "owner": owner}
        answer: Json = await self._json("POST", self._in_tenant(tenant, "users"), body)
        return answer

    async def user(self, name: str, *, tenant: str | None = None) -> Json:
        answer: Json = await self._json("GET", self._user(name, tenant))
        return answer

    async def remove_user(self, name: str, *, purge: bool = False, tenant: str | None = None) -> None:
        """`purge`: the files too, now and for good."""
        await self._json("DELETE", self._user(name, tenant) + ("?purge=1" if purge else ""))

    async def tokens(self, user: str, *, tenant: str | None = None) -> list[Json]:
        return list((await self._json("GET", f"{self._user(user, tenant)}/tokens"))["tokens"])

    async def add_token(
        self,
        user: str,
        *,
        scopes: Sequence[str] = ("user",),
        note: str = "",
        ttl_seconds: float | None = None,
        tenant: str | None = None,
    ) -> Json:
        """Its `token` is in this answer and nowhere else, ever."""
        body = {"scopes": list(scopes), "note": note, "ttl_seconds": ttl_seconds}
        answer: Json = await self._json("POST", f"{self._user(user, tenant)}/tokens", body)
        return answer

    async def remove_token(self, user: str, token_id: str, *, tenant: str | None = None) -> None:
        await self._json("DELETE", f"{self._user(user, tenant)}/tokens/{urls.segment(token_id)}")

    # --- boxes -------------------------------------------------------------------------------------------------------

    async def boxes(self, *, tenant: str | None = None) -> list[Json]:
        """Of all tenants, unless one is named."""
        return list((await self._json("GET", "/v1/boxes" + urls.query(tenant=tenant)))["boxes"])

    async def box(self, user: str, *, tenant: str | None = None) -> Json:
        answer: Json = await self._json("GET", f"{self._user(user, tenant)}/box")
        return answer

    async def start_box(self, user: str, *, tenant: str | None = None) -> Json:
        answer: Json = await self._json("POST", f"{self._user(user, tenant)}/box/start")
        return answer

    async def stop_box(self, user: str, *, tenant: str | None = None) -> Json:
        answer: Json = await self._json("POST", f"{self._user(user, tenant)}/box/stop")
        return answer

    async def set_limits(self, user: str, limits: Mapping[str, int], *, tenant: str | None = None) -> Json:
        """Names and units as in `box()["limits"]`, of which only the given ones change."""
        answer: Json = await self._json("PATCH", f"{self._user(user, tenant)}/box/limits", dict(limits))
        return answer

    # --- commands ----------------------------------------------------------------------------------------------------

    def stream(
        self,
        user: str,
        argv: Sequence[Word],
        *,
        env: Mapping[str, Word] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        stdin: Literal["null", "pipe"] = "null",
        output: Literal["stream", "keep"] = "stream",
        tenant: str | None = None,
    ) -> AbstractAsyncContextManager[Running]:
        """A running command: `async with client.stream("ann", ["make"]) as command`. Leaving early stops it."""
        from ringfence.client.command import request, running

        first = request(argv, env or {}, cwd, timeout, stdin, output)
        return running(self._address, f"{self._user(user, tenant)}/exec/stream", self._headers, first)

    async def exec(
        self,
        user: str,
        argv: Sequence[Word],
        *,
        stdin: bytes | AsyncIterator[bytes] | None = None,
        env: Mapping[str, Word] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the command's, kept by the box
        tenant: str | None = None,
    ) -> Json:
        """Runs it to its end; the object of `exec --json`. Of each stream the first 64 KiB and the last 192 KiB."""
        opened = self.stream(
            user,
            argv,
            env=env,
            cwd=cwd,
            timeout=timeout,
            stdin="null" if stdin is None else "pipe",
            output="keep",
            tenant=tenant,
        )
        async with opened as command:
            if isinstance(stdin, bytes):
                await command.write(stdin)
            elif stdin is not None:
                async for data in stdin:
                    await command.write(data)
            if stdin is not None:
                await command.close_stdin()
            return await command.outcome()

    # --- files -------------------------------------------------------------------------------------------------------

    def _file(self, user: str, path: Word, tenant: str | None, kind: str = "", **more: str | bytes | int | None) -> str:
        return f"{self._user(user, tenant)}/files{kind}{urls.query(path=path, **more)}"

    async def put_file(
        self,
        user: str,
        path: Word,
        data: bytes | AsyncIterator[bytes],
        *,
        mode: int = 0o644,
        tenant: str | None = None,
    ) -> Json:
        """All of it under the name, or nothing."""
        answer: Json = await self._http.upload(self._file(user, path, tenant, mode=f"{mode:o}"), data)
        return answer

    def open_file(
        self, user: str, path: Word, *, tenant: str | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The bytes in chunks: `async with client.open_file("ann", "x") as chunks: async for chunk in chunks`."""
        return self._http.stream(self._file(user, path, tenant))

    async def get_file(self, user: str, path: Word, *, tenant: str | None = None) -> bytes:
        """All of it in memory; for what is large there is open_file."""
        async with self.open_file(user, path, tenant=tenant) as chunks:
            return b"".join([chunk async for chunk in chunks])

    async def stat_file(self, user: str, path: Word, *, tenant: str | None = None) -> Json:
        answer: Json = await self._json("GET", self._file(user, path, tenant, "/stat"))
        return answer

    async def list_files(self, user: str, path: Word = ".", *, tenant: str | None = None) -> list[Json]:
        """All entries, sorted by name. `name`, or `name_b64` when it is not UTF-8."""
        entries: list[Json] = []
        after: str | None = None
        while True:
            page = await self._json("GET", self._file(user, path, tenant, "/list", after=after))
            entries.extend(page["entries"])
            after = page["next"]
            if after is None:
                return entries

    async def remove_file(self, user: str, path: Word, *, recursive: bool = False, tenant: str | None = None) -> None:
        await self._json("DELETE", self._file(user, path, tenant, recursive="1" if recursive else None))

    # --- threads -----------------------------------------------------------------------------------------------------

    async def threads(self, *, tenant: str | None = None) -> list[Json]:
        return list((await self._json("GET", self._in_tenant(tenant, "threads")))["threads"])

    async def add_thread(
        self, name: str, *, members: Sequence[str] = (), parallel: bool = False, tenant: str | None = None
    ) -> Json:
        body = {"name": name, "members": list(members), "parallel": parallel}
        answer: Json = await self._json("POST", self._in_tenant(tenant, "threads"), body)
        return answer

    async def thread(self, name: str, *, tenant: str | None = None) -> Json:
        answer: Json = await self._json("GET", self._thread(name, tenant))
        return answer

    async def add_member(self, thread: str, user: str, *, tenant: str | None = None) -> None:
        await self._json("PUT", f"{self._thread(thread, tenant)}/members/{urls.segment(user)}")

    async def remove_member(self, thread: str, user: str, *, tenant: str | None = None) -> None:
        await self._json("DELETE", f"{self._thread(thread, tenant)}/members/{urls.segment(user)}")

    async def post_message(
        self, thread: str, text: str, *, mode: str = "queue", key: str | None = None, tenant: str | None = None
    ) -> Json:
        """Accepted, not yet answered: ids of the message, turn and run, and the event's cursor."""
        body = {"text": text, "mode": mode, "key": key}
        answer: Json = await self._json("POST", f"{self._thread(thread, tenant)}/messages", body)
        return answer

    async def messages(
        self, thread: str, *, before: int | None = None, limit: int = 200, tenant: str | None = None
    ) -> list[Json]:
        path = f"{self._thread(thread, tenant)}/messages{urls.query(before=before, limit=limit)}"
        return list((await self._json("GET", path))["messages"])

    async def events(self, thread: str, *, after: int = 0, limit: int = 200, tenant: str | None = None) -> list[Json]:
        path = f"{self._thread(thread, tenant)}/events{urls.query(after=after, limit=limit)}"
        return list((await self._json("GET", path))["events"])

    async def follow(self, thread: str, *, after: int = 0, tenant: str | None = None) -> AsyncGenerator[Json, None]:
        """Events as they happen, without end. A connection that breaks is made again behind the last event seen, for
        RESUME_SECONDS; then Unavailable."""
        path = f"{self._thread(thread, tenant)}/events/stream{urls.query(after=after)}"
        loop = asyncio.get_running_loop()
        cursor, good = after, float("-inf")  # good: when a connection last worked
        while True:
            connected = False
            try:
                async with self._http.stream(path, {"Last-Event-ID": str(cursor)}) as chunks:
                    connected = True
                    async for event in _events(chunks):
                        cursor = int(event["cursor"])
                        yield event
                good = loop.time()
            except Unavailable:
                if connected:
                    good = loop.time()
                elif loop.time() - good > RESUME_SECONDS:
                    raise
            await asyncio.sleep(RESUME_PAUSE)

    async def turn(self, turn: str) -> Json:
        answer: Json = await self._json("GET", f"/v1/turns/{urls.segment(turn)}")
        return answer

    async def say(
        self,
        thread: str,
        text: str,
        *,
        mode: str = "queue",
        key: str | None = None,
        tenant: str | None = None,
        seen: Callable[[Json], None] | None = None,
    ) -> Json:
        """Posts and waits for the end of the turn; `seen` is called with each event of it. The object of
        `say --json`; its status is `rejected` when the lane was busy and the mode was reject."""
        try:
            posted = await self.post_message(thread, text, mode=mode, key=key, tenant=tenant)
        except ApiError as error:
            if error.code != "lane_busy":
                raise
            return _said({"thread": thread}, {"state": "rejected", "reason": error.message})
        turn = await self.turn(posted["turn"])
        if turn["state"] not in FINAL:
            turn = await self._await_turn(thread, posted, tenant, seen)
        return _said(posted, turn)

    async def _await_turn(
        self, thread: str, posted: Json, tenant: str | None, seen: Callable[[Json], None] | None
    ) -> Json:
        follow = self.follow(thread, after=posted["cursor"], tenant=tenant)
        try:
            async for event in follow:
                if event.get("turn") != posted["turn"]:
                    continue
                if seen is not None:
                    seen(event)
                if event["kind"] in ("reply", "run.ended", "run.queued", "run.redriven"):
                    turn = await self.turn(posted["turn"])
                    if turn["state"] in FINAL:
                        return turn
        finally:
            await follow.aclose()
        raise Unavailable("unavailable", "the stream of events ended", "run: ringfence status")

    # --- runs --------------------------------------------------------------------------------------------------------

    async def runs(self, *, limit: int = 100, tenant: str | None = None) -> list[Json]:
        return list((await self._json("GET", self._in_tenant(tenant, "runs") + urls.query(limit=limit)))["runs"])

    async def run(self, run: str) -> Json:
        answer: Json = await self._json("GET", f"/v1/runs/{urls.segment(run)}")
        return answer


async def _events(chunks: AsyncIterator[bytes]) -> AsyncIterator[Json]:
    parser = EventParser()
    async for chunk in chunks:
        for kind, data in parser.feed(chunk):
            if kind == "error":
                raise from_answer(data)
            yield data


def _said(posted: Json, turn: Json) -> Json:
    return {
        "thread": posted["thread"],
        "message": posted.get("message"),
        "turn": posted.get("turn"),
        "run": turn.get("run") or posted.get("run"),
        "reply": turn.get("reply"),
        "status": turn["state"],
        "reason": turn.get("reason", ""),
        "gates": [],
    }


def name_of(entry: Json) -> bytes:
    """The raw name of an entry of list_files or stat_file."""
    name = entry.get("name")
    return name.encode() if isinstance(name, str) else b64decode(entry["name_b64"])
