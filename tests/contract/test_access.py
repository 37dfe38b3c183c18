"""Who gets what of whom: everybody at every route, on the real engine, store, broker and web.

A route without a row in TABLE fails: whoever adds one says here who may use it and what of alice's the answer may hold. The
wire's methods are in test_access_wire.py.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest
from sqlalchemy.engine import Connection
from starlette.routing import Route, WebSocketRoute
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from ringfence.host.engine import redaction
from ringfence.host.engine.viewers import Viewers
from ringfence.host.kernel import access
from ringfence.host.kernel.access import Action, Relation
from ringfence.host.kernel.people import User
from ringfence.host.store import people
from ringfence.host.web.app import make_app
from tests.support import access_rows
from tests.support.access_rig import ALICE, WHO, Answer, At, Scene, absent, found, scene
from tests.support.access_rows import (
    ANYBODY,
    COPIES,
    GLASS,
    LIMITS,
    LOGGED_IN,
    MEMBER_CHANGE,
    MEMBER_READ,
    OF_TENANT,
    OPERATORS_MAKE,
    OPERATORS_NO_CA,
    OPERATORS_READ,
    OPERATORS_REFUSE,
    OUTWARD,
    OWN_ANSWER,
    OWN_CHANGE,
    OWN_DELETE,
    OWN_MAKE,
    OWN_READ,
    OWN_RUN,
    POST,
    REMOVAL,
    REMOVE,
    TENANT_MAKE,
    TEXT_READ,
    Row,
    T,
    U,
    each,
    row,
)
from tests.support.engine_rig import OPERATOR, eventually
from tests.support.store import newest

TALK = "text path reply"
SAID = f"{TALK} run name"
FILE = f"?path={ALICE['path']}"
TABLE: dict[str, Row] = {
    "GET /v1/openapi.json": row(ANYBODY),
    "GET /v1/health": row(ANYBODY),
    "GET /v1/status": row(LOGGED_IN),
    "POST /v1/sweep": row(OPERATORS_READ, {"dry_run": True}),
    "GET /v1/audit": row(OPERATORS_READ, operators="secret host name"),
    "GET /v1/audit/traffic": row(OPERATORS_READ),
    "GET /v1/audit/verify": row(OPERATORS_READ),
    "POST /v1/backup": row(OPERATORS_NO_CA, {}),  # who of the operators: tests/acceptance/test_backup.py
    "GET /v1/tenants": row(LOGGED_IN),
    "POST /v1/tenants": row(OPERATORS_MAKE, {"name": "of-WHO"}),
    "GET /v1/tenants/{tenant}/users": row(OF_TENANT, reads="name", operators="name"),
    "POST /v1/tenants/{tenant}/users": row(OPERATORS_MAKE, {"name": "of-WHO"}),
    f"GET {U}": row(OWN_READ),
    f"GET {U}/usage": row(OWN_READ),
    "GET /v1/tenants/{tenant}/usage": row(OPERATORS_READ, operators="name"),
    f"GET {U}/export": row(OWN_READ),  # packed: what is in it is looked at in test_engine_exporting.py
    f"GET {U}/removal": row(REMOVAL, operators="thread secret box"),
    f"GET {U}/tokens": row(OWN_READ),
    f"POST {U}/tokens": row(OWN_MAKE, {}),
    f"DELETE {U}/tokens/{{token}}": row(OWN_DELETE),
    "GET /v1/boxes": row(LOGGED_IN, reads="name box", operators="name box"),
    f"GET {U}/box": row(OWN_READ, reads="box", operators="box"),
    f"POST {U}/box/start": row(OWN_CHANGE, owner="box", operators="box"),
    f"PATCH {U}/box/limits": row(LIMITS, {"pids": 100}, operators="box"),
    **COPIES,
    f"POST {U}/exec": row(OWN_CHANGE, {"argv": ["true"]}),
    f"GET {U}/files": row(OWN_READ, query=FILE, reads="file", operators="file"),
    f"GET {U}/files/stat": row(OWN_READ, query=FILE),
    f"GET {U}/files/list": row(OWN_READ, query="?path=.", reads="path", operators="path"),
    f"PUT {U}/files": row(OWN_CHANGE, query="?path=new"),
    f"DELETE {U}/files": row(OWN_DELETE, query="?path=new"),
    "GET /v1/tenants/{tenant}/threads": row(OF_TENANT, member="thread", reads="thread", operators="thread"),
    "POST /v1/tenants/{tenant}/threads": row(TENANT_MAKE, {"name": "of-WHO"}, owner="name"),
    f"GET {T}": row(MEMBER_READ, member="name", reads="name", operators="name"),
    f"PUT {T}/members/{{user}}": row(MEMBER_CHANGE),
    f"GET {T}/messages": row(TEXT_READ, member=f"{TALK} name", reads=f"{TALK} name", glass=f"{TALK} name"),
    f"GET {T}/events": row(MEMBER_READ, member=SAID, reads=f"{SAID} detail", operator="run name", glass=SAID),
    f"GET {T}/events/stream": row(MEMBER_READ, member=SAID, reads=f"{SAID} detail", operator="run name", glass=SAID),
    "GET /v1/turns/{turn}": row(MEMBER_READ, member="run reply", reads="run reply", operator="run", glass="run reply"),
    "GET /v1/tenants/{tenant}/runs": row(
        OF_TENANT, member="run name thread", reads="run name thread box", operators="run name thread box"
    ),
    "GET /v1/runs/{run}": row(
        MEMBER_READ,
        member="name thread",
        reads="name thread box command result",
        operators="name thread box",
    ),
    f"POST {T}/messages": row(POST, {"text": "hi"}),
    "POST /v1/runs/{run}/redrive": row(OWN_RUN, run="failed", owner="name box", operators="name box"),
    "POST /v1/runs/{run}/cancel": row(OWN_RUN, run="live", owner="name thread box", operators="name thread box"),
    "GET /v1/tenants/{tenant}/gates": row(OF_TENANT, reads="name", operators="name"),
    "GET /v1/gates/{gate}": row(OWN_READ, reads="name asked", operators="name"),
    "POST /v1/gates/{gate}/answer": row(OWN_ANSWER, {"answer": "allow"}, owner="name asked"),
    **OUTWARD,
    f"POST {T}/break-glass": row(GLASS, {"reason": "incident 7"}),
    f"POST {U}/box/stop": row(OWN_CHANGE, owner="box", operators="box"),
    f"POST {U}/box/quarantine": row(LIMITS, {"reason": "odd"}, operators="box"),
    f"POST {U}/box/release": row(LIMITS, operators="box"),
    f"DELETE {T}/members/{{user}}": row(MEMBER_CHANGE),
    "DELETE /v1/tenants/{tenant}": row(OPERATORS_REFUSE),
    f"DELETE {U}": row(REMOVE),
}
SOCKETS = {f"{U}/exec/stream": "401 401 not_found not_found not_found ok refused ok ok"}


async def _fresh_token(s: Scene) -> None:
    token, _ = await s.engine.people.token_add(OPERATOR, "default", "alice", [], "", None)
    s.names["token"] = token.id


async def _fresh_file(s: Scene) -> None:
    (s.box("alice").folder / "new").write_text("new")


async def _member_again(s: Scene) -> None:
    await s.engine.threads.set_member(OPERATOR, "default", s.names["thread"], "alice", True)


async def _user_again(s: Scene) -> None:
    if "alice" not in {user.name for user in await s.store.users.all("default")}:
        await s.engine.people.user_add(OPERATOR, "default", "alice")


async def _failed_again(s: Scene) -> None:
    """In a thread of hers and carol's, so that it need not wait for another."""
    s.runs["failed"] = await s.fails("alice", f"again-{s.ids.new('n')}")


