"""The HTTP face against hostile and clumsy callers: credentials, hosts, origins, sizes, names, failures."""

from __future__ import annotations

import http.client
import json
import re
import socket
import struct
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from ringfence.client import Client, Invalid, NotFound, Refused, Unauthenticated
from ringfence.client.address import Address
from ringfence.host.web.peer import Admission, Peer, peer_of
from tests.support.web_rig import Web, web


@pytest.fixture(scope="module")
def served() -> Iterator[Web]:
    with web() as made:
        made.user("alice")
        made.user("bob")
        yield made


def call(served: Web, method: str, path: str, token: str | None = None, **options: Any) -> tuple[int, Any, Any]:
    """(status, JSON, headers) over TCP."""
    given = options.pop("headers", {})
    headers = {**given, "Authorization": f"Bearer {token}"} if token else given
    with httpx2.Client(trust_env=False) as client:
        response = client.request(method, served.url + path, headers=headers, **options)
    return response.status_code, response.json() if response.content else None, response.headers


def test_credentials(served: Web) -> None:
    good = served.token("alice")
    assert call(served, "GET", "/v1/tenants/default/users/alice", good)[0] == 200  # the control
    expired = served.token("alice", ttl=-1)
    for token, word in ((None, "no token"), ("wrong", "not valid"), (expired, "expired"), ("", "no token")):
        status, answer, headers = call(served, "GET", "/v1/tenants/default/users/alice", token)
        assert status == 401
        assert word in answer["error"]["message"]
        assert headers["www-authenticate"].startswith("Bearer")
    user = "/v1/tenants/default/users/alice"
    for header in (f"bearer {good}", f"Bearer  {good}"):
        assert call(served, "GET", user, headers={"Authorization": header})[0] == 200, header
    for header in (
        f"Basic {good}",
        good,
        f"Bearer  {good} x",
        f"Bearer \xa0{good}",
        f"Bearer {good}\xa0",
        f"Bearer\xa0{good}",
    ):
        status = call(served, "GET", user, headers=[(b"Authorization", header.encode("latin-1"))])[0]
        assert status == 401, header


def test_who_speaks_is_asked_before_what_they_say_is_read(served: Web) -> None:
    """On every route: a body that is no JSON, of whom nobody knows, is 401. Control: of whom one knows it is 422."""
    good, expired = served.token("alice", "operator"), served.token("alice", ttl=-1)
    document, bodies = call(served, "GET", "/v1/openapi.json")[1], 0
    with httpx2.Client(base_url=served.url, trust_env=False, headers={"Content-Type": "application/json"}) as client:

        def ask(method: str, path: str, token: str | None) -> tuple[int, Any]:
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            response = client.request(method, path, headers=headers, content=b'{"name": ')
            return response.status_code, response.json()["error"]

        for path, methods in document["paths"].items():
            where = re.sub(r"{(\w+)}", "alice", path)
            for method, route in methods.items():
                if path == "/v1/health":
                    continue  # asks nobody who they are
                for token in (None, "wrong", expired):
                    status, error = ask(method.upper(), where, token)
                    assert (status, error["code"]) == (401, "unauthenticated"), (method, path, token)
                if "application/json" in route.get("requestBody", {}).get("content", {}):
                    bodies += 1
                    status, error = ask(method.upper(), where, good)
                    assert (status, error["message"]) == (422, "body.9: JSON decode error"), (method, path)
    assert bodies >= 8


def test_a_large_body_of_whom_nobody_knows_is_answered_too(served: Web) -> None:
    """Within the limit of the route and unread: the sender gets the answer, not a connection that is reset."""
    content = b"[" * ((1 << 20) - 1)
    status, answer, _ = call(served, "POST", "/v1/tenants/default/threads", "wrong", content=content)
    assert (status, answer["error"]["code"]) == (401, "unauthenticated")


def test_a_token_without_the_scope(served: Web) -> None:
    plain, operator = served.token("alice"), served.token("alice", "operator")
    assert call(served, "POST", "/v1/tenants", plain, json={"name": "t1"})[0] == 403
    assert call(served, "POST", "/v1/tenants", operator, json={"name": "t1"})[0] == 201


def test_a_token_in_a_url_is_refused_even_beside_a_good_one(served: Web) -> None:
    good = served.token("alice")
    for name in ("token", "access_token", "TOKEN", "to%6ben"):
        status, answer, _ = call(served, "GET", f"/v1/status?{name}={good}", good)
        assert status == 401
        assert "URL" in answer["error"]["message"]
        assert good not in json.dumps(answer)
    assert call(served, "GET", "/v1/status?x=1", good)[0] == 200


