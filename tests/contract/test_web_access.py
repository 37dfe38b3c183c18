"""Who gets what from each route. A route without a row in TABLE fails: whoever adds one says here who may use it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from starlette.routing import WebSocketRoute

from ringfence.host.web.app import make_app
from ringfence.host.web.exec_stream import router as exec_stream_router
from tests.support.engine_double import Engine
from tests.support.web_rig import Web, web

U = "/v1/tenants/{tenant}/users/{user}"
T = "/v1/tenants/{tenant}/threads/{thread}"
FILE = {"query": "?path=x"}


@dataclass(frozen=True)
class Row:
    """The status that each gets: somebody without a token, a user of another tenant, a user of the same tenant who has
    nothing to do with it, the owner, an operator."""

    anonymous: int
    foreign: int
    neighbour: int
    owner: int
    operator: int
    body: Any = None
    query: str = ""


def private(ok: int, body: Any = None, query: str = "") -> Row:
    """The owner's own, and the operators'."""
    return Row(401, 404, 404, ok, ok, body, query)


def operators(ok: int, body: Any = None, neighbour: int = 403) -> Row:
    return Row(401, neighbour, neighbour, 403, ok, body)


TABLE: dict[str, Row] = {
    "GET /v1/health": Row(200, 200, 200, 200, 200),
    "GET /v1/status": Row(401, 200, 200, 200, 200),
    "GET /v1/tenants": operators(200),
    "POST /v1/tenants": operators(201, {"name": "of-WHO"}),
    "DELETE /v1/tenants/{tenant}": operators(409),
    "GET /v1/tenants/{tenant}/users": Row(401, 200, 200, 200, 200),
    "POST /v1/tenants/{tenant}/users": operators(201, {"name": "of-WHO"}),
    f"GET {U}": private(200),
    f"DELETE {U}": operators(204),
    f"GET {U}/tokens": private(200),
    f"POST {U}/tokens": private(201, {}),
    f"DELETE {U}/tokens/{{token}}": private(204),
    "GET /v1/boxes": Row(401, 200, 200, 200, 200),
    f"GET {U}/box": private(200),
    f"POST {U}/box/start": private(200),
    f"POST {U}/box/stop": private(200),
    f"PATCH {U}/box/limits": operators(200, {"pids": 100}),
    f"POST {U}/exec": private(200, {"argv": ["true"]}),
    f"GET {U}/files": private(200, **FILE),
    f"PUT {U}/files": private(200, **FILE),
    f"DELETE {U}/files": private(204, **FILE),
    f"GET {U}/files/stat": private(200, **FILE),
    f"GET {U}/files/list": private(200, query="?path=."),
    "GET /v1/tenants/{tenant}/threads": Row(401, 200, 200, 200, 200),
    "POST /v1/tenants/{tenant}/threads": Row(401, 404, 201, 201, 201, {"name": "of-WHO"}),
    f"GET {T}": private(200),
    f"PUT {T}/members/{{user}}": private(204),
    f"DELETE {T}/members/{{user}}": private(204),
    f"POST {T}/messages": private(202, {"text": "hi"}),
    f"GET {T}/messages": private(200),
    f"GET {T}/events": private(200),
    f"GET {T}/events/stream": private(200),
    "GET /v1/turns/{turn}": private(200),
    "GET /v1/tenants/{tenant}/runs": Row(401, 200, 200, 200, 200),
    "GET /v1/runs/{run}": private(200),
}
WEBSOCKETS = {f"{U}/exec/stream"}


@dataclass
class Scene:
    web: Web
    tokens: dict[str, str | None]
    names: dict[str, str]


@pytest.fixture
def scene() -> Iterator[Scene]:
    """Alice has a token, a file, and a thread with a run; bob is her neighbour; eve is of another tenant."""
    with web() as served:
        for name, tenant in (("alice", "default"), ("bob", "default"), ("eve", "other")):
            served.user(name, tenant)
        tokens = {
            "anonymous": None,
            "foreign": served.token("eve", tenant="other"),
            "neighbour": served.token("bob"),
            "owner": served.token("alice"),
            "operator": served.token("bob", "operator"),
        }
        engine = served.engine
        (engine.world.home("default", "alice") / "x").write_text("x")
        alice = served.does(engine.people.authenticate(str(tokens["owner"])))
        said = served.does(engine.threads.say(alice, "default", "talk", "hello", "queue", None))
        spare = served.does(engine.people.token_add(alice, "default", "alice", ["user"], "", None))[0]
        names = {"tenant": "default", "user": "alice", "thread": "talk", "token": spare.id}
        yield Scene(served, tokens, {**names, "turn": said.turn.id, "run": said.run.id})


def ask(scene: Scene, route: str, who: str) -> tuple[int, Any]:
    row = TABLE[route]
    method, path = route.split(" ", 1)
    headers = {"Authorization": f"Bearer {scene.tokens[who]}"} if scene.tokens[who] else {}
    content = (
        json.dumps(row.body).replace("WHO", who).encode()
        if row.body is not None
        else b"new"
        if method == "PUT"
        else None
    )
    if row.body is not None:
        headers["Content-Type"] = "application/json"
    url = scene.web.url + path.format(**scene.names) + row.query
    with (
        httpx2.Client(trust_env=False) as client,
        client.stream(method, url, headers=headers, content=content) as response,
    ):
        if response.headers.get("content-type", "").startswith("application/json"):
            return response.status_code, json.loads(response.read() or b"null")
        return response.status_code, None


def test_every_route_has_a_row() -> None:
    document = make_app(Engine.__new__(Engine), operator=False).openapi()
    routes = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert routes == set(TABLE)
    assert {route.path for route in exec_stream_router.routes if isinstance(route, WebSocketRoute)} == WEBSOCKETS


@pytest.mark.parametrize("route", TABLE)
def test_a_route_answers_as_its_row_says(scene: Scene, route: str) -> None:
    row = TABLE[route]
    for who in ("anonymous", "foreign", "neighbour", "operator", "owner"):
        if who == "owner" and route.startswith("DELETE"):
            continue  # the operator has just removed it; test_what_is_the_owners_own has the owner's case
        status, answer = ask(scene, route, who)
        assert status == getattr(row, who), (who, answer)
        if status >= 400:
            assert set(answer["error"]) == {"code", "message", "remedy", "details"}


@pytest.mark.parametrize("route", [route for route in TABLE if route.startswith("DELETE")])
def test_what_is_the_owners_own(scene: Scene, route: str) -> None:
    assert ask(scene, route, "owner")[0] == TABLE[route].owner


def test_hidden_is_told_like_absent(scene: Scene) -> None:
    for route in (f"GET {U}", f"GET {U}/box", f"GET {T}", f"GET {T}/events"):
        _, hidden = ask(scene, route, "neighbour")
        absent = Scene(scene.web, scene.tokens, {**scene.names, "user": "nobody", "thread": "none"})
        _, missing = ask(absent, route, "neighbour")
        swapped = json.dumps(missing).replace("nobody", "alice").replace("'none'", "'talk'")
        assert json.loads(swapped) == hidden