BEFORE: dict[str, Callable[[Scene], Awaitable[None]]] = {
    **access_rows.BEFORE,
    f"DELETE {U}/tokens/{{token}}": _fresh_token,
    f"DELETE {U}/files": _fresh_file,
    f"DELETE {T}/members/{{user}}": _member_again,
    f"DELETE {U}": _user_again,
    "POST /v1/runs/{run}/redrive": _failed_again,
}
"""What a cell needs that the one before it may have used up."""


def names_of(s: Scene, route: str) -> dict[str, str]:
    return {**s.names, "run": s.runs[TABLE[route].run].run}


async def asked(s: Scene, route: str, who: str, names: Mapping[str, str]) -> Answer:
    given = TABLE[route]
    method, path = route.split(" ", 1)
    content = None if given.body is None else json.dumps(given.body).replace("WHO", who).encode()
    if method == "PUT" and path.endswith("/files"):
        content = b"new"
    return await s.http(who, method, path.format(**names) + given.query, content)


async def cell(s: Scene, route: str, who: str) -> list[str]:
    """What is not as the table says."""
    if route in BEFORE:
        await BEFORE[route](s)
    given, names = TABLE[route], names_of(s, route)
    answer = await asked(s, route, who, names)
    wrong = []
    if answer.status != given.status(who):
        wrong.append(f"{route} of {who}: {answer.status}, not {given.status(who)}: {answer.body[:300]!r}")
    address = route.format(**names) + given.query
    counted = {kind: canary for kind, canary in s.canaries.items() if canary.strip('"') not in address}
    if (seen := found(answer.body, counted)) != given.kinds(who):
        wrong.append(f"{route} of {who}: shows {sorted(seen)}, not {sorted(given.kinds(who))}")
    if answer.status >= 400 and set(answer.json["error"]) != {"code", "message", "remedy", "details"}:
        wrong.append(f"{route} of {who}: an error of another shape")
    return wrong