def test_acting_as_somebody_else(served: Web) -> None:
    plain, operator = served.token("alice"), served.token("alice", "operator")
    path = "/v1/tenants/default/users/bob"
    assert call(served, "GET", path, operator, headers={"Ringfence-As": "bob"})[0] == 200
    assert ("act_as", "bob") in served.engine.world.audit
    assert call(served, "GET", path, plain, headers={"Ringfence-As": "bob"})[0] == 403
    assert call(served, "GET", "/v1/tenants/default/users/alice", plain, headers={"Ringfence-As": "alice"})[0] == 200
    assert call(served, "GET", path, operator, headers={"Ringfence-As": "%ff"})[0] == 422
    assert call(served, "GET", path, operator, headers={"Ringfence-As": "alice"})[0] == 404  # acts as alice, truly


def test_who_is_meant_is_said_once(served: Web) -> None:
    """Else whoever stands before the server and the server itself may each take another one."""
    operator = served.token("alice", "operator")
    said = {"Authorization": f"Bearer {operator}", "Ringfence-As": "bob", "Ringfence-Tenant": "default"}
    with httpx2.Client(trust_env=False) as client:
        url = f"{served.url}/v1/tenants/default/users/bob"
        assert client.get(url, headers=said).status_code == 200  # the control
        for name, status in (("Authorization", 401), ("Ringfence-As", 422), ("Ringfence-Tenant", 422)):
            answer = client.get(url, headers=[*said.items(), (name, said[name])])
            assert answer.status_code == status, name


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil", "", "192.168.0.1:8377"])
def test_dns_rebinding(served: Web, host: str) -> None:
    status, answer, _ = call(served, "GET", "/v1/health", headers={"Host": host})
    assert status == 403, answer


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]:8377", "LOCALHOST:99"])
def test_loopback_names(served: Web, host: str) -> None:
    assert call(served, "GET", "/v1/health", headers={"Host": host})[0] == 200


def test_other_sites_are_refused(served: Web) -> None:
    host = served.url.removeprefix("http://")
    assert call(served, "GET", "/v1/health", headers={"Origin": "https://evil.example"})[0] == 403
    assert call(served, "GET", "/v1/health", headers={"Origin": "null"})[0] == 403
    status, _, headers = call(served, "GET", "/v1/health", headers={"Origin": f"http://{host}"})
    assert status == 200
    assert not [name for name in headers if name.startswith("access-control")]
    assert call(served, "OPTIONS", "/v1/status", headers={"Access-Control-Request-Method": "GET"})[0] == 405


def test_sizes(served: Web) -> None:
    token = served.token("alice")
    path = "/v1/tenants/default/threads/big/messages"
    for size in (300_000, 262_145):
        status, answer, _ = call(served, "POST", path, token, json={"text": "x" * size})
        assert (status, answer["error"]["code"]) == (413, "too_large")
        assert answer["error"]["details"] == {"size": size, "limit": 262_144}
    assert call(served, "POST", path, token, json={"text": "\n" * 262_144})[0] == 202
    status, answer, _ = call(served, "POST", path, token, json={"text": "x" * (1 << 20)})
    assert status == 413
    assert answer["error"]["details"]["limit"] == 1 << 20


def test_a_body_that_hides_its_size(served: Web) -> None:
    def chunks() -> Iterator[bytes]:
        yield b'{"text": "'
        for _ in range(40):
            yield b"x" * 65536

    token = served.token("alice")
    status, answer, _ = call(served, "POST", "/v1/tenants/default/threads/t/messages", token, content=chunks())
    assert (status, answer["error"]["code"]) == (413, "too_large")


def test_wrong_shapes(served: Web) -> None:
    token = served.token("alice", "operator")
    for body in (b"{", b"[]", b'{"name": 1}', b'{"name": "x", "nmae": 1}', b"\xff", b"[" * 100_000):
        headers = {"Content-Type": "application/json"}
        status, answer, _ = call(served, "POST", "/v1/tenants", token, content=body, headers=headers)
        assert status in (400, 422), body
        assert answer["error"]["code"] == "invalid"
        assert answer["error"]["remedy"]
    secret = {"scopes": "hunter2-secret"}
    _, answer, _ = call(served, "POST", "/v1/tenants/default/users/alice/tokens", token, json=secret)
    assert "hunter2" not in json.dumps(answer)


def test_unknown_addresses_and_methods(served: Web) -> None:
    assert call(served, "GET", "/v1/nothing")[1]["error"]["code"] == "not_found"
    assert call(served, "PUT", "/v1/status")[1]["error"]["code"] == "method_not_allowed"
    assert call(served, "GET", "/docs")[0] == 404


