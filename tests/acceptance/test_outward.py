"""`secret`, `egress`, `gate`, `vault` against a real server with real boxes, and a TLS server outside to look at."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import tempfile
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

from ringfence.prove.receiving import Answering, at_work
from tests.support.egress_tls import Authority
from tests.support.installation import Installation, eventually, installation

HOST = "api.test"
SECRET = "ghp_canary0123456789abcdefghijklmnopqrstu"
ASK = 'curl -sS --max-time 130 -H "Authorization: Bearer $GH_TOKEN"'


class Outside(Answering):
    """Keeps the lines and credentials that arrive."""

    arrived: ClassVar[list[tuple[str, str]]] = []

    def do_GET(self) -> None:
        self.arrived.append((self.requestline, self.headers.get("Authorization", "")))
        self.say(b"hello")


@contextlib.contextmanager
def serving() -> Iterator[Installation]:
    """A server whose boxes may reach HOST by a pin to this host."""
    Outside.arrived.clear()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        ca = Authority(folder, "outside")
        server = ThreadingHTTPServer(("127.0.0.1", 0), Outside)
        server.socket = ca.context(HOST).wrap_socket(server.socket, server_side=True)
        pins = f'pins = ["{HOST}=127.0.0.1:{server.server_port}"]'
        settings = f'[egress]\n{pins}\nroot_ca = "{ca.path}"\nrules = ["deny evil.test"]\n'
        with at_work(server), installation(settings=settings) as made:
            made.ok("user", "add", "alice")
            yield made


def test_from_nothing_to_a_credential_that_never_enters_the_box() -> None:
    with serving() as made:
        url = f"https://{HOST}/things"
        denied = made.shell("alice", f"curl -sS {url}")
        refusal = json.loads(denied.text)["error"]
        assert (refusal["code"], refusal["host"]) == ("denied", HOST)
        assert made.run("egress", "test", "alice", "GET", url).code == 3
        made.ok("egress", "allow", "alice", HOST, "--path", "/**")
        made.ok("secret", "set", "alice", "gh", "--recipe", "github", "--host", HOST, "--env", "GH_TOKEN",
                stdin=f"{SECRET}\n".encode())  # fmt: skip
        seen = made.shell("alice", f'echo "$GH_TOKEN"; env; {ASK} {url}')
        assert seen.text.startswith("ghp_EXAMPLE") and seen.text.endswith("hello") and SECRET not in seen.text
        assert Outside.arrived == [("GET /things HTTP/1.1", f"Bearer {SECRET}")]
        explained = made.ok("egress", "test", "alice", "GET", url, "--json").json()
        assert [each["name"] for each in explained["credentials"]] == ["gh"]
        assert [each["layer"] for each in explained["layers"]] == ["installation", "user"]
        log = made.ok("egress", "log", "alice").text
        assert f"{HOST}" in log and "release" in log and SECRET not in log
        box = made.box("alice")
        assert (box["mounted"], box["injected"], box["egress"]["worker"]) == ([], [], True)
        status = made.ok("status", "--json").json()["parts"]
        assert status["vault"]["ok"] and status["egress"]["workers"] == 1
        made.ok("secret", "set", "alice", "gh", stdin=b"the-next-version")
        assert made.shell("alice", f"{ASK} {url}").text == "hello"
        assert Outside.arrived[-1][1] == "Bearer the-next-version", "the worker that had the one before asks anew"
        made.ok("secret", "revoke", "alice", "gh")
        after = made.shell("alice", "env | grep -c ^GH_TOKEN=")
        assert after.text == "0\n", "nothing stands for it any more"
        mount = ("secret", "set", "alice", "plain", "--mounted", "--env", "PLAIN")
        assert made.run(*mount, stdin=b"in clear").code == 3, "not an operator's to say"
        made.ok(*mount, "--as", "alice", stdin=b"in clear")
        assert made.shell("alice", 'echo "$PLAIN"').text == "in clear\n"
        assert made.box("alice")["mounted"] == ["plain"]
        assert SECRET not in made.log.read_text()


def test_a_hold_is_answered_once_and_for_always() -> None:
    with serving() as made:
        made.ok("egress", "ask", "alice", HOST)
        for path, words, codes in (("/once", (), "0"), ("/always", ("--always",), "0"), ("/no", None, "22")):
            asking = made.popen("exec", "alice", "--", "sh", "-c", f"curl -sS --fail https://{HOST}{path}; echo $?")
            gate = _held(made, path)
            if words is None:
                made.ok("deny", gate, "--as", "alice")
            else:
                made.ok("approve", gate, "--as", "alice", *words)
            out, _ = asking.communicate(timeout=60)
            assert out.decode().split("hello")[-1].strip() == codes, (path, out)
        assert [line for line, _ in Outside.arrived] == ["GET /once HTTP/1.1", "GET /always HTTP/1.1"]
        rules = made.ok("egress", "ls", "alice", "--json").json()["rules"]
        assert [each["paths"] for each in rules if each["layer"] == "user" and each["answer"] == "allow"] == [
            ["/always"]
        ]
        assert made.shell("alice", f"curl -sS https://{HOST}/always").text == "hello", "not asked again"


def _held(made: Installation, path: str) -> str:
    """The gate of the connection that waits for this path. An operator sees that it is there, not what is asked."""
    found: list[str] = []

    def look() -> bool:
        for row in made.ok("gate", "ls", "--as", "alice", "--json").json()["gates"]:
            shown = made.ok("gate", "show", row["gate"], "--as", "alice", "--json").json()
            if row["kind"] == "hold" and f'"{path}"' in shown["call"]:
                found.append(row["gate"])
        return bool(found)

    eventually(look, 60, f"a question about {path}")
    blind = made.ok("gate", "show", found[0], "--json").json()
    assert (blind["call"], blind["shown"]) == (None, {})
    assert made.run("approve", found[0]).code == 3
    return found[0]


def test_the_key_is_exchanged_while_the_server_works_and_a_sealed_start() -> None:
    with serving() as made:
        made.ok("secret", "set", "alice", "gh", "--host", HOST, "--env", "GH_TOKEN", stdin=SECRET.encode())
        made.ok("egress", "allow", "alice", HOST)
        vault = made.home / "vault"
        _exchange(vault)
        rotated = made.ok("vault", "rotate", "--json").json()
        assert rotated["left"] == 0 and rotated["rewrapped"] >= 1
        (vault / "master.key.old").unlink()
        made.stop()
        made.start()
        assert made.shell("alice", f"{ASK} https://{HOST}/x").text == "hello"
        made.stop()
        (vault / "master.key").unlink()
        made.start()
        sealed = made.run("vault", "status", "--json")
        assert sealed.code == 5 and "master.key" in sealed.json()["sealed"]
        assert made.run("status").code == 5
        assert made.run("secret", "set", "alice", "other", stdin=b"x").code == 5
        assert made.shell("alice", "echo box").text == "box\n", "the box starts all the same"
        made.ok("secret", "rm", "alice", "gh")


def _exchange(vault: Path) -> None:
    """As docs/operate.md says it is done."""
    there = (vault / "master.key").stat()
    (vault / "master.key").rename(vault / "master.key.old")
    made = os.open(vault / "master.key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(made, secrets.token_bytes(32))
    os.close(made)
    os.chown(vault / "master.key", there.st_uid, there.st_gid)
