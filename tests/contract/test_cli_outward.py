"""`ringfence secret`, `egress`, `vault` as processes of their own, against the real engine, vault, store and web."""

from __future__ import annotations

import asyncio
import json
import os
import tty
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from ringfence.host.kernel.outward.registries import NPM
from tests.support.access_rig import Scene, scene
from tests.support.web_rig import RINGFENCE

CANARY = "ghp_canary0123456789abcdefghijklmnopqr"


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Cli:
    scene: Scene

    def environment(self, who: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RINGFENCE_")}
        return {**kept, "RINGFENCE_URL": str(self.scene.tcp.base_url), "RINGFENCE_TOKEN": self.scene.tokens[who]}

    async def __call__(self, *words: str, stdin: bytes | None = None, who: str = "glass") -> Done:
        """`who`: of access_rig.WHO; `glass` is an operator's token."""
        process = await asyncio.create_subprocess_exec(
            RINGFENCE,
            *words,
            env=self.environment(who),
            stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(stdin), 60)
        assert process.returncode is not None and b"Traceback" not in err
        return Done(process.returncode, out.decode(), err.decode())


@pytest.fixture
async def cli() -> AsyncIterator[Cli]:
    async with scene() as made:
        yield Cli(made)


async def test_a_credential_from_stdin_to_its_end(cli: Cli) -> None:
    done = await cli("secret", "set", "alice", "gh", "--recipe", "github", stdin=f"{CANARY}\n".encode())
    assert done.code == 0, done.err
    assert done.out.splitlines()[0] == "credential gh: version 1 of scope user stored"
    assert "api.github.com" in done.out and "GH_TOKEN" in done.out
    again = await cli("secret", "set", "alice", "gh", "--json", stdin=CANARY.encode(), who="owner")
    assert (again.json["version"], len(again.json["bindings"])) == (2, 5)
    listed = await cli("secret", "ls", "alice", "--json", who="owner")
    assert {each["name"] for each in listed.json["secrets"]} == {"gh", "canary-secret"}
    shown = await cli("secret", "ls", "alice", who="owner")
    assert "BINDING" in shown.out and "authorization (bearer)" in shown.out
    all_of_them = await cli("secret", "ls", "--json")
    assert {each["user"] for each in all_of_them.json["secrets"]} == {"alice"}
    gone = await cli("secret", "revoke", "alice", "gh", who="owner")
    assert gone.out == "credential gh revoked: no worker has it any more\n"
    assert (await cli("secret", "rm", "alice", "gh", who="owner")).code == 4
    for each in (done, again, listed, shown, all_of_them, gone):
        assert CANARY not in each.out + each.err


async def test_a_value_comes_from_stdin_alone(cli: Cli) -> None:
    for words in (("secret", "set", "alice", "gh", CANARY), ("secret", "set", "alice", "gh", "--value", CANARY)):
        for more in ((), ("--json",)):
            done = await cli(*words, *more, stdin=b"")
            assert done.code == 2 and CANARY not in done.out + done.err, done
    empty = await cli("secret", "set", "alice", "gh", stdin=b"\n")
    assert empty.code == 2 and "empty" in empty.err
    large = await cli("secret", "set", "alice", "gh", stdin=b"x" * 70_000)
    assert large.code == 2 and "65536" in large.err
    lines = await cli("secret", "set", "alice", "gh", "--recipe", "github", stdin=b"canary-a\ncanary-b\n")
    assert lines.code == 2 and "control characters" in lines.err and "canary-a" not in lines.err
    named = await cli("secret", "ls", "alice", "--json")
    assert [each["name"] for each in named.json["secrets"]] == ["canary-secret"], "nothing was stored"


async def test_no_answer_repeats_a_value(cli: Cli) -> None:
    path = "/v1/tenants/default/users/alice/secrets/gh"
    for body in (
        {"value_b64": "canary-of-a-value!"},
        {"value_b64": ["canary-of-a-value"]},
        {"value_b64": "canary-of-a-value" * 10_000},
        {"value_b64": "Y2FuYXJ5", "shared": "canary-of-a-value"},
        {"value_b64": "Y2FuYXJ5", "binding": {"use": "canary-of-a-value"}},
    ):
        answer = await cli.scene.http("owner", "PUT", path, json.dumps(body).encode())
        assert answer.status in (413, 422) and b"canary-of-a-value" not in answer.body, answer
    kept = await cli.scene.http("owner", "PUT", path, b'{"value_b64": "Y2FuYXJ5LW9mLWEtdmFsdWU="}')
    assert kept.status == 200 and b"canary-of-a-value" not in kept.body and b"Y2FuYXJ5" not in kept.body


async def test_typed_on_a_terminal_without_an_echo(cli: Cli) -> None:
    ours, theirs = os.openpty()
    try:
        tty.setcbreak(ours)
        process = await asyncio.create_subprocess_exec(
            RINGFENCE, "secret", "set", "alice", "typed",
            env=cli.environment("owner"), stdin=theirs, stdout=asyncio.subprocess.PIPE, stderr=theirs,
            start_new_session=True,
        )  # fmt: skip
        shown = b""
        for question in (b"not shown", b"once more"):
            while question not in shown:
                shown += await asyncio.to_thread(os.read, ours, 1000)
            os.write(ours, CANARY.encode() + b"\n")
        out, _ = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0 and b"version 1" in out
        os.set_blocking(ours, False)
        with_rest = shown + (os.read(ours, 10_000) if os.get_blocking(ours) is False else b"")
        assert CANARY.encode() not in with_rest + out
    finally:
        os.close(ours)
        os.close(theirs)


async def test_grants_and_bindings(cli: Cli) -> None:
    granted = await cli("secret", "grant", "alice", "canary-secret", "bob", who="owner")
    assert granted.code == 0, granted.err
    place = ("--host", "a.test", "--header", "X-Api-Key", "--method", "get", "--path", "/v1/**", "--ranges")
    said = await cli("secret", "reach", "alice", "canary-secret", *place, who="owner")
    assert said.code == 0 and "a.test" in said.out, said.err
    bound = await cli("secret", "bind", "bob", "canary-secret", *place, "--env", "API_KEY", "--json", who="stranger")
    (binding,) = bound.json["bindings"]
    assert (binding["host"], binding["methods"], binding["environment"]) == ("a.test", ["GET"], ["API_KEY"])
    assert binding["positions"] == [{"header": "x-api-key", "scheme": "raw", "query": ""}]
    assert binding["ranges"] is True
    taken = await cli("secret", "revoke", "alice", "canary-secret", "bob", "--json", who="owner")
    assert taken.json == {"name": "canary-secret", "user": "bob", "granted": False}
    assert (await cli("secret", "ls", "bob", "--json", who="stranger")).json == {"secrets": []}
    unbound = await cli("secret", "unbind", "alice", "canary-secret", "--json", who="owner")
    assert unbound.json == {"unbound": [cli.scene.names["binding"]]}
    for words, code in (
        (("secret", "bind", "alice", "canary-secret"), 2),
        (("secret", "bind", "alice", "canary-secret", "--recipe", "none"), 2),
        (("secret", "bind", "alice", "canary-secret", "--inject", "--mounted", "--host", "a.test"), 2),
        (("secret", "bind", "alice", "no-such", "--recipe", "github"), 4),
        (("secret", "bind", "bob", "canary-secret", "--recipe", "github"), 4),
        (("secret", "set", "alice", "x", "--tenant-wide"), 3),
    ):
        done = await cli(*words, stdin=b"x", who="owner")
        assert done.code == code and len(done.err.splitlines()) == 2, (words, done)
    wide = await cli("secret", "set", "alice", "x", "--tenant-wide", "--recipe", "npm", "--json", stdin=b"x" * 16)
    assert (wide.json["scope"], wide.json["user"], len(wide.json["bindings"])) == ("tenant", None, 1)
    assert [each["host"] for each in wide.json["reach"]] == [NPM], "whoever binds it does so there"
    bobs = await cli("secret", "bind", "bob", "x", "--json", who="stranger")
    assert [each["host"] for each in bobs.json["bindings"]] == [NPM]
    beyond = await cli("secret", "bind", "bob", "x", "--host", "collector.test", who="stranger")
    assert beyond.code == 3 and "secret reach --tenant-wide" in beyond.err
    more = await cli("secret", "reach", "alice", "x", "--host", "npm.test", "--tenant-wide")
    assert more.code == 0 and "npm.test" in more.out
    none = await cli("secret", "reach", "alice", "x", "--none", "--tenant-wide", "--json")
    assert none.json["reach"] == []
    for odd in ([], ["--none", "--host", "a.test"], ["--none", "--method", "GET"], ["--header", "x-key"]):
        assert (await cli("secret", "reach", "alice", "x", *odd)).code == 2, odd


async def test_rules_from_deny_to_allow(cli: Cli) -> None:
    words = ("egress", "test", "alice", "GET", "https://api.test/v1/things?key=hidden")
    denied = await cli(*words, who="owner")
    assert denied.code == 3 and denied.out.startswith("DENY") and "hidden" not in denied.out
    command = denied.out.splitlines()[-1].removeprefix("to allow: ringfence ").split()
    assert command == ["egress", "allow", "alice", "api.test", "--method", "GET", "--path", "/v1/things"]
    added = await cli(*command, who="owner")
    assert added.code == 0 and added.out.startswith("added: rul_")
    allowed = await cli(*words, "--json", who="owner")
    assert (allowed.code, allowed.json["answer"], allowed.json["missing"]) == (0, "allow", None)
    assert allowed.json["canonical"] == {
        "host": "api.test", "port": 443, "tls": True, "method": "GET", "path": "/v1/things", "websocket": False,
    }  # fmt: skip
    over = await cli("egress", "deny", "api.test", "--tenant-wide", "--json")
    assert over.json["rules"][0]["ports"] == [] and over.json["rules"][0]["layer"] == "tenant"
    explained = await cli(*words, who="owner")
    assert explained.code == 3 and "layer    tenant: deny by rul_" in explained.out
    assert "to allow" not in explained.out, "no rule of hers gets past it"
    listed = await cli("egress", "ls", "alice", who="owner")
    assert [row.split()[1] for row in listed.out.splitlines()[1:]] == ["user", "user", "tenant"]
    lint = await cli("egress", "lint", "alice", "--json", who="owner")
    assert (lint.code, len(lint.json["lint"])) == (1, 1)
    gone = await cli("egress", "rm", over.json["rules"][0]["id"], "--tenant-wide")
    assert gone.code == 0 and (await cli(*words, who="owner")).code == 0
    asked = await cli("egress", "ask", "alice", "**.ask.test", "--note", "first use", "--json", who="owner")
    assert (asked.json["rules"][0]["answer"], asked.json["rules"][0]["note"]) == ("ask", "first use")
    preset = await cli("egress", "allow", "alice", "--preset", "git-read:github.com", "--json", who="owner")
    assert len(preset.json["rules"]) == 4


REFUSED: tuple[tuple[tuple[str, ...], int], ...] = (
    (("allow", "alice"), 2),
    (("allow", "alice", "a.test", "b.test"), 2),
    (("allow", "alice", "https://a.test/"), 2),
    (("allow", "alice", "a.test", "--method", "connect"), 2),
    (("allow", "alice", "metadata.google.internal"), 2),
    (("allow", "alice", "--preset", "none"), 2),
    (("allow", "a.test", "--tenant-wide"), 3),
    (("deny", "a.test", "--installation"), 3),
    (("ls",), 2),
    (("ls", "bob"), 4),
    (("rm", "alice", "rul_none"), 4),
    (("test", "alice", "GET", "https://a.test/../x"), 2),
    (("test", "alice", "GET", "ftp://a.test/"), 2),
    (("log", "bob"), 4),
)


async def test_what_is_refused_says_why(cli: Cli) -> None:
    for words, code in REFUSED:
        done = await cli("egress", *words, who="owner")
        assert (done.code, len(done.err.splitlines())) == (code, 2), (words, done)
    as_json = await cli("egress", "allow", "alice", "https://a.test/", "--json", who="owner")
    assert as_json.code == 2 and as_json.json["error"]["message"] and as_json.json["error"]["remedy"]


async def test_the_log_goes_on(cli: Cli) -> None:
    box, audit = cli.scene.box("alice").id, cli.scene.store.audit
    audit.traffic(box, "api.test", "denied", 10, 2048)
    whole = await cli("egress", "log", "alice", who="owner")
    assert whole.code == 0 and "denied       api.test  up 10B, down 2.0KiB" in whole.out
    assert "secret.set" in whole.out and "name=canary-secret" in whole.out
    as_json = await cli("egress", "log", "alice", "--json", who="owner")
    assert as_json.json["traffic"][0]["host"] == "api.test" and "hash" not in as_json.json["rows"][0]
    process = await asyncio.create_subprocess_exec(
        RINGFENCE, "egress", "log", "alice", "--follow",
        env=cli.environment("owner"), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(60):
        while b"api.test" not in await process.stdout.readline():
            continue
        audit.traffic(box, "later.test", "allow", 0, 0)
        while b"later.test" not in (line := await process.stdout.readline()):
            assert b"api.test" not in line, "nothing comes twice"
    process.terminate()
    await process.wait()


async def test_vault(cli: Cli) -> None:
    status = await cli("vault", "status", "--json")
    assert (status.code, status.json["sealed"], status.json["unreadable"]) == (0, "", 0)
    assert "sealed      no" in (await cli("vault", "status")).out
    rotated = await cli("vault", "rotate", "--json")
    assert (rotated.code, rotated.json) == (0, {"rewrapped": 0, "resigned": 0, "left": 0, "damaged": []})
    for words in (("status",), ("rotate",)):
        assert (await cli("vault", *words, who="owner")).code == 3
    parts = (await cli("status", "--json")).json["parts"]
    assert parts["vault"] == {"ok": True} and parts["egress"] == {"ok": True, "enabled": False}