async def walked(s: Scene, routes: Iterable[str]) -> list[str]:
    return [line for route in routes for who in WHO for line in await cell(s, route, who)]


# --- the table -------------------------------------------------------------------------------------------------------


async def test_every_route_has_a_row() -> None:
    async with scene() as s:
        routes = list(_routes(make_app(s.engine, operator=False)))
    plain = [route for route in routes if isinstance(route, Route)]
    sockets = [route for route in routes if isinstance(route, WebSocketRoute)]
    assert len(plain) + len(sockets) == len(routes), "a route of another kind"
    asked = {f"{method} {route.path}" for route in plain for method in (route.methods or ())}
    assert asked - {"HEAD /v1/openapi.json"} == set(TABLE)
    assert {route.path for route in sockets} == set(SOCKETS)


def _routes(router: Any) -> Iterator[Any]:
    """Also those that the API's document does not show."""
    for route in router.routes:
        inner = getattr(route, "original_router", None)
        if inner is None:
            yield route
        else:
            yield from _routes(inner)


async def test_everybody_at_every_route() -> None:
    async with scene() as s:
        wrong = await walked(s, TABLE)
        recorded = {entry["action"] for entry in await newest(s.store.audit, 1000)}
    assert not wrong, "\n".join(wrong)
    assert recorded >= {"thread.break_glass", "run.cancel", "run.redrive", "user.change", "files.read", "exec"}


# --- what is hidden is not there -------------------------------------------------------------------------------------

NOTHING_LIKE_IT = {("stranger", f"POST {T}/messages", key) for key in ("tenant", "thread")}
"""Saying something to a name that nothing has makes the thread: there is no absent one to compare with. That the tenant of
the one who asks exists is no news to them."""


async def told_apart(s: Scene, route: str, who: str) -> list[str]:
    """How the answer to somebody who may not know of a thing differs from the one for a name that nothing has: in status,
    headers, body, or in what the store was asked."""
    names, wrong = names_of(s, route), []
    await asked(s, route, who, names)  # a token's first use is written down, now and then
    hidden, asks = await _counted(s, route, who, names)
    for key in re.findall(r"{(\w+)}", route):
        if (who, route, key) in NOTHING_LIKE_IT:
            continue
        other = absent(names[key])
        answer, looked = await _counted(s, route, who, {**names, key: other})
        swapped = answer.body.replace(other.encode(), names[key].encode())
        if (answer.status, answer.headers, swapped) != (hidden.status, hidden.headers, hidden.body):
            wrong.append(f"{route} of {who}: no such {key}: {answer}, not {hidden}")
        if looked != asks:
            wrong.append(f"{route} of {who}: no such {key}: {len(looked)} questions to the store, not {len(asks)}")
    return wrong


async def _counted(s: Scene, route: str, who: str, names: Mapping[str, str]) -> tuple[Answer, list[str]]:
    with s.statements.counted() as asks:
        return await asked(s, route, who, names), asks


async def test_hidden_is_absent() -> None:
    """And where nobody is known, or nothing may be done by anybody but an operator, no name is looked for either."""
    outside = {"foreign", "stranger"}
    cells = [
        (route, who)
        for route, given in TABLE.items()
        for who in WHO
        if given.status(who) in (401, 404) or (given.status(who) == 403 and who in outside)
    ]
    assert len(cells) > 100
    async with scene() as s:
        wrong = [line for route, who in cells for line in await told_apart(s, route, who)]
    assert not wrong, "\n".join(wrong)


