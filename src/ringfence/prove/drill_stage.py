"""The server that the drills play on: a throw-away one of the copy that can be broken, with TCP, so that people come with
tokens. Blocking. Must never be used for anything but drills: what runs there has holes that were cut on purpose.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ringfence.client.sync import SyncClient
from ringfence.prove import building
from ringfence.prove.attacks.trying import DONE
from ringfence.prove.drill_breaks import BREAKS, FLAG_FILE
from ringfence.prove.stage import ATTACKER, FLAG, VICTIM, Stage

USERS = "/v1/tenants/default/users"
THREADS = "/v1/tenants/default/threads"
DIARY, OWN = "diary", "own"  # a thread of the victim's and one of the attacker's
ANSWER_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def refusal(self) -> str:
        """`401 unauthenticated`, or the status alone."""
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return f"{self.status} {self.json()['error']['code']}"
        return str(self.status)


@dataclass(frozen=True, slots=True)
class DrillStage:
    stage: Stage
    port: int
    tokens: dict[str, str]  # user -> secret
    secret: str  # the flag's text: in the victim's file and in a message of the diary

    # --- the flag

    def broken(self, name: str, *walls: str, **facts: str) -> None:
        """From now on, on this server."""
        path = self.stage.made.home / FLAG_FILE
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps({"break": name, "walls": walls, "how": "", **facts}))
        fresh.chmod(0o644)
        fresh.rename(path)

    def mended(self) -> None:
        (self.stage.made.home / FLAG_FILE).unlink(missing_ok=True)

    # --- asking as a person

    def ask(self, user: str, method: str, path: str, body: Any = None) -> Answer:
        """One request over TCP with that user's token."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_SECONDS)
        headers = {"Authorization": f"Bearer {self.tokens[user]}"}
        data = None if body is None else json.dumps(body)
        if data is not None:
            headers["Content-Type"] = "application/json"
        with contextlib.closing(link):
            link.request(method, path, data, headers)
            reply = link.getresponse()
            return Answer(reply.status, reply.read())

    def exec(self, user: str, of: str, script: str) -> Answer:
        return self.ask(user, "POST", f"{USERS}/{of}/exec", {"argv": ["sh", "-c", script], "timeout": 20})

    def get_file(self, user: str, of: str, path: str) -> Answer:
        return self.ask(user, "GET", f"{USERS}/{of}/files?path={quote(path)}")

    def messages(self, user: str, thread: str) -> Answer:
        return self.ask(user, "GET", f"{THREADS}/{thread}/messages")

    def leaked(self, answer: Answer) -> str:
        """`done ...`: the victim's secret is in it."""
        if self.secret.encode() in answer.body:
            return f"{DONE} the victim's text came out"
        return answer.refusal

    def tree(self, user: str) -> Path:
        return self.stage.directory(user) / "tree"


@contextlib.contextmanager
def drill_stage(left: list[str]) -> Iterator[DrillStage]:
    """CommandFailed: this host cannot run a server."""
    with building.stage(left, patches=BREAKS) as stage:
        tokens = {user: str(stage.client.add_token(user)["token"]) for user in (VICTIM, ATTACKER)}
        secret = stage.canaries.flag
        stage.acting(VICTIM).say(DIARY, f"@read {FLAG}")
        stage.acting(ATTACKER).say(OWN, "nothing of interest")
        port = _free_port()
        stage.made.stop()
        stage.made.start("--listen", f"127.0.0.1:{port}")
        stage.client.close()
        stage.client = SyncClient(socket=stage.made.socket)
        yield DrillStage(stage, port, tokens, secret)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