def test_a_failure_inside_tells_nothing(served: Web) -> None:
    served.engine.health.broken = True
    try:
        status, answer, _ = call(served, "GET", "/v1/health")
    finally:
        served.engine.health.broken = False
    assert (status, answer["error"]["code"]) == (500, "failed")
    assert "secret" not in json.dumps(answer) and "Traceback" not in json.dumps(answer)
    assert call(served, "GET", "/v1/health")[0] == 200


async def test_names_are_exact(served: Web) -> None:
    """F94: the way through the URL changes no name into another."""
    taken = ["a_b", "A_B", "经济", "e\u0301", "\u00e9", "a b", "a+b", "a?b", "a#b"]
    async with served.client() as client:
        for name in taken:
            await client.add_user(name)
        for name in taken:
            assert (await client.user(name))["name"] == name
        for name in ("a/b", "a%2fb", "..", ".", "x" * 300, "dot.", "nul\0"):
            with pytest.raises(Invalid) as raised:
                await client.add_user(name)
            assert raised.value.code == "invalid_name"
            with pytest.raises(NotFound):
                await client.user(name)
        with pytest.raises(Invalid):
            await client.user("\udcff")


async def test_acting_as_a_name_that_is_not_ascii(served: Web) -> None:
    served.user("ünï")
    async with served.client(act_as="ünï") as client:
        assert (await client.user("ünï"))["name"] == "ünï"
        with pytest.raises(NotFound):
            await client.user("alice")


async def test_the_sdk_over_tcp(served: Web) -> None:
    async with Client(url=served.url, token=served.token("alice")) as client:
        assert (await client.exec("alice", ["echo", "hi"]))["stdout"] == "hi\n"
        with pytest.raises(NotFound):
            await client.exec("bob", ["true"])
        with pytest.raises(Refused):
            await client.add_tenant("x")
    async with Client(url=served.url, token="wrong") as client:
        with pytest.raises(Unauthenticated):
            await client.exec("alice", ["true"])
    assert "secret" not in repr(Address(url=served.url, token="secret"))


def test_the_document_is_served(served: Web) -> None:
    document = call(served, "GET", "/v1/openapi.json")[1]
    answer = document["paths"]["/v1/runs/{run}"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert answer["$ref"].endswith("RunShape")


def test_peer_credentials_name_this_process() -> None:
    import os

    left, right = socket.socketpair(socket.AF_UNIX)
    with left, right:
        peer = peer_of(left)
    assert (peer.uid, peer.gid, peer.pid) == (os.geteuid(), os.getegid(), os.getpid())
    assert set(os.getgroups()) <= peer.groups


def test_who_is_an_operator() -> None:
    door = Admission(uids=frozenset({0, 900}), groups=frozenset({77}))
    assert door.admits(Peer(0, 0, 1, frozenset({0})))
    assert door.admits(Peer(900, 900, 1, frozenset({900})))
    assert door.admits(Peer(5, 5, 1, frozenset({5, 77})))
    assert not door.admits(Peer(5, 5, 1, frozenset({5, 900})))


def test_a_stranger_on_the_operator_socket_gets_401() -> None:
    """The same request, from a server that admits this account and from one that does not."""
    answers = []
    for admission in (None, Admission(uids=frozenset({4_000_000}))):
        with (
            web(admission) as served,
            httpx2.Client(transport=httpx2.HTTPTransport(uds=served.socket), trust_env=False) as client,
        ):
            answers.append(client.get("http://localhost/v1/tenants").status_code)
            bearer = client.get("http://localhost/v1/tenants", headers={"Authorization": "Bearer x"}).status_code
            answers.append(bearer)
    assert answers == [200, 200, 401, 401]


def test_the_socket_is_for_its_group_only(served: Web) -> None:
    assert served.listening.socket.stat().st_mode & 0o7777 == 0o660


def test_a_broken_request_does_not_hurt_the_next(served: Web) -> None:
    for data in (b"\0" * 100, b"GET / HTTP/9\r\n\r\n", b"\xff" * 70_000, b"POST /v1/tenants HTTP/1.1\r\n"):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(served.socket)
            raw.sendall(data)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert call(served, "GET", "/v1/health")[0] == 200


def test_two_hosts_are_refused(served: Web) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port))
    connection.putrequest("GET", "/v1/health")
    connection.putheader("Host", "evil.example")
    connection.endheaders()
    assert connection.getresponse().status == 400
    connection.close()