async def test_everybody_at_the_socket_of_commands() -> None:
    async with scene() as s:
        for path, ends in SOCKETS.items():
            for who, end in zip(WHO, ends.split(), strict=True):
                told, asks = await _command(s, who, path.format(**s.names))
                assert json.loads(told).get("code", "ok") == end, (path, who)
                for key in ("tenant", "user") if end == "not_found" else ():
                    other = absent(s.names[key])
                    answer, looked = await _command(s, who, path.format(**{**s.names, key: other}))
                    assert (answer.replace(other, s.names[key]), looked) == (told, asks), (who, key)


async def _command(s: Scene, who: str, path: str) -> tuple[str, int]:
    """(the error or {"code": the status of a refused handshake} as JSON, {} when it ran; questions to the store)."""
    await s.http(who, "GET", "/v1/boxes")  # a token's first use is written down, now and then
    with s.statements.counted() as asks:
        return await _frames(s, who, path), len(asks)


async def _frames(s: Scene, who: str, path: str) -> str:
    url = f"ws://localhost{path}" if who == "operator" else str(s.tcp.base_url).replace("http", "ws").rstrip("/") + path
    options: dict[str, Any] = {"unix": True, "path": str(s.socket_path)} if who == "operator" else {}
    try:
        async with connect(url, additional_headers=s.bearer(who), proxy=None, **options) as socket:
            await socket.send('{"argv": ["true"]}')
            async for frame in socket:
                if isinstance(frame, str) and "error" in (said := json.loads(frame)):
                    return json.dumps(said["error"])
    except InvalidStatus as error:
        return json.dumps({"code": str(error.response.status_code)})
    return "{}"


# --- as it happens ---------------------------------------------------------------------------------------------------

LIVE = {"member": "reply", "reads": "reply live", "operator": "", "glass": "reply", "poster": "own"}
"""What each is shown by a stream that was open while alice's run worked. `poster`: carol, by the stream of a message of her
own, whose reply is `own`."""


async def live_leaks(s: Scene) -> list[str]:
    """Everybody who may follow the thread does, and carol her own message, while alice's run says what only she may see."""
    watchers = [who for who in WHO if TABLE[f"GET {T}/events/stream"].status(who) == 200]
    opened = {who: asyncio.Event() for who in [*watchers, "poster"]}
    path = T.format(**s.names)
    async with asyncio.TaskGroup() as group:
        tasks = {who: group.create_task(s.follow(who, "GET", f"{path}/events/stream", opened[who])) for who in watchers}
        tasks["poster"] = group.create_task(s.follow("member", "POST", f"{path}/messages", opened["poster"]))
        for event in opened.values():
            await asyncio.wait_for(event.wait(), 30)
        await _alice_speaks(s)
    canaries = {**s.canaries, "own": "canary-own"}
    kinds = set(canaries) - {"name", "run", "thread"}
    shown = {who: found(task.result(), canaries) & kinds for who, task in tasks.items()}
    shown = {who: kinds if who == "poster" else kinds - {"own"} for who, kinds in shown.items()}
    wanted = each(LIVE)
    return [f"{who} is shown {sorted(kinds)}" for who, kinds in shown.items() if kinds != set(wanted[who].split())]


async def _alice_speaks(s: Scene) -> None:
    """Deltas and progress of her run; then both runs come to their ends, hers first."""
    live = s.runs["live"]
    chat: list[dict[str, Any]] = [{"role": "user", "text": "say it", "tool_calls": [], "tool_call_id": None}]
    tools = [{"name": "shell", "description": "", "parameters": {"type": "object"}}]
    said = await live.does("model.generate", model="scripted", call=1, messages=chat, blob=None, tools=tools)
    assert said["text"] == ALICE["live"]
    await live.does("run.event", text=f"looking at {ALICE['live']}")
    await s.finish(live, ALICE["reply"])
    box = s.box("carol").id
    await eventually(lambda: s.driver.guest(box).starts, "carol's run")  # another guest once her box is up
    guest = s.driver.guest(box)
    run, start = next(iter(guest.starts.items()))
    await s.finish(At(guest, run, start["token"], ""), "canary-own")


async def test_live_text_is_its_actors_own() -> None:
    async with scene() as s:
        wrong = await live_leaks(s)
    assert not wrong, "\n".join(wrong)


