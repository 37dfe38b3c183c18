"""The host sends something once, asks before it does, and goes on after whatever was killed in between: with real boxes."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from ringfence.host.kernel.canonical import digest
from ringfence.host.kernel.capabilities import key_of
from ringfence.host.kernel.runs import Effect
from ringfence.prove.receiving import Answering, at_work
from tests.support.installation import Installation, eventually, installation

POLICY = '[[policy]]\ntool = "http.webhook"\nanswer = "ask"\n'
ARGUMENTS: dict[str, Any] = {"name": "pay", "body": {"to": "\u202eevil", "amount": 5}}
CALL = {"name": "http.webhook", "arguments": ARGUMENTS}


class Outside(Answering):
    """Counts what arrives, by key."""

    arrived: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.arrived.append(self.headers["Idempotency-Key"])
        self.say(b"{}")

    def do_GET(self) -> None:
        self.say(b'{"state": "done"}' if self.arrived else b'{"state": "not_done"}')


@contextlib.contextmanager
def outside() -> Iterator[int]:
    Outside.arrived.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Outside)
    with at_work(server):
        yield server.server_port


@contextlib.contextmanager
def paying(policy: str = POLICY) -> Iterator[Installation]:
    with paying_with_key(policy) as (made, _):
        yield made


@contextlib.contextmanager
def paying_with_key(policy: str) -> Iterator[tuple[Installation, Path]]:
    """And the file of the webhook's key."""
    with outside() as port, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        secret, script = folder / "secret", folder / "script.json"
        secret.write_text("a secret of more than sixteen bytes\n")
        script.write_text(json.dumps([{"when": "pay", "answers": [{"tool_calls": [CALL]}, {"text": "paid"}]}]))
        script.chmod(0o644)
        hook = f'[[webhook]]\nname = "pay"\nurl = "http://127.0.0.1:{port}/hook"\nsecret_file = "{secret}"\n'
        hook += f'lookup_url = "http://127.0.0.1:{port}/look"\n'
        with installation(settings=f'script = "{script}"\n{hook}{policy}', started=False) as made:
            owner = (made.home / "vault").stat()
            os.chown(secret, owner.st_uid, owner.st_gid)
            secret.chmod(0o600)
            made.start()
            yield made, secret


def test_a_payment_is_asked_about_and_made_once() -> None:
    with paying() as made:
        for name in ("alice", "bob"):
            made.ok("user", "add", name)
        said = made.run("say", "--as", "alice", "--thread", "t", "--key", "k", "--json", "pay")
        answer = said.json()
        assert (said.code, answer["status"], answer["reason"]) == (0, "parked", "approval")
        [gate] = answer["gates"]
        assert "\\u202eevil" in gate["call"] and gate["wall"] is True and gate["means"].startswith("a wall")
        for words, code in (
            (("approve", gate["gate"]), 3),  # an operator answers nothing
            (("approve", gate["gate"], "--as", "bob"), 4),
            (("approve", "gat_absent", "--as", "alice"), 4),
            (("approve", gate["gate"], "--as", "alice", "--answer", "done"), 2),
        ):
            assert made.run(*words).code == code, words
        shown = made.ok("gate", "show", gate["gate"], "--as", "alice").text
        assert "\u202e" not in shown and "RIGHT-TO-LEFT OVERRIDE" in shown and "a wall" in shown
        made.kill()
        down = made.run("approve", gate["gate"], "--as", "alice")
        assert down.code == 5, "nobody is there to take it, and it says so"
        made.start()
        assert [each["gate"] for each in made.ok("gate", "ls", "--as", "alice", "--json").json()["gates"]] == [
            gate["gate"]
        ]
        made.ok("approve", gate["gate"], "--as", "alice")
        made.ok("approve", gate["gate"], "--as", "alice")
        eventually(lambda: Outside.arrived, 20, "the payment")
        done = made.say("alice", "t", "pay", key="k")
        assert (done["status"], done["reply"], done["run"]) == ("completed", "paid", answer["run"])
        assert Outside.arrived == [key_of(answer["run"], 1, digest("http.webhook", ARGUMENTS, Effect.ONCE))]
        assert made.run("deny", gate["gate"], "--as", "alice").code == 1
        assert made.ok("gate", "ls", "--json").json()["gates"] == []


def test_a_key_that_is_gone_is_asked_for_and_mended_while_the_server_runs() -> None:
    """Who is asked is alice; the operator sees what is missing, mends it, and answers nothing in his own name."""
    with paying_with_key(POLICY.replace('"ask"', '"allow"')) as (made, secret):
        made.ok("user", "add", "alice")
        away = secret.rename(secret.with_name("away"))
        made.kill()
        made.start()  # a key that is not there keeps no server down
        answer = made.run("say", "--as", "alice", "--thread", "t", "--key", "k", "--json", "pay").json()
        assert (answer["status"], answer["reason"], Outside.arrived) == ("parked", "setup", [])
        [gate] = answer["gates"]
        seen = made.ok("gate", "show", gate["gate"])
        assert "secret_file of webhook pay is not there" in seen.text and "chmod 600" not in seen.text
        assert "amount" not in seen.text and str(secret) not in seen.text
        assert made.run("approve", gate["gate"], "--answer", "done").code == 3
        away.rename(secret)
        made.ok("approve", gate["gate"], "--as", "alice", "--answer", "done")
        done = made.say("alice", "t", "pay", key="k")
        assert (done["status"], done["reply"]) == ("completed", "paid")
        assert Outside.arrived == [key_of(answer["run"], 1, digest("http.webhook", ARGUMENTS, Effect.ONCE))]