# --- the table can fail ----------------------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]
Look = Callable[[Scene], Awaitable[list[str]]]


def opens(action: Action, *relations: Relation) -> Patch:
    rule = access.RULES[action]
    wider = access.Rule(rule.allowed | set(relations), rule.changes, rule.recorded, rule.told - set(relations))
    return lambda patch: patch.setitem(access.RULES, action, wider)


def tells(action: Action) -> Patch:
    rule = access.RULES[action]
    louder = access.Rule(rule.allowed, rule.changes, rule.recorded, rule.told | {Relation.STRANGER})
    return lambda patch: patch.setitem(access.RULES, action, louder)


def both(first: Patch, second: Patch) -> Patch:
    def patched(patch: pytest.MonkeyPatch) -> None:
        first(patch)
        second(patch)

    return patched


def to_all(patch: pytest.MonkeyPatch) -> None:
    def publish(self: Viewers, thread: str, actor: str, item: Any) -> None:
        for watches in self._watches.values():
            for watch in watches:
                watch.put(item)

    patch.setattr(Viewers, "publish", publish)


def in_a_hurry(patch: pytest.MonkeyPatch) -> None:
    """For a tenant that is not there no user is looked for."""
    patient = people.find_user

    def find_user(connection: Connection, tenant: str, name: str) -> User:
        people.find_tenant(connection, tenant)
        return patient(connection, tenant, name)

    patch.setattr(people, "find_user", find_user)


def at(*routes: str) -> Look:
    return lambda s: walked(s, routes)


def apart(route: str, who: str) -> Look:
    return lambda s: told_apart(s, route, who)


MUTANTS: dict[str, tuple[Patch, Look, str]] = {
    "strangers read text": (opens(Action.THREAD_READ, Relation.STRANGER), at(f"GET {T}/messages"), "of stranger"),
    "strangers see events": (opens(Action.THREAD_SEE, Relation.STRANGER), at(f"GET {T}/events"), "of foreign"),
    "members see steps": (
        both(opens(Action.RUN_STEPS, Relation.MEMBER), opens(Action.RUN_DETAIL, Relation.MEMBER)),
        at("GET /v1/runs/{run}"),
        "of member: shows ['command'",
    ),
    "strangers see gates": (opens(Action.GATE_SEE, Relation.STRANGER), at("GET /v1/gates/{gate}"), "of stranger: 200"),
    "operators see what is asked": (
        opens(Action.GATE_DETAIL, Relation.OPERATOR),
        at("GET /v1/gates/{gate}"),
        "of operator: shows ['asked'",
    ),
    "members cancel": (opens(Action.RUN_CANCEL, Relation.MEMBER), at("POST /v1/runs/{run}/cancel"), "of member: 202"),
    "operators read text": (opens(Action.THREAD_READ, Relation.OPERATOR), at(f"GET {T}/messages"), "of operator"),
    "strangers take files": (opens(Action.FILES_READ, Relation.STRANGER), at(f"GET {U}/files"), "of stranger"),
    "strangers are told": (tells(Action.THREAD_READ), at(f"GET {T}/messages"), "of stranger: 403"),
    "details for members": (
        lambda patch: patch.setattr(redaction, "ACTOR_ONLY", frozenset()),
        at(f"GET {T}/events"),
        "of member: shows ['detail'",
    ),
    "strangers see credentials": (
        opens(Action.SECRET_SEE, Relation.STRANGER),
        at(f"GET {U}/secrets"),
        "of stranger: shows ['host', 'secret']",
    ),
    "users change everybody's rules": (
        opens(Action.EGRESS_LAYER_CHANGE, Relation.SELF, Relation.STRANGER),
        at("POST /v1/tenants/{tenant}/egress"),
        "of foreign: 201",
    ),
    "boxes for members": (opens(Action.BOX_SEE, Relation.MEMBER), at("GET /v1/tenants/{tenant}/runs"), "of member"),
    "live text for all": (to_all, live_leaks, "member is shown"),
    "no tenant is told in time": (in_a_hurry, apart(f"GET {U}", "foreign"), "questions to the store"),
}


@pytest.mark.parametrize("name", MUTANTS)
async def test_a_wall_that_is_gone_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, look, says = MUTANTS[name]
    async with scene() as s:
        assert await look(s) == []
    patch(monkeypatch)
    async with scene() as s:
        wrong = await look(s)
    assert any(says in line for line in wrong), wrong
